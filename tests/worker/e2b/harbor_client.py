"""Harbor's own E2B environment, as a trial of Harbor uses it. Run by an interpreter that has it:

harbor_client.py IMAGE FOLDER prints what it found, as JSON.
"""

import asyncio
import json
import sys
from pathlib import Path

from harbor.environments.e2b import E2BEnvironment
from harbor.models.task.config import EnvironmentConfig, NetworkMode, NetworkPolicy
from harbor.models.trial.paths import TrialPaths

DOCKERFILE = """FROM {image}
WORKDIR /work
COPY made.txt /work/made.txt
ENV GIVEN=built
RUN echo $GIVEN > /work/said.txt
"""


def environment(
    folder: Path, name: str, policy: NetworkPolicy, image: str | None
) -> E2BEnvironment:
    here = folder / name
    here.mkdir(parents=True, exist_ok=True)
    paths = TrialPaths(folder / f"trial-{name}")
    paths.mkdir()
    config = EnvironmentConfig(docker_image=image)
    return E2BEnvironment(
        here,
        name,
        f"{name}__1__env",
        paths,
        config,
        network_policy=policy,
        enable_environment_dir_upload=False,
    )


async def main(image: str, folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    no_network = NetworkPolicy(network_mode=NetworkMode.NO_NETWORK)
    box = environment(folder, "plain", no_network, image)
    await box.start(force_build=False)
    try:
        ran = await box.exec("cat /repo/code.txt")
        found["image"] = [ran.return_code, ran.stdout]
        found["user"] = ((await box.exec("id -un")).stdout or "").strip()
        found["nobody"] = ((await box.exec("id -u", user=65534)).stdout or "").strip()
        found["code"] = (await box.exec("exit 3")).return_code
        found["cwd"] = (await box.exec("pwd", cwd="/repo")).stdout
        found["env"] = (await box.exec("echo $X", env={"X": "given"}, timeout_sec=30)).stdout
        source = folder / "source"
        (source / "deep").mkdir(parents=True)
        (source / "a.txt").write_text("one")
        (source / "deep/b.txt").write_text("two")
        await box.upload_dir(source, "/tests")
        await box.upload_file(source / "a.txt", "/solution/a.txt")
        await box.download_dir("/tests", folder / "back")
        found["uploaded"] = sorted(path.name for path in (folder / "back").rglob("*.txt"))
        await box.download_file("/tests/deep/b.txt", folder / "b.txt")
        found["downloaded"] = (folder / "b.txt").read_text()
        found["is_dir"] = [await box.is_dir("/tests"), await box.is_dir("/tests/a.txt")]
        allowed = NetworkPolicy(network_mode=NetworkMode.ALLOWLIST, allowed_hosts=["example.org"])
        await box._apply_network_policy(allowed)
        found["allowed"] = ((await box.exec("echo ${HTTPS_PROXY%:*}")).stdout or "").strip()
    finally:
        await box.stop(delete=True)
    here = folder / "built"
    here.mkdir()
    (here / "Dockerfile").write_text(DOCKERFILE.format(image=image))
    (here / "made.txt").write_text("made")
    built = environment(folder, "built", no_network, None)
    await built.start(force_build=True)
    try:
        ran = await built.exec("cat said.txt; pwd")
        found["dockerfile"] = [ran.return_code, ran.stdout]
    finally:
        await built.stop(delete=True)
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], Path(sys.argv[2])))))
