"""Slots for a generator whose task has a policy on versions, asked for over HTTP.

A process of its own asks for one group's slot after the other, and renews those that are held.
A killed generator's slots come back by their lease.
"""

import logging
import multiprocessing
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from buffer.errors import GeneratorError
from buffer.generator.api import Api, authorization
from buffer.generator.partial import (
    HELD,
    PARKED,
    PARTIAL,
    Signals,
    leave_interrupts_to_the_parent,
)
from buffer.generator.trajectory import Question
from ground.lua import chunks

log = logging.getLogger(__name__)

LATER: Question = {}  # no question now; one may come when the line has something to say
_WAIT = 20.0
_MOST = 500  # slots in one renewal

Group = tuple[dict[str, Any], int]  # a sample and its round
Wish = tuple[Any, int]  # an instance_id and a round


@dataclass
class _Out:
    """The questions of one slot that are under way."""

    questions: int
    interrupted: bool = False
    refused: bool = False


class Admission:
    """The slots of one crew, for the groups of its data set."""

    def __init__(self, api: Api, samples: dict[str, dict[str, Any]], signals: Signals) -> None:
        context: Any = multiprocessing.get_context("fork")
        self.line: Connection
        self.line, far = context.Pipe()
        self._api = api.another()
        self._signals = signals
        self._samples = samples
        self._out: dict[str, _Out] = {}
        self._process = context.Process(
            target=_ask_and_renew, args=(far, self.line, api, signals, os.getpid()), daemon=True
        )
        self._process.start()
        far.close()

    def questions(self, groups: Iterator[Group]) -> Iterator[Question]:
        """The questions of groups that were granted, `LATER` while none is. At the end of `groups`
        come those that wait to be made again, or to be continued."""
        wish = _wish(groups)
        while True:
            try:
                self.line.send(wish)
                while not self.line.poll():
                    yield LATER
                slot = self.line.recv()
            except (EOFError, OSError):
                raise GeneratorError("the process that asks for slots died") from None
            if isinstance(slot, str):
                raise GeneratorError(slot)
            if slot is None:
                if not self._out:
                    return
                yield LATER  # one that is under way may be interrupted, and wait then
                continue
            made = (slot["instance_id"], slot["round"])
            if made[0] is None or made == wish:  # without an instance: the wish was begun before
                wish = _wish(groups)
            yield from self._of(slot)

    def deliver(self, item: dict[str, Any], send: Callable[[dict[str, Any]], Any]) -> bool:
        """Write what is whole, and park what was interrupted: False. When the last question of a
        slot is back, what its group still lacks is another slot's."""
        id, fence = item["slot"], item["fence"]
        out, whole = self._out[id], item.get("status") != PARTIAL
        if whole:
            item["version_end"] = max(item["version_start"], self._signals.newest)
            out.refused |= send(item) is False
        else:
            out.interrupted = True
            self._park(item)
        out.questions -= 1
        if not out.questions:
            del self._out[id]
            if out.interrupted or out.refused:
                back = str(out.interrupted).lower()
                self._api.call("DELETE", f"/slots/{id}", params={"fence": fence, "back": back})
        return whole

    def end(self) -> None:
        self.line.close()
        self._process.kill()
        self._process.join()

    def _of(self, slot: dict[str, Any]) -> Iterator[Question]:
        if slot["instance_id"] is None or slot["missing"] < 1:
            return
        sample = self._samples.get(str(slot["instance_id"]))
        if sample is None:
            raise GeneratorError(
                f"instance {slot['instance_id']!r} waits to be made, and is not in input_file: "
                "generators of one task need the same data"
            )
        parts = slot["partial"][: slot["missing"]]
        self._out[slot["id"]] = _Out(slot["missing"])
        for place in range(slot["missing"]):
            held = {"slot": slot["id"], "fence": slot["fence"], "version_start": slot["newest"]}
            question = {**sample, "round": slot["round"], HELD: held}
            if place < len(parts):
                yield {**question, "uid": parts[place]["uid"], PARKED: parts[place]}
            else:
                yield {**question, "uid": uuid.uuid4().hex}

    def _park(self, item: dict[str, Any]) -> None:
        """Park at once, so that a kill loses nothing; its slot continues for its other
        questions."""
        if item["messages"]:
            body = {"fence": item["fence"], "items": [item], "go_on": True}
            try:
                self._api.call("POST", f"/slots/{item['slot']}/park", body)
            except GeneratorError:  # it is begun again from its start
                log.exception("an interrupted item was not parked")


