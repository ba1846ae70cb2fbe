"""The contract of session providers: what the lifecycle and the reaper rely on.

Each check makes its own sandboxes, under names of its own, and ends them. Each function below is
one check; its docstring says what goes wrong in Penstock if the check fails.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from worker.contract.check import Check, ContractBroken, contract, require, same
from worker.lifecycle.provider import (
    FILE_ERRORS,
    Command,
    ExecResult,
    Kind,
    Provider,
    SandboxRef,
    SandboxSpec,
    provider_named,
)

READY_WITHIN = 120.0
_TTL = 600.0
_TAG = "penstock-contract"


def provider_contract(
    exceptions: Mapping[str, str] | None = None, *, spec: SandboxSpec | None = None
) -> list[Check[Provider]]:
    """The checks of a provider. `spec` is what they make: an image with `sh`, `cat` and `sleep`.

    `exceptions`: name of a check → why your provider fails it.
    """
    return contract(_CHECKS, exceptions or {}, spec=spec or SandboxSpec())


async def it_says_what_it_is(provider: Provider, spec: SandboxSpec) -> None:
    """The registry keeps the name and the scope; a reaper finds the provider by them."""
    require(provider.name and provider.name.isprintable(), f"name is {provider.name!r}")
    require(
        provider.scope.startswith(provider.name),
        f"scope {provider.scope!r} does not begin with the name {provider.name!r}",
    )


async def another_process_makes_the_same_by_its_name(provider: Provider, spec: SandboxSpec) -> None:
    """A reaper elsewhere has only the name. Otherwise nobody ends a dead owner's sandboxes."""
    other = provider_named(provider.name)
    try:
        same(f"the scope of provider_named({provider.name!r})", other.scope, provider.scope)
        async with _sandbox(provider, spec) as ref:
            require(await other.find(ref.name), "the other one does not find the sandbox")
            await other.terminate(ref.id)
            require(not await provider.is_alive(ref), "it is alive though the other one ended it")
    finally:
        await other.close()


async def a_command_says_how_it_ended(provider: Provider, spec: SandboxSpec) -> None:
    """`CommandFailed` and every tool's answer are made of the exit code and both outputs."""
    async with _sandbox(provider, spec) as ref:
        ran = await _sh(provider, ref, "echo out; echo err >&2; exit 3")
    same("exit code, stdout, stderr", _ended(ran), (3, b"out\n", b"err\n"))
    require(not ran.timed_out, "timed_out is set")


async def a_command_gets_its_input_environment_and_folder(
    provider: Provider, spec: SandboxSpec
) -> None:
    """`cwd` is seen from where the sandbox starts, as the paths of files are."""
    async with _sandbox(provider, spec) as ref:
        await provider.write_file(ref, "sub/file.txt", b"x")
        words = ["sh", "-c", "cat; echo $WORD; ls"]
        ran = await provider.exec(ref, Command(words, 60, "sub", {"WORD": "env"}, b"in "))
    same("stdout", ran.stdout, b"in env\nfile.txt\n")


async def a_command_out_of_time_is_ended(provider: Provider, spec: SandboxSpec) -> None:
    """An agent's command that hangs must not hold its sandbox up."""
    async with _sandbox(provider, spec) as ref:
        late = await provider.exec(ref, Command(["sleep", "600"], 1.0))
        same("timed_out, exit_code", (late.timed_out, late.exit_code), (True, None))
        same("stdout of the next", (await _sh(provider, ref, "echo well")).stdout, b"well\n")


async def a_command_does_not_wait_for_what_it_left_in_the_background(
    provider: Provider, spec: SandboxSpec
) -> None:
    """A server that an agent starts with `&` keeps the command's output open."""
    stays = "read word < hold; true"  # until a writer has opened and closed it
    async with _sandbox(provider, spec) as ref:
        ran = await provider.exec(
            ref, Command(["sh", "-c", f"mkfifo hold; ({stays}) & echo said"], 300)
        )
        same("exit code, stdout, stderr", _ended(ran), (0, b"said\n", b""))
        began = time.monotonic()
        words = f"(setsid sh -c '{stays}' || ({stays})) & echo said; exec sleep 600"
        # Ten seconds: a slow machine or cloud needs some of them to come as far as `echo`.
        late = await provider.exec(ref, Command(["sh", "-c", words], 10.0))
        same("timed_out, stdout", (late.timed_out, late.stdout), (True, b"said\n"))
        require(time.monotonic() - began < 60, "the command's time limit did not hold")
        same("exit code of the next", (await _sh(provider, ref, ": > hold")).exit_code, 0)


