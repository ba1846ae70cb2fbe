"""Name the image of deploy/kubernetes with its digest.

    make pinned IMAGE=registry.example/penstock:0.2.0

Docker knows the digest of an image that it has pushed or pulled. Without Docker, say it yourself:
`IMAGE=registry.example/penstock@sha256:…`.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parent / "kubernetes" / "image" / "kustomization.yaml"
DIGEST = re.compile(r"(?P<name>[^@\s]+)@(?P<digest>sha256:[0-9a-f]{64})")


def main(image: str) -> None:
    pinned = DIGEST.fullmatch(image) or _pushed(image)
    says, _, _ = FILE.read_text().partition("images:")
    FILE.write_text(
        f"{says}images:\n  - name: penstock\n    newName: {pinned['name']}\n"
        f"    digest: {pinned['digest']}\n"
    )
    print(f"{FILE} names {pinned[0]}")


def _pushed(image: str) -> re.Match[str]:
    """A digest is the registry's, so there is one for each registry that has the image."""
    name = re.sub(r":[^:/]+$", "", image)
    try:
        asked = subprocess.run(  # noqa: S603 - no shell reads it
            ["docker", "image", "inspect", "--format", "{{json .RepoDigests}}", image],  # noqa: S607
            stdout=subprocess.PIPE, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError) as problem:
        sys.exit(f"{problem}\nBuild {image} first, or say IMAGE={name}@sha256:…")
    for known in json.loads(asked.stdout) or []:
        if (found := DIGEST.fullmatch(known)) and found["name"] == name:
            return found
    sys.exit(f"{image} has no digest of {name} yet: push it first, docker push {image}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
