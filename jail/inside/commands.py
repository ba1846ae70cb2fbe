"""The init of a session: it starts commands and calls on files, and says how each of them ended.

Only its client can give it orders. Every command is a fork of it that confines itself and becomes
the command, or does the call. So nothing that a program has made is looked at with init's rights.
Init reaps whatever a command leaves, and ends with all of it when its client hangs up.
"""

import _signal  # type: ignore[import-not-found]  # `signal` would look each name up as an enum
import _socket
import contextlib
import errno
import fcntl
import json
import os
import select
from collections.abc import Iterator
from typing import Any, NoReturn

from . import calls, program, wire
from .job import Job
from .levels import MOST
from .limits_passed import Passed
from .place import Refused
from .usage_meter import Meter

LONGEST = 1 << 16  # bytes of an order; a longer one is in a file
_MOST_FDS = MOST  # an order's descriptors: levels are the most
_TICK = 0.05  # seconds between two looks at a session without a cgroup
_NOT_EXECUTED, _NOT_FOUND, _FAILED = 126, 127, 125  # as shells say it
_MOST_COMPLAINED = 4096
_BACKLOG = 128
_CONTROLLING, _UNLOCK, _PEER, _SIZE = 0x540E, 0x40045431, 0x5441, 0x5414
_TERMINALS = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC


def serve(job: Job, header: dict[str, Any], dismissed: int) -> dict[str, Any]:
    """Serve until the client hangs up. `dismissed` is the process that was to be a program. It ends
    by itself, and no command waits for that. It is 0 where there was none."""
    assert job.channel is not None  # noqa: S101
    job.place.furnish(header["limits"])
    image = header.get("image")
    if image and not image["filled"]:
        job.place.start_from(image, [])
    desk = Desk(job, header, dismissed)
    desk.say({"ready": True})
    desk.furnish()  # while the client hears of it; no order is obeyed before
    desk.work()
    desk.kill_all()
    return {"status": "finished"}


