"""Write the few figures of the README from the reports in docs/tools/figures/.

`<!-- gates: penstock pairs/s, 32 tasks vs ray -->33<!-- / -->` is the measured value of that
target of the suite `gates`. A test fails where README and reports differ.
"""

import json
import re
from pathlib import Path

from docs.tools.measured import FIGURES

README = Path(__file__).parents[2] / "README.md"
_PART = re.compile(r"<!-- (\w+): ([^>]+) -->[^<]*<!-- / -->")


def main() -> None:
    README.write_text(updated(README.read_text()))


def updated(page: str) -> str:
    return _PART.sub(
        lambda part: f"<!-- {part[1]}: {part[2]} -->{_figure(*part.groups())}<!-- / -->", page
    )


def _figure(suite: str, target: str) -> str:
    report = json.loads((FIGURES / f"{suite}.json").read_text())
    (value,) = (one["measured"] for one in report["targets"] if one["what"] == target)
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


if __name__ == "__main__":
    main()