async def a_command_that_cannot_begin_ends_as_in_a_shell(
    provider: Provider, spec: SandboxSpec
) -> None:
    """127: no such program; 126: it cannot be executed. An exception would end the session."""
    async with _sandbox(provider, spec) as ref:
        missing = await provider.exec(ref, Command(["no-such-program", "x"], 60))
        same("exit code of a missing program", missing.exit_code, 127)
        require(b"no-such-program" in missing.stderr, f"stderr is {missing.stderr!r:.200}")
        await provider.write_file(ref, "script", b"#!/bin/sh\n")
        for path in ("./script", "/tmp"):  # noqa: S108 - a folder of the sandbox
            ran = await provider.exec(ref, Command([path], 60))
            same(f"exit code of {path}, which is not executable", ran.exit_code, 126)
        same("stdout of the next", (await _sh(provider, ref, "echo well")).stdout, b"well\n")


async def commands_run_beside_each_other(provider: Provider, spec: SandboxSpec) -> None:
    """An agent asks two sandboxes at once; each answer is its own."""
    async with _sandbox(provider, spec) as one, _sandbox(provider, spec) as two:
        runs = [_sh(provider, ref, f"echo {ref.name}") for ref in (one, two, one, two)]
        found = [ran.stdout.decode().strip() for ran in await asyncio.gather(*runs)]
    same("stdout", found, [one.name, two.name, one.name, two.name])


async def files_come_back_as_they_were(provider: Provider, spec: SandboxSpec) -> None:
    """Files come back also in folders that did not exist, and for the commands inside."""
    content = bytes(range(256)) * 40
    async with _sandbox(provider, spec) as ref:
        await provider.write_file(ref, "a/b/c.bin", content)
        same("the file", await provider.read_file(ref, "a/b/c.bin"), content)
        counted = (await _sh(provider, ref, "wc -c < a/b/c.bin")).stdout.strip()
        same("its size inside", counted, b"10240")
        await provider.write_file(ref, "a/b/c.bin", b"new")
        same("the file, replaced", await provider.read_file(ref, "a/b/c.bin"), b"new")


async def a_missing_file_is_not_found(provider: Provider, spec: SandboxSpec) -> None:
    """An agent that reads a wrong path gets an answer; another error would end its session."""
    async with _sandbox(provider, spec) as ref:
        await _refused(FileNotFoundError, "read_file of none", provider.read_file(ref, "absent"))


async def a_folder_is_not_a_file(provider: Provider, spec: SandboxSpec) -> None:
    """A folder is refused as by `open`, so that the caller can say which path was wrong."""
    async with _sandbox(provider, spec) as ref:
        await provider.write_file(ref, "folder/file", b"x")
        read, write = provider.read_file, provider.write_file
        await _refused(IsADirectoryError, "read_file of a folder", read(ref, "folder"))
        await _refused(IsADirectoryError, "write_file to a folder", write(ref, "folder", b"x"))
        below = write(ref, "folder/file/below", b"x")
        await _refused(FILE_ERRORS, "write_file below a file", below)
        same("the file", await provider.read_file(ref, "folder/file"), b"x")


async def files_and_outputs_of_64_mib_pass(provider: Provider, spec: SandboxSpec) -> None:
    """Repositories and data sets go in, archives and logs come out."""
    content = b"0123456789abcdef" * (4 << 20)
    async with _sandbox(provider, spec) as ref:
        await provider.write_file(ref, "large", content)
        require(await provider.read_file(ref, "large") == content, "the file came back changed")
        words = ["sh", "-c", "cat >&2; cat large"]
        ran = await provider.exec(ref, Command(words, 120, stdin=content))
        same("exit_code", ran.exit_code, 0)
        require(ran.stdout == ran.stderr == content, "an output came back changed")


async def it_is_found_by_its_name_and_by_its_tags(provider: Provider, spec: SandboxSpec) -> None:
    """Thus the reaper finds a sandbox whose creation was never registered or never answered."""
    run = uuid.uuid4().hex[:8]
    red, blue = {_TAG: run, "color": "red"}, {_TAG: run, "color": "blue"}
    async with _sandbox(provider, spec, red) as one, _sandbox(provider, spec, blue) as two:
        found = await provider.find(one.name)
        same("find(name)", found and found.id, one.id)
        same("list(both tags)", [each.id async for each in provider.list(red)], [one.id])
        listed = {each.name async for each in provider.list({_TAG: run})}
        same("the names of list(one tag)", listed, {one.name, two.name})
    require(await provider.find(one.name) is None, "find(name) shows a sandbox that has ended")
    left = [each.id async for each in provider.list({_TAG: run})]
    same("list() after the end", left, [])


async def a_name_is_given_once(provider: Provider, spec: SandboxSpec) -> None:
    """A repeated request must not make a second sandbox, which nobody would end."""
    async with _sandbox(provider, spec) as ref:
        try:
            again = await provider.create(spec, name=ref.name, tags={}, ttl=_TTL)
        except Exception as problem:  # noqa: BLE001 - the provider's own; it says what it means
            same("classify() of it", provider.classify(problem).kind, Kind.EXISTS)
            return
        if again.id == ref.id:
            return  # the answer to the first request, once more
        await provider.terminate(again.id)
        require(False, f"create() made a second sandbox called {ref.name}: {again.id}")


