"""A Redis whose scripts stop at a call that a test chooses, under a clock that a test sets.

Each script of the product is run as it is. Around it stands a counter: the chosen call raises an
error, as it does if Redis refuses a command. What the script did before that call stays, since
Redis undoes nothing.
"""

import contextlib
import itertools
import os
import random
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import pytest
from redis.exceptions import NoScriptError, ResponseError

from buffer.link import Link
from buffer.task import PLAIN
from ground.lua import Command, Script, load_script
from ground.redis.connect import target_of
from limiter.commands import SCRIPTS as GATE_SCRIPTS
from tests.architecture.source import FORMS, ROOT, scripts
from worker.concurrent.commands import SCRIPTS as WORK_SCRIPTS
from worker.queue.order import SCRIPTS as CLIENT_SCRIPTS

INJECTED = "injected"
_START = 1_700_000_000_000_000
_ORDER = "test:order"
# The order: the number of the call that fails, or the names of the commands that fail each
# time, with commas around them; and the time.
_WRAPPED = f"""
local real, calls = redis, 0
local fault, seconds, micros = string.match(redis.call('GET', '{_ORDER}'), '^(%S*) (%d+) (%d+)$')
local function asked(command)
  calls = calls + 1
  return tonumber(fault) == calls or string.find(fault, ',' .. command .. ',', 1, true)
end
local redis = setmetatable({{}}, {{ __index = real }})
local function refused(command)
  return {{ err = 'NOPERM {INJECTED} at call ' .. calls .. ', ' .. command }}
end
function redis.call(command, ...)
  if asked(command) then error(refused(command)) end
  if command == 'TIME' then return {{seconds, micros}} end
  return real.call(command, ...)
end
function redis.pcall(command, ...)
  if asked(command) then return refused(command) end
  return real.pcall(command, ...)
end
local function script()
"""
_END = """
end
local done, reply = pcall(script)
if not done then
  return real.error_reply(type(reply) == 'table' and reply.err or tostring(reply))
end
if type(reply) == 'table' and reply.err then return reply end
return {calls, reply}
"""


SENT = (
    GATE_SCRIPTS | WORK_SCRIPTS | CLIENT_SCRIPTS
)  # those that have forms, in the forms that are sent


def every_script(package: str) -> dict[str, Script]:
    """Each script of a package that is called, in each form that is sent, by its digest."""
    found = [script for file in scripts() for script in _forms(file, package)]
    return {script.sha: script for script in found}


def _forms(file: Any, package: str) -> Iterator[Script]:
    text, of = file.read_text(), ".".join(file.relative_to(ROOT).parts[:-2])
    if "-- REPLY" not in text or not f"{of}.".startswith(f"{package}."):
        return
    if of in ("buffer", "gateway"):
        yield load_script(of, file.stem, "full")
        if of == "buffer" and file.stem in PLAIN:
            yield load_script(of, file.stem)
        return
    forms = [load_script(of, file.stem, *form) for form in FORMS]
    sent = [script for script in forms if script.sha in SENT]
    yield from sent or forms[-1:]


def commands_of(*packages: str) -> list[str]:
    """What their scripts ask of Redis, and what a user may lack; but the time."""
    texts = [script.source for package in packages for script in every_script(package).values()]
    found = {word for text in texts for word in re.findall(r"\b(?:p?call|try)\('([A-Z]+)'", text)}
    return sorted(found - {"TIME"})


