"""Print the lowest version of each dependency that pyproject.toml allows, as pip constraints."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
# The tools that judge the code are not what is on trial. Those whose every release may
# judge differently stand at one version.
TOOLS = {"ruff", "mypy", "hatchling"}

groups = [project["dependencies"], *project["optional-dependencies"].values()]

for line in dict.fromkeys(line for group in groups for line in group):
    if line.startswith(f"{project['name']}["):  # another group of our own
        continue
    requirement, _, marker = line.partition(";")
    found = re.fullmatch(r"([A-Za-z0-9_-]+)(?:\[.*])?[>=]=([0-9.]+)", requirement.strip())
    if found is None:
        raise SystemExit(f"cannot read a lower bound in {line!r}; write it as name>=version")
    if found[1] not in TOOLS:
        print(f"{found[1]}=={found[2]}" + (f"; {marker.strip()}" if marker else ""))