async def one_that_has_ended_is_gone(provider: Provider, spec: SandboxSpec) -> None:
    """`Kind.GONE` becomes `SandboxLost`, and the sample is masked; an end may be repeated."""
    async with _sandbox(provider, spec) as ref:
        require(await provider.is_alive(ref), "is_alive() is False of a sandbox that is ready")
        await provider.terminate(ref.id)
        require(not await provider.is_alive(ref), "is_alive() is True after terminate()")
        await provider.terminate(ref.id)
        try:
            await provider.exec(ref, Command(["echo"], 5))
        except Exception as problem:  # noqa: BLE001 - the provider's own; it says what it means
            same("classify() of exec()'s error", provider.classify(problem).kind, Kind.GONE)
            return
        require(False, "exec() succeeded in a sandbox that has ended")


async def one_that_never_was_has_ended(provider: Provider, spec: SandboxSpec) -> None:
    """A reaper may ask for what a killed process never created."""
    name = f"penstock-{uuid.uuid4().hex[:12]}"
    require(await provider.find(name) is None, "find() shows a sandbox that never was")
    ref = SandboxRef(name, name)
    require(not await provider.is_alive(ref), "is_alive() is True of one that never was")
    await provider.terminate(name)


async def its_time_to_live_ends_it(provider: Provider, spec: SandboxSpec) -> None:
    """The last resort: all of Penstock may be dead."""
    name = f"penstock-{uuid.uuid4().hex[:12]}"
    ref = await provider.create(spec, name=name, tags={}, ttl=1)
    try:
        while await provider.find(name) is not None:  # noqa: ASYNC110 - nothing says when it ends
            await asyncio.sleep(0.1)
    finally:
        await provider.terminate(ref.id)


async def an_error_of_no_meaning_is_retried(provider: Provider, spec: SandboxSpec) -> None:
    """`classify` gets whatever was raised, and must not raise itself."""
    for problem in (ConnectionResetError("cut"), TimeoutError(), RuntimeError("unknown")):
        verdict = provider.classify(problem)
        same(f"classify({problem!r})", verdict.kind, Kind.RETRY)


async def it_may_be_closed_twice(provider: Provider, spec: SandboxSpec) -> None:
    """Sandboxes live on; they belong to the fleet, and not to this process."""
    await provider.close()
    await provider.close()


_CHECKS = (
    it_says_what_it_is,
    another_process_makes_the_same_by_its_name,
    a_command_says_how_it_ended,
    a_command_gets_its_input_environment_and_folder,
    a_command_out_of_time_is_ended,
    a_command_does_not_wait_for_what_it_left_in_the_background,
    a_command_that_cannot_begin_ends_as_in_a_shell,
    commands_run_beside_each_other,
    files_come_back_as_they_were,
    a_missing_file_is_not_found,
    a_folder_is_not_a_file,
    files_and_outputs_of_64_mib_pass,
    it_is_found_by_its_name_and_by_its_tags,
    a_name_is_given_once,
    one_that_has_ended_is_gone,
    one_that_never_was_has_ended,
    its_time_to_live_ends_it,
    an_error_of_no_meaning_is_retried,
    it_may_be_closed_twice,
)


@asynccontextmanager
async def _sandbox(
    provider: Provider, spec: SandboxSpec, tags: Mapping[str, str] | None = None
) -> AsyncIterator[SandboxRef]:
    """A sandbox that is ready; it is ended afterwards, also if it never became ready."""
    name = f"penstock-{uuid.uuid4().hex[:12]}"
    made = await provider.create(spec, name=name, tags=tags or {_TAG: name}, ttl=_TTL)
    try:
        same("the name of what create() returned", made.name, name)
        await provider.wait_ready(made, READY_WITHIN)
        ref = await provider.open_runtime(made, READY_WITHIN)
        same("the id after open_runtime()", ref.id, made.id)
        yield ref
        await provider.close_runtime(ref)
    finally:
        await provider.terminate(made.id)


async def _sh(provider: Provider, ref: SandboxRef, words: str) -> ExecResult:
    return await provider.exec(ref, Command(["sh", "-c", words], 60))


def _ended(ran: ExecResult) -> tuple[int | None, bytes, bytes]:
    return ran.exit_code, ran.stdout, ran.stderr


async def _refused(
    kind: type[BaseException] | tuple[type[BaseException], ...], what: str, asked: object
) -> None:
    try:
        await asked  # type: ignore[misc]
    except kind:
        return
    except Exception as problem:
        raise ContractBroken(f"{what} raised {type(problem).__name__}: {problem}") from problem
    raise ContractBroken(f"{what} raised nothing")
