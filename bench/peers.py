"""Environments for peers: each with its own pinned packages, under `.bench/`.

Peers pin old clients and fight over versions; none of them is installed beside us.
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HOME = ROOT / ".bench"
# Source that Penstock may not bring, by the peer's name: `--peer NAME=FOLDER`.
FOLDERS: dict[str, Path] = {}


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of an environment with these pinned packages; made at first use, then kept."""
    for line in requirements:
        if "==" not in line:
            raise ValueError(f"{line!r} is not pinned: a comparison must be repeatable")
    wanted = json.dumps([sys.version, *requirements])
    folder = HOME / f"{name}-{hashlib.sha256(wanted.encode()).hexdigest()[:8]}"
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        print(f"making {folder} with {', '.join(requirements)}, this once", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
              *requirements])  # fmt: skip
        (folder / "made").touch()
    return python


def run_json(
    python: Path, program: Path, *arguments: str, env: Mapping[str, str], given: Any = None
) -> Any:
    """Run a peer's program in its environment, with JSON on stdin; its last line on stdout is
    JSON."""
    said = subprocess.run(
        [str(python), str(program), *arguments],
        env=dict(env),
        cwd=ROOT,
        input=None if given is None else json.dumps(given),
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
        check=True,
    ).stdout
    return json.loads(said.strip().splitlines()[-1])


def _run(command: Sequence[str]) -> None:
    # stdout is for results; what pip says is talk.
    subprocess.run(command, check=True, stdout=sys.stderr)
