"""`BaseGenerator`: a crew of processes that answer a data set's questions.

The parent deals out one question at a time and knows who has which. A worker that
dies is replaced and its question dealt again. One that fails three times is written
as a failure, so that its group still finishes.
"""

import contextlib
import json
import logging
import multiprocessing
import random
import time
import uuid
from collections import Counter, deque
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from buffer.errors import GeneratorError, ItemRefused
from buffer.generator.admission import LATER, Admission, Group, admission_for
from buffer.generator.api import encoded, is_proxied
from buffer.generator.partial import (
    TRIES,
    Interrupted,
    Signals,
    leave_interrupts_to_the_parent,
)
from buffer.generator.sender import Sender
from buffer.generator.sessions import Sessions
from buffer.generator.trajectory import (
    Question,
    RewardFunction,
    RolloutFunction,
    answered,
    failed,
    partial_of,
)
from buffer.item import instance_key
from buffer.settings import BufferSettings
from ground.errors import SettingError
from ground.extras import needed_by
from ground.numbers import check_whole, shown

log = logging.getLogger(__name__)

SAMPLING_PARAMS: dict[str, Any] = {"top_p": 1}
_TRIES = 3
_PROGRESS_EVERY = 10.0


class BaseGenerator:
    """A generator answers every line of a JSONL file `num_repeat_per_sample` times, round after
    round."""

    def __init__(
        self,
        remote_engine_url: str,
        remote_buffer_url: str,
        num_repeat_per_sample: int = 1,
        queue_size: int = 1_000_000,
        num_process: int = 10,
        task_type: str = "math",
        max_tokens: int = 4096,
        num_repeats: int = 1,
        skip_instance_ids: list[Any] | None = None,
        interrupt_on_publish: bool = False,
    ) -> None:
        """`queue_size` is accepted for upstream's sake: questions are dealt as they are needed.

        With `interrupt_on_publish` each new version interrupts what is under way.

        With PENSTOCK_GATEWAY_URL the questions are asked there, and items have exact tokens.
        `remote_engine_url` is not used then, and nothing is interrupted.
        """
        check_whole("num_process", num_process)
        check_whole("num_repeat_per_sample", num_repeat_per_sample)
        if not isinstance(interrupt_on_publish, bool):  # the text "false" would be true
            said = f"must be true or false, not {shown(interrupt_on_publish)}"
            raise SettingError("interrupt_on_publish", said)
        self._gateway = BufferSettings.load().gateway_url
        if self._gateway and interrupt_on_publish:
            raise GeneratorError(
                "interrupt_on_publish is without use at a gateway, where answers go on under new"
                " weights by their tokens: leave it out, or unset PENSTOCK_GATEWAY_URL"
            )
        self.remote_engine_url = remote_engine_url
        self.remote_buffer_url = remote_buffer_url
        self.num_repeat_per_sample = num_repeat_per_sample
        self.num_process = num_process
        self.task_type = task_type
        self.max_tokens = max_tokens
        self.num_repeats = num_repeats
        # An id named k times is done for its first k rounds.
        self.skip_instance_ids = Counter(str(named) for named in skip_instance_ids or ())
        self._sender = Sender(remote_buffer_url)
        self._signals = Signals(on_publish=interrupt_on_publish)

    def interrupt(self) -> None:
        """Under a policy: park everything that is under way. It continues here, or in
        another generator. Callable from a signal handler, and from any thread. The rollout function
        must take a `partial`, as `query_single_turn` does."""
        self._signals.interrupt()

    def entry(
        self,
        input_file: str,
        rollout_func: RolloutFunction,
        reward_func: RewardFunction,
        num_epoch: int = 1,
    ) -> str:
        """All epochs; each delivers every instance `num_repeats` times."""
        samples = samples_of(input_file)
        rounds = range(num_epoch * self.num_repeats)
        admission = admission_for(self.remote_buffer_url, self.task_type, samples, self._signals)
        random.shuffle(samples)
        groups = self._groups(samples, rounds)
        try:
            questions = admission.questions(groups) if admission else self._all(groups)
            return self._work(questions, rollout_func, reward_func, admission)
        finally:
            if admission:
                admission.end()

    def run(
        self, input_file: str, rollout_func: RolloutFunction, reward_func: RewardFunction
    ) -> str:
        """Run one epoch."""
        return self.entry(input_file, rollout_func, reward_func)

    def send_data_to_buffer(self, data: dict[str, Any]) -> bool:
        """Write one item; tried again until the buffer has it, or has refused it for good: then
        it is False."""
        return self._sender.send(data)

    def _groups(self, samples: list[dict[str, Any]], rounds: range) -> Iterator[Group]:
        for number in rounds:
            for sample in samples:
                if number >= self.skip_instance_ids[str(sample["instance_id"])]:
                    yield sample, number

    def _all(self, groups: Iterator[Group]) -> Iterator[Question]:
        for sample, number in groups:
            for _ in range(self.num_repeat_per_sample):
                yield {**sample, "uid": uuid.uuid4().hex, "round": number}

    def _work(
        self,
        questions: Iterator[Question],
        rollout: RolloutFunction,
        reward: RewardFunction,
        admission: Admission | None,
    ) -> str:
        sampling = {**SAMPLING_PARAMS, "max_tokens": self.max_tokens}
        with needed_by("the generator of single turns"):
            import openai  # noqa: F401 - once, before the workers are forked

        sessions = None
        if self._gateway:
            sessions = Sessions(self._gateway.get_secret_value(), self.task_type, sampling)

        def put(item: dict[str, Any]) -> bool:
            """A failure has no rows, so it is written as text."""
            if sessions is None or "session" not in item:
                return self.send_data_to_buffer(item)
            return sessions.end(item)

        arguments = (self.remote_engine_url, rollout, reward, sampling, self._signals, sessions)
        crew = Crew(arguments, self.num_process)
        done, shown = 0, time.monotonic()
        try:
            for item in crew.answers(questions, admission.line if admission else None):
                if admission is None:
                    put(item)
                elif not admission.deliver(item, put):
                    continue
                done += 1
                if time.monotonic() - shown > _PROGRESS_EVERY:
                    shown = time.monotonic()
                    log.info("rollout continues", extra={"task": self.task_type, "items": done})
        finally:
            crew.end()
        log.info("rollout finished", extra={"task": self.task_type, "items": done})
        return "finished"


