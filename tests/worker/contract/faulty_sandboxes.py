"""A sandbox that keeps the contract, and one that breaks it for each of the contract's checks."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from jail.fusion.wire import body_of
from tests.jail.fusion.plain_fusion import ran
from worker import CodeRequest, CodeResult, SandboxBroken, SandboxUnfit


class Honest:
    """Runs Python here, and isolates nothing."""

    name, languages = "honest", frozenset({"python"})

    def __init__(self) -> None:
        self.closed = 0

    async def run(self, request: CodeRequest) -> CodeResult:
        if request.language not in self.languages:
            raise SandboxUnfit(f"not {request.language}", reason="language")
        result = CodeResult.read(await asyncio.to_thread(ran, self.put(request)))
        more: dict[str, Any] = {"correlation_id": request.correlation_id, "running_seconds": 0.1}
        return self.answer(result.bounded().model_copy(update=more))

    def put(self, request: CodeRequest) -> dict[str, Any]:
        asked: dict[str, Any] = json.loads(body_of(request))
        return asked

    def answer(self, result: CodeResult) -> CodeResult:
        return result

    async def close(self) -> None:
        self.closed += 1


class Hangs(Honest):
    async def run(self, request: CodeRequest) -> CodeResult:
        await asyncio.Event().wait()
        raise AssertionError


def answers(change: Callable[[CodeResult], CodeResult]) -> type[Honest]:
    return type("Answers", (Honest,), {"answer": lambda _, result: change(result)})


def puts(**changes: Callable[[Any], Any]) -> type[Honest]:
    """The program gets something else than was asked for."""

    def put(self: Honest, request: CodeRequest) -> dict[str, Any]:
        asked = Honest.put(self, request)
        return asked | {name: change(asked[name]) for name, change in changes.items()}

    return type("Puts", (Honest,), {"put": put})


def having(**attributes: Any) -> type[Honest]:
    return type("Having", (Honest,), attributes)


def with_run(**changes: Any) -> Callable[[CodeResult], CodeResult]:
    def change(result: CodeResult) -> CodeResult:
        assert result.run_result is not None
        return result.model_copy(
            update={"run_result": result.run_result.model_copy(update=changes)}
        )

    return change


def raises_on_failure(result: CodeResult) -> CodeResult:
    if not result.ok:
        raise SandboxBroken("it failed", reason="failed")
    return result


def is_the_programs_fault(result: CodeResult) -> CodeResult:
    return result.model_copy(update={"error_kind": "user", "error_reason": "exit"})


class Unbounded(Honest):
    async def run(self, request: CodeRequest) -> CodeResult:
        return CodeResult.read(await asyncio.to_thread(ran, self.put(request)))


class ReusesItsFolder(Honest):
    async def run(self, request: CodeRequest) -> CodeResult:
        self.seen = getattr(self, "seen", [])
        result = await super().run(request)
        self.seen.append("left")
        return with_run(stdout=f"{self.seen[:-1]}\n")(result)


class RunsAnyLanguage(Honest):
    async def run(self, request: CodeRequest) -> CodeResult:
        return await super().run(request.model_copy(update={"language": "python"}))


class DeafToCancelling(Honest):
    async def run(self, request: CodeRequest) -> CodeResult:
        try:
            return await super().run(request)
        except asyncio.CancelledError:
            raise SandboxBroken("it was interrupted", reason="interrupted") from None


class ClosesOnce(Honest):
    async def close(self) -> None:
        assert self.closed == 0, "closed already"
        self.closed += 1


FAULTY_SANDBOXES: dict[str, Callable[[], Any]] = {
    "it_says_what_it_is": having(languages={"python"}),
    "a_program_that_succeeds_is_a_success": answers(
        lambda result: result.model_copy(update={"running_seconds": 0.0})
    ),
    "a_program_that_fails_is_a_result": answers(raises_on_failure),
    "a_traceback_reaches_the_caller": answers(with_run(stderr="")),
    "a_program_that_crashes_is_a_result": answers(raises_on_failure),
    "a_program_out_of_time_hits_a_limit": answers(is_the_programs_fault),
    "output_before_the_time_limit_is_kept": answers(with_run(stdout="")),
    "memory_has_a_limit": puts(memory_limit_MB=lambda _: -1),
    "output_is_bounded": Unbounded,
    "stdin_arrives_exactly": puts(stdin=lambda text: text and text.replace("\r\n", "\n")),
    "a_program_without_stdin_reads_nothing": puts(stdin=lambda text: text or "none"),
    "code_arrives_exactly": puts(code=lambda code: code.encode("ascii", "replace").decode()),
    "output_that_is_not_text_is_a_result": answers(with_run(stdout="")),
    "files_go_in_and_come_back": answers(lambda result: result.model_copy(update={"files": {}})),
    "a_program_finds_nothing_of_the_last": ReusesItsFolder,
    "programs_run_beside_each_other": answers(
        lambda result: result.model_copy(update={"correlation_id": ""})
    ),
    "a_language_that_it_lacks_is_refused": RunsAnyLanguage,
    "a_cancelled_program_stops_nothing_else": DeafToCancelling,
    "what_it_says_beside_the_protocol_is_right": having(outlives=lambda *_: float("inf")),
    "a_session_keeps_its_state_to_itself": having(keeps_sessions=True),
    "it_may_be_closed_twice": ClosesOnce,
    "a_dead_back_end_is_no_result": Honest,
}