def _wish(groups: Iterator[Group]) -> Wish | None:
    return next(((sample["instance_id"], number) for sample, number in groups), None)


def admission_for(
    buffer_url: str, task: str, samples: list[dict[str, Any]], signals: Signals
) -> Admission | None:
    """None if the task has no policy: then nobody needs slots."""
    url = f"{buffer_url.partition('/tasks/')[0].rstrip('/')}/v1/tasks/{task}"
    api = Api(url, authorization())
    if api.call("GET", "/policy") is None:
        return None
    known = {str(sample["instance_id"]): sample for sample in samples}
    return Admission(api, known, signals)


def _ask_and_renew(
    line: Connection, parents: Connection, api: Api, signals: Signals, parent: int
) -> None:
    """Answer each wish with a slot: the wish's, or one for a group that must be made again."""
    leave_interrupts_to_the_parent()
    parents.close()  # else our line would have no end when the parent is killed
    renewer = _Renewer(api.another(), signals, parent)
    threading.Thread(target=_hear_of_versions, args=(api.another(), signals), daemon=True).start()
    owner = uuid.uuid4().hex
    while True:
        try:
            wish = line.recv()
        except (EOFError, OSError):
            return
        try:
            slot: dict[str, Any] | str | None = _one_slot(api, owner, wish, renewer)
        except GeneratorError as fault:
            slot = str(fault)
        line.send(slot)


def _one_slot(
    api: Api, owner: str, wish: Wish | None, renewer: "_Renewer"
) -> dict[str, Any] | None:
    """None if nothing is wished for and nothing waits to be made."""
    named = [] if wish is None else [{"instance_id": wish[0], "round": wish[1]}]
    ask = uuid.uuid4().hex  # the same when the connection broke, and it is sent again
    while True:
        if wish is None:
            now = api.call("GET", "/versions")
            if not now or not now["again"] + now["parked"]:
                return None
        body = {"owner": owner, "wait": _WAIT, "instances": named, "ask": ask}
        found = api.call("POST", "/slots", body)
        if found is None:
            raise GeneratorError("the task's policy was removed while its rollout ran")
        for slot in found["slots"]:
            if slot["instance_id"] is None or slot["missing"] < 1:
                api.call("DELETE", f"/slots/{slot['id']}", params={"fence": slot["fence"]})
            else:
                renewer.keep(slot, found["lease"])
            return dict(slot)


def _hear_of_versions(api: Api, signals: Signals) -> None:
    while True:
        now = api.call("GET", "/versions", params={"after": signals.newest, "wait": _WAIT})
        if now is None or now["version"] is None:
            time.sleep(1.0)
        else:
            signals.published(now["version"])


class _Renewer:
    """The renewer renews what is held, all with one call."""

    def __init__(self, api: Api, signals: Signals, parent: int) -> None:
        self._api = api
        self._signals = signals
        self._parent = parent
        self._held: dict[str, str] = {}
        self._guard = threading.Lock()
        self._every = 1.0
        self._granted = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def keep(self, slot: dict[str, Any], lease: float) -> None:
        with self._guard:
            self._held[slot["id"]] = slot["fence"]
        if slot["newest"] > self._signals.newest:
            self._signals.published(slot["newest"])
        self._every = lease / 3
        self._granted.set()

    def _run(self) -> None:
        self._granted.wait()
        while os.getppid() == self._parent:  # a killed parent's slots come back
            with self._guard:
                held = [{"id": id, "fence": fence} for id, fence in self._held.items()]
            for some in chunks(held, _MOST):
                said = self._api.call("POST", "/slots/renew", {"slots": list(some)})
                if said is None:
                    continue
                self._every = said["lease"] / 3 or self._every  # the setting may have changed
                with self._guard:
                    for id in said["lost"]:  # filled, or another's
                        self._held.pop(id, None)
            time.sleep(self._every)
        os._exit(1)
