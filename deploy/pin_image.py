"""Write deploy/kubernetes/image: the component that names the image with its digest.

    make pinned IMAGE=registry.example/penstock:0.2.0

The component is your own. git ignores it, so it never keeps you from checking out a tag.
Docker knows the digest of an image that it has pushed or pulled. Without Docker, say it yourself:
`IMAGE=registry.example/penstock@sha256:…`.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

FILE = Path(__file__).parent / "kubernetes" / "image" / "kustomization.yaml"
# It is the last of the components, since it renames what those before it brought.
COMPONENT = """\
apiVersion: kustomize.config.k8s.io/v1alpha1
kind: Component
images:
  - name: penstock
    newName: {name}
    digest: {digest}
"""
DIGEST = re.compile(r"(?P<name>[^@\s]+)@(?P<digest>sha256:[0-9a-f]{64})")


def main(image: str) -> None:
    pinned = DIGEST.fullmatch(image) or _pushed(image)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(COMPONENT.format(**pinned.groupdict()))
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
