"""Writes the table of docs/inside/fleets.md from what the last runs of the suite noted.

python -m tests.fleets.table
"""

import json
from typing import Any

from tests.architecture.source import ROOT
from tests.fleets.surfaces import NOTED

PAGE = ROOT / "docs/inside/fleets.md"
HEAD = """# Broken fleets

What each surface says of fleets that are really broken: processes killed, frozen, or started wrongly.
`python -m tests.fleets.table` writes this page from what `tests/fleets/` saw.

- *named*: how long `penstock status` took to name it, once it was broken.
- `top` is `penstock top --once`. The page is the monitor's. The alert is the one that fires, and its `for`.
- *well again*: the test did what the remedy says, and saw a healthy fleet.
- *exit code 2*: nothing can be judged from Redis. Each command says why.

| Fleet | Verdict | named | `status` | `top` | page | `doctor` | alert | well again |
|---|---|---|---|---|---|---|---|---|
"""  # noqa: E501


def rows() -> list[dict[str, Any]]:
    found = [json.loads(file.read_text()) for file in sorted(NOTED.glob("*.json"))]
    return [row for row in found if "verdict" in row]


def line(row: dict[str, Any]) -> str:
    seen = ["yes" if row.get(one) is True else row.get(one) or "–"
            for one in ("status", "top", "page", "doctor")]  # fmt: skip
    well, verdict = "yes" if row.get("well") else "–", row["verdict"]
    shown = f"`{verdict}`" if "_" in verdict or verdict == "masked" else verdict
    cells = [row["fleet"], shown, f"{row['seconds']} s", *seen, row.get("alert") or "–", well]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(HEAD + "\n".join(map(line, rows())) + "\n")
