"""schemathesis, as a command: it makes requests from an OpenAPI document, good ones and bad."""

import subprocess
import sys
from pathlib import Path

# What is sent is the same each time.
SEEDED = ("--generation-deterministic",)


def nothing_breaks(document: str, folder: Path, examples: int, *options: str) -> None:
    """Send as many requests of each kind as `examples` says; the document is a URL or a file.

    A request may take a minute: a busy machine is no finding.
    """
    result = subprocess.run(
        [Path(sys.executable).with_name("schemathesis"), "run", document,
         "--max-examples", str(examples), "--request-timeout", "60",
         "--phases", "coverage,fuzzing", "--no-color", *options],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-5000:]
