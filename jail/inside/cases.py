"""The jail's init, where a program runs on case after case: it alone says how each of them ended.

It is outside the namespace of their processes, whose first one, the template, forks them. It
gives each case clean folders, holds it to its limits, and hears of the next one from its client.
A jail that a case has driven over a limit of memory, processes or time is not used for another.
"""

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from . import files, levels, program, root, syscalls, template, verdict, wire
from .job import Job
from .namespaces import Namespaces
from .running import Running
from .time_limit import TimeLimit
from .usage_meter import Meter
from .verdict import facts

_LONGEST_ORDER = 1 << 16
_MOST_FDS = 3  # its input, its files, and the stdout of one whose output another program reads
_CHILD_ENDED = int(signal.SIGCHLD)
_COMPLAINT_SIZE = 4096


def serve(job: Job, header: dict[str, Any], contents: list[bytes]) -> dict[str, Any]:
    """Serve until the client has no more cases, or the jail is spoilt."""
    _put_program(header["files"], contents, set(header["executable"]))
    job.place.furnish(header["limits"])
    runner = CaseRunner(job, header)
    while (order := runner.next_order()) and runner.run(*order):
        pass
    return {"status": "finished"}


def _put_program(names: list[str], contents: list[bytes], executable: set[str]) -> None:
    """Put the program's files into a folder of its own, which nobody can write to after that."""
    size = sum(map(len, contents)) + (len(names) + 64 << 13)
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    syscalls.mount("program", root.PROGRAM, "tmpfs", flags, f"size={size},mode=755")
    for name, content in zip(names, contents, strict=True):
        path = f"{root.PROGRAM}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "xb") as file:
            file.write(content)
        if name in executable:
            os.chmod(path, 0o755)  # noqa: S103  the folder is read-only in a moment
    read_only = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY
    syscalls.mount("none", root.PROGRAM, None, read_only | flags)


class Ends:
    """The pipes of one case: what it prints, and a script's last word, if it has to come to its
    end. The ends that are read here never block; the case gets the others."""

    def __init__(self, prints: bool, marks: bool, check: bytes) -> None:
        pipes = [os.pipe() for _ in range(1 + prints)]
        for end, _ in pipes:
            os.set_blocking(end, False)
        self._last = verdict.LastWord(check) if marks else None
        self.names = ["stdout", "stderr"][not prints :]
        self.theirs = [end for _, end in pipes]
        ours = [end for end, _ in pipes]
        if self._last:
            self.names.insert(0, "answer")
            self.theirs.append(self._last.theirs)
            ours.insert(0, self._last.ours)
        self.streams = {end: bytearray() for end in ours}  # stderr is the last one

    def are_marked(self) -> bool:
        return not self._last or self._last.read(self.streams[self._last.ours])

    def close(self) -> None:
        for end in self.streams:
            os.close(end)


