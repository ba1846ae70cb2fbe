"""Make the secrets that compose.yaml reads, once: `make secrets`. What is there stays.

`.env` tells compose where they are; without it compose says to make them.
"""

import os
import secrets
from pathlib import Path
from urllib.parse import quote

FOLDER, ENVIRONMENT = Path("secrets"), Path(".env")
WHERE = "PENSTOCK_SECRETS="
TOKENS = (
    "redis_password", "sandbox_token", "buffer_token", "gateway_token", "monitor_token",
    "metrics_token", "grafana_password",
)  # fmt: skip


def main() -> None:
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    FOLDER.chmod(0o700)  # also one of an earlier release
    for name in TOKENS:
        _once(name, secrets.token_urlsafe(24))
    password = (FOLDER / "redis_password").read_text().strip()
    _once("redis_url", f"redis://default:{quote(password, safe='')}@redis:6379/0")
    said = ENVIRONMENT.read_text() if ENVIRONMENT.exists() else ""
    if not any(line.startswith(WHERE) for line in said.splitlines()):
        lines = [*said.splitlines(), f"{WHERE}./{FOLDER}"]
        ENVIRONMENT.write_text("\n".join(lines) + "\n")


def _once(name: str, value: str) -> None:
    """Readable to the users that the containers run as, in a folder that only its owner enters.

    Compose mounts the file itself, so inside a container only the file's mode counts. A secret
    has its name once it is whole: one that is interrupted here is made again.
    """
    made = FOLDER / f".{name}"
    made.unlink(missing_ok=True)
    made.write_text(value)  # no end of line: KEDA takes the bytes of a Secret as they are
    made.chmod(0o444)
    try:
        os.link(made, FOLDER / name)
        print(f"made {FOLDER / name}")
    except FileExistsError:
        pass
    finally:
        made.unlink(missing_ok=True)  # by another that makes them, too


if __name__ == "__main__":
    main()
