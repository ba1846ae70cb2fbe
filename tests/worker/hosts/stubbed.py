"""The host's own package if it is installed, else the stand-in in `stubs/<page>/`.

A folder in `stubs/` has the name of the host's page in `docs/guide/`, and the packages that the
page and our adapter import. A test of the docs puts it on the path of the page's programs.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

STUBS = Path(__file__).with_name("stubs")
OFFLINE = Path(__file__).with_name("offline")  # what a real host would fetch from a network


def path_of(page: str) -> Path | None:
    """What programs of this page need on their path here; None if it is no host's page."""
    folder = STUBS / page
    if not folder.is_dir():
        return None
    return OFFLINE if is_installed(page) else folder


def host(page: str) -> bool:
    """Make the host's packages importable; whether they are the real ones."""
    path = str(path_of(page))
    if path not in sys.path:
        sys.path.insert(0, path)
    return path == str(OFFLINE)


def is_installed(page: str) -> bool:
    """Whether the host's own packages are."""
    stand_ins = STUBS / page
    elsewhere = [path for path in sys.path if not path.startswith(str(STUBS))]
    return all(PathFinder.find_spec(one.stem, elsewhere) for one in stand_ins.glob("[!_]*"))