class CaseRunner:
    """Runs cases for a client: the template forks their processes, and each has clean folders."""

    def __init__(self, job: Job, header: dict[str, Any]) -> None:
        assert isinstance(job.place, Namespaces) and job.channel is not None  # noqa: S101, PT018
        self._job, self._place, self._channel = job, job.place, wire.at(job.channel)
        self._limits, self._script = header["limits"], header["script"]
        self._line, theirs = wire.pair()
        self._saying, saying = os.pipe()
        os.set_blocking(self._saying, False)
        self._pid, self._pidfd = syscalls.clone(syscalls.NEW_PID, _CHILD_ENDED)
        if self._pid == 0:
            part = self._place, theirs.detach(), saying, job.joins, header
            raise program.Begun(partial(template.serve, *part))
        theirs.close()
        os.close(saying)
        self._over = self._secluded = False
        self._clean = self._state()

    def _state(self) -> list[object]:
        """The marks of what a case can change in empty folders, and cannot change back.

        What it undoes within one tick of the clock leaves nothing for the next one to see.
        """
        found: list[object] = []
        # The last two are where those lie, on the file system of all.
        for folder in (*root.WRITABLE, root.SCRATCH, levels.FIRST):
            with contextlib.suppress(OSError):  # it has another name by now
                seen = os.stat(folder)
                found += seen.st_ctime_ns, seen.st_mtime_ns, seen.st_mode, seen.st_size
                found += os.listxattr(folder)
        return found

    def _put_files(self, at: int) -> None:
        header, contents = wire.unpack(os.pread(at, os.fstat(at).st_size, 0))
        os.close(at)
        files.write(self._place, header["files"], contents)

    def next_order(self) -> tuple[dict[str, Any], list[int]] | None:
        poll = self._poll()
        poll.register(self._channel, select.POLLIN | select.POLLRDHUP)
        self._wait(poll, None)
        message, fds = wire.receive(self._channel, _LONGEST_ORDER, _MOST_FDS)
        return (json.loads(message), fds) if message else None

    def run(self, order: dict[str, Any], given: list[int]) -> bool:
        """Run one case; return False if the jail cannot serve another."""
        if order["files"]:
            self._put_files(given.pop(1))
        evidence = self._job.evidence
        counted = evidence.forget_peak() if evidence else False
        limits = {**self._limits, "cpu": order["cpu"]}
        meter = Meter(limits, evidence, self._pids_of_case, self._job.killed)
        check = order["check"].encode(errors="surrogatepass")
        ends = Ends(prints=not order["stdout"], marks=order["mark"], check=check)
        running = Running(self._pid, ends.streams, self._saying, self._line)
        running.started = time.monotonic()
        ends_well = template.MARKS if order["mark"] else b""
        if check or order["calls"]:
            ends_well = template.CHECK if check else template.CALLS
        self._begin(order["script"] or self._script, ends_well, [*given, *ends.theirs])
        limit = TimeLimit(running.started, order["wall"], order["patient"])
        used = self._watch(running, meter, limit)
        report = self._account(running, meter, used, counted, order["cpu"])
        report["marked"], report["streams"] = ends.are_marked(), ends.names
        report["spoilt"] = self._over or bool(evidence and evidence.passed())
        wire.write(self._channel.fileno(), wire.pack(report, [*ends.streams.values()]))
        ends.close()
        return not report["spoilt"] and self._clear()

    def _account(
        self, running: Running, meter: Meter, used: tuple[float, int], counted: bool, cpu: float
    ) -> dict[str, Any]:
        """How it ended, and what it used. The template, which waited for it, knows its processor
        time; the kernel, where it has `counted`, its memory. A case that has used more `cpu` than
        it may has passed its limit, also if it ended before anybody looked.
        """
        duration, evidence = time.monotonic() - running.started, self._job.evidence
        meter.close(*used, evidence.memory_peak() if evidence and counted else 0)
        if meter.cpu > cpu:
            running.verdict = running.verdict or "time_limit"
        if running.gave_way and evidence:
            evidence.take_back()
        return facts(running, meter, evidence, duration)

    def _clear(self) -> bool:
        """The folders for the next case: new ones, if this one has changed them."""
        if self._state() != self._clean:
            self._place.renew(self._limits)
            self._clean = self._state()
        return True

    def _begin(self, script: str, ends_well: bytes, ends: list[int]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # seen in a moment
            wire.send(self._line, script.encode() + b"\0" + ends_well, ends)
        for at in ends:
            os.close(at)

    def _pids_of_case(self) -> Iterator[str]:
        """The processes of a case as /proc numbers them. That /proc is the jail's, until the
        template has mounted that of its own namespace over it: there the template is process 1, and
        init is not. Every other number may be a case's, even the one by which init knows the
        template."""
        if self._secluded or not os.path.exists("/proc/self"):
            self._secluded = True
            return self._place.pids()
        return (pid for pid in self._place.pids() if pid != str(self._pid))

    def _watch(self, running: Running, meter: Meter, limit: TimeLimit) -> tuple[float, int]:
        """Watch a case until it has ended or passed a limit; return the seconds and the memory that
        it used.

        What a short one prints waits in its pipes for its end, and wakes nobody.
        """
        poll = self._poll()
        poll.register(self._channel, select.POLLRDHUP)
        poll.register(self._line, select.POLLIN)
        used: tuple[int, float, int] | None = None
        looked = False
        while used is None and not running.verdict:
            for at in self._wait(poll, limit.next_look):
                if at == self._line.fileno():
                    used = self._hear(running)
                elif not running.take(at, self._limits["output"]):
                    poll.unregister(at)
            now = time.monotonic()
            if used is None and now >= limit.next_look:
                if not looked:
                    for stream in running.streams:
                        poll.register(stream, select.POLLIN)
                looked = True
                self._job.look(running, meter)
                limit.look(now)
                if limit.is_over(now, meter):
                    running.verdict = running.verdict or "time_limit"
        if used is None:
            meter.sample()  # for what it has used until now
            self._end()
        for stream in running.streams:
            while running.take(stream, self._limits["output"]):
                pass
        running.wait_status, cpu, memory = used or (None, 0.0, 0)
        return cpu, memory

    def _hear(self, running: Running) -> tuple[int, float, int] | None:
        """The template's report on the case that has ended; nothing if it was killed as well."""
        said = b""
        with contextlib.suppress(ConnectionResetError):
            said = self._line.recv(template.REPORT.size)
        failed = b""
        with contextlib.suppress(BlockingIOError):
            failed = os.read(self._saying, _COMPLAINT_SIZE)
        passed = self._job.evidence.passed() if self._job.evidence else None
        if failed or not (said or passed):
            raise RuntimeError(failed[1:].decode(errors="replace") or "the template was killed")
        if said:
            status, cpu, memory = template.REPORT.unpack(said)
            return status, cpu, memory
        running.verdict = passed
        return None

    def _end(self) -> None:
        """Kill the template, and with it whatever the case has started."""
        self._over = True
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._job.reply, select.POLLRDHUP)
        poll.register(self._place.server, select.POLLIN)  # may die before its death signal is set
        return poll

    def _wait(self, poll: select.poll, until: float | None) -> list[int]:
        """Wait until something can be read, and return it. Does not return if the client or the
        server is gone."""
        ready = poll.poll(None if until is None else max(0, until - time.monotonic()) * 1000 + 0.5)
        for at, event in ready:
            hung_up = at == self._channel.fileno() and not event & select.POLLIN
            if hung_up or at in (self._job.reply, self._place.server):
                os._exit(1)  # nobody waits any more; all that is in the jail ends with its init
        return [at for at, _ in ready]
