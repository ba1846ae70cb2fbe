"""A Redis whose scripts stop at a call that a test chooses, under a clock that a test sets.

Each script of the product is run as it is. Around it stands a counter: the chosen call raises an
error, as it does if Redis refuses a command. What the script did before that call stays, since
Redis undoes nothing.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

from redis.exceptions import ResponseError

from ground import Script, load_script
from ground.lua import Command
from tests.architecture.source import ROOT, scripts

INJECTED = "injected"
_START = 1_700_000_000_000_000
_CLOCK, _FAULT = "test:clock", "test:fault"
# `fault`: the number of the call that fails, or the name of the command that fails each time.
_WRAPPED = f"""
local real, calls, fault = redis, 0, redis.call('GET', '{_FAULT}')
local function asked(command)
  calls = calls + 1
  return fault and (tonumber(fault) == calls or fault == command)
end
local function clock() return real.call('HMGET', '{_CLOCK}', 's', 'us') end
local redis = setmetatable({{}}, {{ __index = real }})
local function refused(command)
  return {{ err = 'NOPERM {INJECTED} at call ' .. calls .. ', ' .. command }}
end
function redis.call(command, ...)
  if asked(command) then error(refused(command)) end
  if command == 'TIME' then return clock() end
  return real.call(command, ...)
end
function redis.pcall(command, ...)
  if asked(command) then return refused(command) end
  return real.pcall(command, ...)
end
local function script()
"""
_END = f"""
end
local done, reply = pcall(script)
real.call('RPUSH', '{_FAULT}:calls', calls)
if done then return reply end
return real.error_reply(type(reply) == 'table' and reply.err or tostring(reply))
"""


def every_script(package: str) -> dict[str, Script]:
    """Each script of a package that is called, in each of its forms, by its digest."""
    found = [script for file in scripts() for script in _forms(file, package)]
    return {script.sha: script for script in found}


def _forms(file: Any, package: str) -> Iterator[Script]:
    text, of = file.read_text(), ".".join(file.relative_to(ROOT).parts[:-2])
    if "-- REPLY" not in text or not f"{of}.".startswith(f"{package}."):
        return
    for form in ("", *re.findall(r"^-- include: \S+ or (\w+)\.lua$", text, re.MULTILINE)):
        yield load_script(of, file.stem, form)


class Faulty:
    """Stands in front of a client: `with faulty.at(3): …` has the third call of a script fail."""

    def __init__(self, client: Any, *packages: str) -> None:
        self.client = client
        self.injected: set[str] = set()  # names of the scripts that a fault was tried in
        self._scripts: dict[str, Script] = {}
        for package in packages:
            self._scripts |= every_script(package)
        self._texts = {
            sha: _WRAPPED + script.source + _END for sha, script in self._scripts.items()
        }
        self._fault: int | str = 0
        self.now = _START

    def begin(self) -> None:
        """Empty the server, and set its clock back."""
        self.client.flushdb()
        self.now = _START
        self._fault = 0

    def fail(self, fault: int | str = 0) -> None:
        """From now on this call of each script fails, or each call of this command; 0: none."""
        self._fault = fault

    def run(self, command: Command) -> Any:
        """The reply to a command, which may be a script's."""
        return self.execute_command(*command)

    def execute_command(self, *command: Any, **options: Any) -> Any:
        script = self._script_of(command)
        if script is None:
            return self.client.execute_command(*command, **options)
        self.client.hset(_CLOCK, mapping={"s": self.now // 10**6, "us": self.now % 10**6})
        self.client.delete(_FAULT, f"{_FAULT}:calls")
        if self._fault:
            self.client.set(_FAULT, self._fault)
        try:
            reply = self.client.execute_command("EVAL", self._texts[script.sha], *command[2:])
        except ResponseError as refusal:
            if INJECTED not in str(refusal):
                raise
            self.injected.add(script.name)
            raise Injected(str(refusal)) from None
        if isinstance(self._fault, int) and 0 < self._fault <= self.calls:
            self.injected.add(script.name)  # it passed over the error
        return reply

    @property
    def calls(self) -> int:
        """How many calls the last script made, if it came to its end."""
        return int(self.client.lindex(f"{_FAULT}:calls", -1) or 0)

    def _script_of(self, command: Command) -> Script | None:
        if command[0] == "EVALSHA":
            return self._scripts[command[1]]
        if command[0] == "EVAL":
            return next(each for each in self._scripts.values() if each.source == command[1])
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)


class Injected(ResponseError):
    """The error that a test has had a script end with."""


def faults_of(step: Any, begin: Any, faulty: Faulty) -> Iterator[int]:
    """Numbers of calls, from the first, as long as the step has so many.

    The caller begins again, has that call fail, and looks at what is left.
    """
    for number in itertools.count(1):
        begin()
        faulty.fail(number)
        try:
            step()
        except Injected:
            faulty.fail()
            yield number
        else:
            faulty.fail()
            if number > faulty.calls:
                return
            yield number  # a pcall's error, which the script passed over
