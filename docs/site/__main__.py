"""`make site`: build the site from the markdown files, and end with 1 at the first fault."""

import argparse
import sys
import tempfile
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from docs.site import pages


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    options.add_argument("folder", nargs="?", type=Path, default=Path("build", "site"))
    options.add_argument("--source", type=Path, help="pages that are laid out already")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        source = given.source or Path(scratch, "source")
        if not given.source:
            pages.lay_out(source)
        here, cache = str(Path(__file__).parent), str(Path(scratch, "cache"))
        strict = ["-W", "--keep-going", "-q"]
        faults = sphinx(["-c", here, "-d", cache, *strict, str(source), str(given.folder)])
    print("the site has faults" if faults else f"{given.folder}/index.html", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