class Desk:
    """The desk of one init does what is asked of its session."""

    def __init__(self, job: Job, header: dict[str, Any], dismissed: int) -> None:
        self._job, self._place, self._header = job, job.place, header
        self._dismissed = dismissed  # until it is reaped; a command may have its number then
        assert job.channel is not None  # noqa: S101
        self._line = wire.at(job.channel)
        self._complaints: dict[int, int] = {}  # by process: where one that never began says why
        self._calls: set[int] = set()  # those of them that are calls on files
        self._passed: dict[int, Passed] = {}  # by process: the limits passed since it began
        self._limit = ""  # that the session passed, for the commands that are killed for it
        self._meter = self._new_meter()
        woken, self._waking = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        _signal.set_wakeup_fd(self._waking, warn_on_full_buffer=False)
        _signal.signal(_signal.SIGCHLD, lambda *_: None)  # all that a program can wake it by
        self._woken = woken
        self._poll = select.poll()
        self._poll.register(self._line, select.POLLIN)
        self._poll.register(woken, select.POLLIN)
        self._poll.register(job.reply, select.POLLRDHUP)
        self._poll.register(job.place.server, select.POLLIN)  # may die before its signal is set

    def furnish(self) -> None:
        self._terminals = self._place.terminals()

    def work(self) -> None:
        while True:
            looks = self._job.evidence is None and not self._alone()
            events = {at for at, _ in self._poll.poll(_TICK * 1000 if looks else None)}
            if self._job.reply in events or self._place.server in events:
                self.kill_all()
                self._place.leave()
                os._exit(1)  # nobody waits any more
            if self._woken in events:
                os.read(self._woken, 1 << 12)
            self._reap()
            if looks:
                self._look()
            if self._line.fileno() in events and not self._obey():
                return

    def say(self, words: dict[str, Any], given: list[int] | None = None) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # seen in a moment
            wire.send(self._line, json.dumps(words).encode(), given or [])

    def _obey(self) -> bool:
        message, given = wire.receive(self._line, LONGEST, _MOST_FDS)
        if not message:
            return False
        try:
            order = json.loads(message)
            if order.get("in_a_file"):
                order = wire.header(at := given.pop(0))
                os.close(at)
            if "start" in order:
                self._start(order, given)
            elif "signal" in order:
                self._signal(order["signal"], order["number"])
            elif "listen" in order:
                self._listen(order["listen"])
            elif "enter" in order:
                self._enter(order["enter"], given)
            elif "freeze" in order:
                self._freeze(order["freeze"])
            else:
                self.say({"asked": order["usage"], **self._usage()})
        finally:
            for at in given:
                os.close(at)
        return True

    def _start(self, order: dict[str, Any], ends: list[int]) -> None:
        said: list[int] = []
        try:
            if size := order.get("terminal"):
                master, slave = self._terminal(size)
                said, ends[:] = [master], [slave]
            reason, complaint = os.pipe2(os.O_CLOEXEC)
            try:
                evidence = self._job.evidence
                passed = Passed(evidence) if evidence else None  # before any of it may be its own
                if (pid := os.fork()) == 0:
                    self._become(order, ends * 3 if said else ends, complaint)
            except OSError:
                os.close(reason)
                raise
            finally:
                os.close(complaint)
        except OSError as problem:
            self.say({"failed": order["start"], "why": f"{problem.strerror or problem}"})
        else:
            os.set_blocking(reason, False)
            self._complaints[pid] = reason
            if passed:
                self._passed[pid] = passed
            if "call" in order:
                self._calls.add(pid)
            self.say({"started": order["start"], "pid": pid}, said)
        finally:
            for at in said:
                os.close(at)

    def _enter(self, number: int, given: list[int]) -> None:
        """Enter an image, with another session's files: shared ones, or those copied before."""
        try:
            self._place.start_from(self._header.get("image"), given)
            self._terminals = self._place.terminals()
        except (OSError, Refused) as problem:
            self.say({"asked": number, "failed_to": f"{problem}"})
        else:
            self.say({"asked": number})

    def _freeze(self, number: int) -> None:
        """Freeze what was written so far, for a fork. What runs could still write to it."""
        if self._dismissed:
            os.kill(self._dismissed, _signal.SIGKILL)
            os.waitid(os.P_PID, self._dismissed, os.WEXITED | os.WNOWAIT)
        self._reap()
        try:
            if not self._alone():
                raise Refused("something runs in it")
            shared = self._place.freeze()
        except Refused as refusal:
            self.say({"asked": number, "refused": f"{refusal}"})
            return
        self.furnish()
        self.say({"asked": number, "refused": "", "levels": len(shared)}, shared)
        for at in shared:
            os.close(at)

    def _terminal(self, size: list[int]) -> tuple[int, int]:
        master = os.open(self._terminals, _TERMINALS)
        try:
            fcntl.ioctl(master, _UNLOCK, bytes(4))
            slave = fcntl.ioctl(master, _PEER, _TERMINALS)
            fcntl.ioctl(slave, _SIZE, calls.window(size))
        except OSError:
            os.close(master)
            raise
        return master, slave

    def _become(self, order: dict[str, Any], ends: list[int], complaint: int) -> NoReturn:
        """Become the command, in the fork; this never returns. Until it executes a program it has
        init's memory and a line to init, so no program may look into it: it stays undumpable."""
        step = "its own start"
        try:
            _signal.set_wakeup_fd(-1)
            _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
            os.setsid()
            if order.get("terminal"):
                fcntl.ioctl(ends[0], _CONTROLLING, 0)
            program.limit(self._place, self._header["limits"], self._job.joins)
            kept = calls.prepared(order, self._place)
            program.take_places([*ends, complaint, *(kept or [complaint])])
            complaint = 3
            self._place.confine()
            step = "no_user"
            self._place.become(order.get("user", ""), order.get("workdir", ""))
            step = "its own start"
            env = {**self._header["env"], **order.get("env", {})}
            program.check_environment(env)
            program.surround(self._place, env)
            self._go_home()
            if "call" in order:
                calls.answer(order, self._place.scratch, [4 + place for place in range(len(kept))])
            step = "no_folder"
            if cwd := order["cwd"] or order.get("workdir", ""):
                os.chdir(calls.expanded(cwd))
            step = "not_executable"
            # The interpreter ignores the first two; nohup, and a shell's background, the others.
            for ignored in (_signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGHUP, _signal.SIGQUIT):
                _signal.signal(ignored, _signal.SIG_DFL)
            os.execvpe(order["argv"][0], order["argv"], os.environ)  # noqa: S606
        except FileNotFoundError as problem:
            missing = step == "not_executable"
            _complain(complaint, "not_found" if missing else step, problem, order)
        except BaseException as problem:  # noqa: BLE001  what is not confined must not run
            _complain(complaint, step, problem, order)

    def _go_home(self) -> None:
        try:
            os.chdir(self._place.home)
        except OSError:  # a program has removed it, or closed it
            os.chdir("/")

    def _listen(self, number: int) -> None:
        """A socket of the session's own network, for the client: it serves what comes there."""
        try:
            listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
            try:
                listener.bind(("127.0.0.1", 0))
                listener.listen(_BACKLOG)
                port = listener.getsockname()[1]
                self.say({"asked": number, "port": port}, [listener.fileno()])
            finally:
                listener.close()
        except OSError as problem:
            self.say({"asked": number, "why": f"{problem.strerror or problem}"})

    def _signal(self, pid: int, number: int) -> None:
        """Signal a command's group, while it has not been collected: until then no other has its
        number."""
        if pid in self._complaints and 0 <= number < _signal.NSIG:
            try:
                os.killpg(pid, number)
            except ProcessLookupError:  # it has no group so far
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0]:
                pid, status = found
                if os.WIFSTOPPED(status):
                    if pid in self._calls:  # by a program, and its caller waits for it
                        os.kill(pid, _signal.SIGKILL)
                    continue
                self._calls.discard(pid)
                if pid == self._dismissed:
                    self._dismissed = 0
                if (reason := self._complaints.pop(pid, None)) is None:
                    continue
                said = b""
                with contextlib.suppress(BlockingIOError):
                    said = os.read(reason, _MOST_COMPLAINED)
                os.close(reason)
                words, limit = said.decode("utf-8", "replace"), self._limit_of(pid, status)
                self.say({"ended": pid, "status": status, "limit": limit, "said": words})

    def _limit_of(self, pid: int, status: int) -> str:
        """The limit that a command was killed for, by the kernel or by its init."""
        if (mine := self._passed.pop(pid, None)) is None:  # no cgroup: init sees limits, and kills
            return self._limit if os.WIFSIGNALED(status) else ""
        if not status or not (limit := mine.since()):
            return ""
        for other in self._passed.values():  # it is said of one command alone
            other.since()
        return limit

    def _new_meter(self) -> Meter:
        job = self._job
        return Meter(self._header["limits"], job.evidence, self._pids, job.killed)

    def _pids(self) -> Iterator[str]:
        """The processes of its commands, and what these have left."""
        return (pid for pid in self._place.pids() if pid != str(self._dismissed))

    def _alone(self) -> bool:
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._limit = ""
            return True
        return False

    def _look(self) -> None:
        """Look at the session's use if no cgroup holds it: what passes a limit ends all that runs
        in it."""
        if passed := self._meter.sample():
            self._limit = passed
            self.kill_all()
            self._meter = self._new_meter()

    def _usage(self) -> dict[str, int]:
        pids = list(self._pids())
        memory = sum(map(calls.resident, pids))
        used = os.statvfs(self._place.scratch)
        disk = (used.f_blocks - used.f_bfree) * used.f_frsize if self._place.limited else 0
        return {"memory": memory, "processes": len(pids), "disk": disk}

    def kill_all(self) -> None:
        """Kill until nobody is left, however long a busy machine takes over it."""
        while not self._alone():
            self._place.kill_all()
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # one is dead
            self._reap()


def _complain(complaint: int, step: str, problem: BaseException, order: dict[str, Any]) -> NoReturn:
    """Write a complaint to init, and where the command's errors go, as a shell does."""
    began = step in ("no_user", "no_folder", "not_executable", "not_found")
    why = getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
    with contextlib.suppress(OSError):
        of = {
            "no_user": "user",
            "no_folder": order.get("cwd") or order.get("workdir"),
        }.get(step) or (order.get("argv") or [""])[0]
        message = f"{of}: {why}" if began else f"{type(problem).__name__}: {problem}"
        said = {"why": step if began else "failed", "message": message[:1000]}
        os.write(complaint, json.dumps(said).encode())
        if began and "call" in order:
            calls.refuse(errno.EINVAL, message)
        if began:
            os.write(2, f"{message}\n".encode("utf-8", "replace"))
    os._exit((_NOT_FOUND if step == "not_found" else _NOT_EXECUTED) if began else _FAILED)