class Faulty:
    """Stands in front of a client: `with faulty.at(3): …` has the third call of a script fail."""

    def __init__(self, client: Any, *packages: str) -> None:
        self.client = client
        self.injected: set[str] = set()  # names of the scripts that a fault was tried in
        self.reached = False  # whether a script came to the fault since it was chosen
        self._scripts: dict[str, Script] = {}
        for package in packages:
            self._scripts |= every_script(package)
        self._loaded: dict[str, str] = {}  # the digest of each script with what stands around it
        self._order = ""
        self._fault: int | str = 0
        self._spared: Collection[str] = ()
        self.now = _START

    def begin(self) -> None:
        """Empty the server, and set its clock back."""
        self.client.flushdb()
        self.now = _START
        self._order = ""
        self._fault = 0

    def fail(self, fault: int | str = 0, *, spared: Collection[str] = ()) -> None:
        """From now on this call of each script fails, or each call of this command, or of
        these with a blank between them; 0: none. Scripts that are spared run to their end."""
        self._fault = fault
        self._spared = spared
        self.reached = False

    def stop_each(
        self, nth: int, office: Any, before: Callable[[Any], object], step: Callable[[Any], object]
    ) -> None:
        """Play a story again and again, each time stopped in another script, at this call of it."""
        reached = True
        while reached:
            office.begin()
            before(office)
            self.fail(nth, spared=set(self.injected))
            with contextlib.suppress(Injected):
                step(office)
            reached = self.reached
            self.fail()

    def run(self, command: Command) -> Any:
        """The reply to a command, which may be a script's."""
        return self.execute_command(*command)

    def execute_command(self, *command: Any, **options: Any) -> Any:
        script = self._script_of(command)
        if script is None:
            return self.client.execute_command(*command, **options)
        fault = 0 if script.name in self._spared else self._fault
        chosen = f",{fault.replace(' ', ',')}," if isinstance(fault, str) else str(fault)
        order = f"{chosen} {self.now // 10**6} {self.now % 10**6}"
        if order != self._order:
            self.client.set(_ORDER, order)
            self._order = order
        try:
            calls, *reply = self._evaluated(script, command)
        except ResponseError as refusal:
            if INJECTED not in str(refusal):
                raise
            self._was_stopped(script)
            raise Injected(str(refusal)) from None
        if isinstance(fault, int) and 0 < fault <= calls:
            self._was_stopped(script)  # it passed over the error
        return reply[0] if reply else None

    def _evaluated(self, script: Script, command: Command) -> Any:
        try:
            return self.client.execute_command("EVALSHA", self._wrapped(script), *command[2:])
        except NoScriptError:  # another test had the server forget all of them
            self._loaded.clear()
            return self.client.execute_command("EVALSHA", self._wrapped(script), *command[2:])

    def _was_stopped(self, script: Script) -> None:
        self.injected.add(script.name)
        self.reached = True

    def _wrapped(self, script: Script) -> str:
        if script.sha not in self._loaded:
            text = _WRAPPED + script.source + _END
            self._loaded[script.sha] = self.client.script_load(text)
        return self._loaded[script.sha]

    def _script_of(self, command: Command) -> Script | None:
        if command[0] == "EVALSHA":
            return self._scripts[command[1]]
        if command[0] == "EVAL":
            return next(each for each in self._scripts.values() if each.source == command[1])
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class FaultyLink(Link):
    """The same before a buffer, which talks to Redis by coroutines."""

    def __init__(self, faulty: Faulty) -> None:
        super().__init__(target_of(faulty.client), patience=0.0)
        self._faulty = faulty

    async def run(self, script: Script, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        return self._faulty.run(script.command(keys, args))

    async def command(self, *parts: Any) -> Any:
        return self._faulty.run(parts)

    async def commands(self, commands: Sequence[Command]) -> list[Any]:
        return [self._faulty.run(command) for command in commands]

    async def aclose(self) -> None:
        """The client is the test's."""


class Injected(ResponseError):
    """The error that a test has had a script end with."""


SEED = int(os.environ.get("PENSTOCK_TEST_SEED") or random.randrange(10**6))
# A test that has `every` stops each script at every fourth call, beginning at the seed's.
EVERY = pytest.mark.parametrize(
    "every",
    [pytest.param(4, id="a quarter"), pytest.param(1, id="all", marks=pytest.mark.soak)],
)


def faults_of(
    step: Callable[[], Any], begin: Callable[[], Any], faulty: Faulty, every: int
) -> Iterator[int]:
    """Numbers of calls, as long as the step has so many.

    The caller begins again, has that call fail, and looks at what is left.
    """
    for number in itertools.count(1 + SEED % every, every):
        begin()
        faulty.fail(number)
        with contextlib.suppress(Injected):
            step()
        reached = faulty.reached
        faulty.fail()
        if not reached:
            return
        yield number


@contextlib.contextmanager
def saying(what: str) -> Iterator[None]:
    """What fails in the block says this too."""
    try:
        yield
    except BaseException as failure:
        failure.add_note(f"{what}, with PENSTOCK_TEST_SEED={SEED}")
        raise
