"""A provider that breaks the contract, for each of the contract's checks."""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any

from tests.worker.lifecycle.cloud import CloudProvider
from worker.lifecycle import Command, ExecResult, Kind, SandboxRef, SandboxSpec, Verdict


def runs(change: Callable[[Command], Command]) -> type[CloudProvider]:
    class Runs(CloudProvider):
        async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
            return await super().exec(ref, change(command))

    return Runs


def ends(change: Callable[[ExecResult], ExecResult]) -> type[CloudProvider]:
    class Ends(CloudProvider):
        async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
            return change(await super().exec(ref, command))

    return Ends


def reads(change: Callable[[bytes], bytes], otherwise: Any = None) -> type[CloudProvider]:
    class Reads(CloudProvider):
        async def read_file(self, ref: SandboxRef, path: str) -> bytes:
            try:
                return change(await super().read_file(ref, path))
            except OSError:
                if otherwise is None:
                    raise
                raise otherwise from None

    return Reads


class AnotherScope(CloudProvider):
    scope = "mine"


class ScopeOfOneProcess(CloudProvider):
    @property
    def scope(self) -> str:
        return f"{self.name}:{id(self)}"


class WaitsForAll(CloudProvider):
    """Until the outputs are closed, as a pipe's reader does."""

    async def exec(self, ref: SandboxRef, command: Command) -> ExecResult:
        waits = command if "hold" not in command.argv[-1] else replace(command, argv=["sleep", "9"])
        return await super().exec(ref, waits)


class ListsAll(CloudProvider):
    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxRef]:
        async for each in super().list({}):
            yield each


class NamesTwice(CloudProvider):
    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        made = 0 if await self.find(name) is None else 1
        ref = await super().create(spec, name=name + "x" * made, tags=tags, ttl=ttl)
        return replace(ref, name=name)


class SeesAllAlive(CloudProvider):
    async def is_alive(self, ref: SandboxRef) -> bool:
        return True


class LivesOn(CloudProvider):
    async def create(
        self, spec: SandboxSpec, *, name: str, tags: Mapping[str, str], ttl: float
    ) -> SandboxRef:
        return await super().create(spec, name=name, tags=tags, ttl=600)


class AllIsFatal(CloudProvider):
    def classify(self, problem: BaseException) -> Verdict:
        return Verdict(Kind.FATAL)


class ClosesOnce(CloudProvider):
    closed = 0

    async def close(self) -> None:
        self.closed += 1
        assert self.closed != 2


FAULTY_PROVIDERS: dict[str, type[CloudProvider]] = {
    "it_says_what_it_is": AnotherScope,
    "another_process_makes_the_same_by_its_name": ScopeOfOneProcess,
    "a_command_says_how_it_ended": ends(lambda ran: replace(ran, stderr=b"")),
    "a_command_gets_its_input_environment_and_folder": runs(lambda asked: replace(asked, cwd="")),
    "a_command_out_of_time_is_ended": runs(lambda asked: replace(asked, timeout=600)),
    "a_command_does_not_wait_for_what_it_left_in_the_background": WaitsForAll,
    "a_command_that_cannot_begin_ends_as_in_a_shell": ends(lambda ran: replace(ran, exit_code=1)),
    "commands_run_beside_each_other": ends(lambda ran: replace(ran, stdout=b"one\n")),
    "files_come_back_as_they_were": reads(lambda content: content.replace(b"\n", b"\r\n")),
    "a_missing_file_is_not_found": reads(bytes, RuntimeError("500")),
    "a_folder_is_not_a_file": reads(bytes, FileNotFoundError()),
    "files_and_outputs_of_64_mib_pass": reads(lambda content: content[: 16 << 20]),
    "it_is_found_by_its_name_and_by_its_tags": ListsAll,
    "a_name_is_given_once": NamesTwice,
    "one_that_has_ended_is_gone": SeesAllAlive,
    "one_that_never_was_has_ended": SeesAllAlive,
    "its_time_to_live_ends_it": LivesOn,
    "an_error_of_no_meaning_is_retried": AllIsFatal,
    "it_may_be_closed_twice": ClosesOnce,
}
