"""inspect-ai: what its contract asks of a sandbox, by its real package or by our stand-in."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.worker.hosts.boxes import Boxes
from tests.worker.hosts.stubbed import host

host("inspect-ai")

from inspect_ai.util import (  # noqa: E402
    OutputLimitExceededError,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)

from worker.hosts.inspect_ai import PenstockSandbox, PenstockSandboxConfig  # noqa: E402


@pytest_asyncio.fixture
async def sandbox(boxes: Boxes) -> AsyncIterator[Any]:
    await PenstockSandbox.task_init("task", None)
    opened = await PenstockSandbox.sample_init("task", None, {})
    yield opened["default"]
    await PenstockSandbox.sample_cleanup("task", None, opened, False)


async def test_commands_end_as_inspect_ai_has_it(sandbox: Any) -> None:
    ran = await sandbox.exec(["sh", "-c", "cat; echo $A >&2; exit 3"], input="in", env={"A": "é"})
    assert (ran.success, ran.returncode, ran.stdout, ran.stderr) == (False, 3, "in", "é\n")
    assert (await sandbox.exec(["no-such-program"])).returncode == 127
    assert (await sandbox.exec(["sh", "-c", "kill -TERM $$"], timeout=30)).returncode == 143
    with pytest.raises(PermissionError):
        await sandbox.exec(["/etc/passwd"])
    own = ["sh", "-c", "echo permission denied >&2; exit 126"]  # a program that ran
    assert (await sandbox.exec(own)).returncode == 126
    with pytest.raises(TimeoutError):
        await sandbox.exec(["sleep", "60"], timeout=1)
    with pytest.raises(SandboxUserUnsupportedError):
        await sandbox.exec(["true"], user="root")
    with pytest.raises(OutputLimitExceededError) as cut:
        await sandbox.exec(["head", "-c", "11000000", "/dev/zero"])
    assert len(cut.value.truncated_output) == 10 << 20


@pytest.mark.parametrize("text", ["print(1)\0", "print('\ud800')", f"print('{'x' * 200_000}')"])
async def test_a_program_that_no_command_can_carry_fails_and_its_sample_is_scored(
    sandbox: Any, text: str
) -> None:
    ran = await sandbox.exec(["python3", "-c", text])
    assert (ran.success, ran.returncode, ran.stdout) == (False, 126, "")


async def test_files_are_refused_as_inspect_ai_has_it(sandbox: Any) -> None:
    await sandbox.write_file("folder/file", b"\xc3\x28")
    assert await sandbox.read_file("folder/file", text=False) == b"\xc3\x28"
    refusals = {
        "nowhere": FileNotFoundError,
        "folder": IsADirectoryError,
        "folder/file": UnicodeDecodeError,
    }
    for path, refusal in refusals.items():
        with pytest.raises(refusal):
            await sandbox.read_file(path)
    for path in ("/usr/here", "folder/file/below"):
        with pytest.raises(PermissionError, match=path):
            await sandbox.write_file(path, "text")


async def test_a_dead_sandbox_is_unavailable_and_no_result(boxes: Boxes, sandbox: Any) -> None:
    await boxes.kill()
    for call in (sandbox.exec(["true"]), sandbox.read_file("a"), sandbox.write_file("a", "b")):
        with pytest.raises(SandboxUnavailableError, match=r"sandbox penstock-\w+ is lost"):
            await call


async def test_a_config_is_read_from_json_and_refused_if_unknown(tmp_path: Any) -> None:
    asked = {"image": "python:3.12", "memory_mb": 512, "env": {"A": "1"}}
    config = PenstockSandbox.config_deserialize(asked)
    assert hash(config) == hash(PenstockSandboxConfig(**asked))
    assert config.spec().image == "python:3.12"
    (tmp_path / "sandbox.json").write_text('{"memory": 512}')
    with pytest.raises(ValueError, match="memory"):
        await PenstockSandbox.sample_init("task", str(tmp_path / "sandbox.json"), {})


async def test_cleanup_ends_the_sandbox_that_is_named(boxes: Boxes, sandbox: Any) -> None:
    await PenstockSandbox.cli_cleanup(None)
    assert await boxes.names() == [sandbox.sandbox.name], "its owner lives"
    await PenstockSandbox.cli_cleanup(sandbox.sandbox.name)
    assert await boxes.names() == []