class Crew:
    """Worker processes, each at one question."""

    def __init__(self, arguments: tuple[Any, ...], size: int) -> None:
        # Forked, so that the user's functions need not be importable by name.
        self._context: Any = multiprocessing.get_context("fork")
        self._arguments = arguments
        self._size = size
        self._workers: dict[Connection, Any] = {}
        self._busy: dict[Connection, Question] = {}

    def answers(
        self, questions: Iterator[Question], line: Connection | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield an item for every question, as they come; an interrupted one is `partial`. After
        `LATER` the `line` says when there are more."""
        again: deque[Question] = deque()
        more = True
        while True:
            later = False
            while len(self._busy) < self._size and (again or more):
                question = again.popleft() if again else next(questions, None)
                if question is LATER:
                    later = True
                    break
                if question is None:
                    more = False
                else:
                    self._deal(question)
            if not self._busy and not later:
                return
            for ready in wait([*self._busy, *([line] if line and later else [])]):
                if ready is not line:
                    yield from self._heard(ready, again)  # type: ignore[arg-type]

    def end(self) -> None:
        """No worker outlives its crew."""
        for line, process in self._workers.items():
            line.close()
            process.kill()
            process.join()
        self._workers.clear()
        self._busy.clear()

    def _deal(self, question: Question) -> None:
        line = next((idle for idle in self._workers if idle not in self._busy), None)
        if line is None:
            line, far = self._context.Pipe()
            parents = [*self._workers, line]
            process = self._context.Process(
                target=_worker, args=(far, parents, *self._arguments), daemon=True
            )
            process.start()
            far.close()
            self._workers[line] = process
        self._busy[line] = question
        with contextlib.suppress(OSError):  # it died while idle: its line's end is heard next
            line.send(question)

    def _heard(self, line: Connection, again: deque[Question]) -> Iterator[dict[str, Any]]:
        question = self._busy.pop(line)
        try:
            item, failure = line.recv()
        except (EOFError, OSError):
            process = self._workers.pop(line)
            line.close()
            process.join()
            item, failure = None, f"its process died ({process.exitcode})"
        if isinstance(item, GeneratorError):
            raise item
        if item is not None:
            yield item
            return
        tries = question.get(TRIES, 0) + 1
        log.warning(
            "a rollout failed",
            extra={"instance": str(question["instance_id"]), "try": tries, "reason": failure},
        )
        if tries < _TRIES:
            again.append({**question, TRIES: tries})
        else:
            yield failed(question, failure)


def _worker(
    line: Connection, parents: list[Connection], engine_url: str, rollout: RolloutFunction,
    reward: RewardFunction, sampling: dict[str, Any], signals: Signals, sessions: Sessions | None,
) -> None:  # fmt: skip
    leave_interrupts_to_the_parent()
    for end in parents:  # else our line would have no end when the parent is killed
        end.close()
    from openai import DefaultHttpxClient, OpenAI

    base_url = engine_url if "/v1" in engine_url else engine_url.rstrip("/") + "/v1"
    http = DefaultHttpxClient(trust_env=is_proxied(base_url))
    client = OpenAI(api_key="test", base_url=base_url, http_client=http)
    while True:
        try:
            question = line.recv()
        except (EOFError, OSError):
            return  # the parent is gone or done
        answer: tuple[dict[str, Any] | GeneratorError | None, str]
        partial = partial_of(question, rollout, None if sessions else signals)
        try:
            session = {}
            if sessions is not None:
                client, sid = sessions.open(question)
                session = {"session": sid}
            try:
                item = answered(question, client, rollout, reward, sampling, partial, session)
            except Interrupted:
                if partial is None or not partial.interruptible:
                    raise
                item = partial.item(question)
            encoded(item)  # what cannot be sent is a failed rollout
            answer = (item, "")
        except GeneratorError as refused:  # as it would refuse every other question
            answer = (refused, "")
        except Exception as failure:  # noqa: BLE001 - told to the parent, which tries again
            answer = (None, f"{type(failure).__name__}: {failure}")
        with contextlib.suppress(OSError):  # the parent is gone: the line's end is heard next
            line.send(answer)


def samples_of(input_file: str) -> list[dict[str, Any]]:
    """The objects of a JSONL file; without an `instance_id` a line is known by its number."""
    try:
        with open(input_file, encoding="utf-8") as lines:
            samples = [
                _sample(line, f"{input_file}, line {number}")
                for number, line in enumerate(lines, 1)
                if line.strip()
            ]
    except (OSError, UnicodeDecodeError) as fault:
        raise GeneratorError(f"input_file cannot be read: {fault}") from None
    for number, sample in enumerate(samples):
        if sample.get("instance_id") is None:  # data sets may have a null for what is not there
            sample["instance_id"] = number
    known: dict[str, dict[str, Any]] = {}
    for sample in samples:
        id = instance_key(sample["instance_id"])
        if known.setdefault(id, sample) != sample:
            raise GeneratorError(
                f"input_file {input_file} has two questions with the instance_id {id!r}: their "
                "answers would be one group. Give each question its own"
            )
    return samples


def _sample(line: str, place: str) -> dict[str, Any]:
    try:
        sample = json.loads(line)
    except ValueError as fault:
        raise GeneratorError(f"input_file {place} is not JSON: {fault}") from None
    if not isinstance(sample, dict):
        raise GeneratorError(
            f"input_file {place} is not a JSON object: each line is one question, "
            'such as {"instance_id": "math_0", "prompt": [...], "label": "4"}'
        )
    if sample.get("instance_id") is not None:
        try:
            instance_key(sample["instance_id"])
        except ItemRefused as refusal:  # before its answers are generated, and then refused
            raise GeneratorError(f"input_file {place}: {refusal}") from None
    return sample
