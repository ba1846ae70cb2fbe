"""The jail's init: runs the program's steps, holds it to its limits, reports what happened.

It is out of the program's reach, at the level `ns` as process 1 of a process namespace. When a step
ends it kills all that is alive, before it writes a result.
"""

import _socket
import contextlib
import os
import select
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from . import cases, commands, files, program, verdict, wire
from .job import CASES, COMMANDS, PROGRAM, Job
from .limits_passed import Evidence, kills_on_machine
from .place import Place, Refused
from .running import Running
from .time_limit import TimeLimit
from .usage_meter import Meter
from .wire import Socket

_MOST_FDS = 16
_LONGEST = 16


def main(place: Place, line: Socket, ahead: bool) -> None:
    """Everything between the clone and the end of an init; it never returns."""
    first = _prepare(place, line, ahead)
    job = _wait_for(place, line)
    if isinstance(first, Exception):  # a full disk, say, which may have room by now
        again = _prepare(place, line, ahead)
        first = first if isinstance(again, Exception) else again
    report, blobs = _run(job, first)
    # Leave first: the room that a program took is usually free when its client has the report.
    nothing_left = place.leave()
    wire.write(job.reply, wire.pack(report, blobs))
    os._exit(0 if nothing_left else 1)


def _prepare(place: Place, line: Socket, ahead: bool) -> Running | Exception | None:
    """Do what can be done before a program comes. What fails is reported to the program's
    client."""
    try:
        place.enter(line)
        first = _fork_ahead(place) if ahead else None
        place.build()
        if first:
            first.line.send(program.BUILT)
    except Exception as problem:  # noqa: BLE001
        return problem
    return first


def _wait_for(place: Place, line: Socket) -> Job:
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(place.server, select.POLLIN)
    ready = {at for at, _ in poll.poll()}
    message, fds = wire.receive(line, _LONGEST, _MOST_FDS, _socket.MSG_DONTWAIT)
    if place.server in ready or not message:
        place.leave()
        os._exit(0)  # no program will come
    line.close()
    request, reply, *rest = fds
    what = message.decode()
    channel = None if what == PROGRAM else rest.pop(0)
    evidence = Evidence(*rest[:5]) if rest else None
    killed = 0 if evidence else kills_on_machine()
    return Job(request, reply, what, channel, rest[5:], evidence, place, killed)


def _run(
    job: Job, first: Running | Exception | None
) -> tuple[dict[str, Any], list[bytes | bytearray]]:
    try:
        if isinstance(first, Exception):
            raise first
        request = os.pread(job.request, os.fstat(job.request).st_size, 0)
        header, (stdin, *given) = wire.unpack(request)
        program.check_environment(header["env"])
        if job.evidence:
            within = job.evidence._replace(limit=header["limits"]["memory"])
            job = job._replace(evidence=within)
        if first and job.what in (CASES, COMMANDS):
            _dismiss(first)
        if job.what == CASES:
            if first:
                os.waitpid(first.pid, 0)
            return cases.serve(job, header, given), []
        if job.what == COMMANDS:
            return commands.serve(job, header, first.pid if first else 0), []
        job.place.furnish(header["limits"])
        files.write(job.place, header["files"], given)
        for name in header["executable"]:
            job.place.allow_to_run(name)
        report, blobs = _run_steps(job, header, stdin, first or _forked(job.place))
        made, too_many = files.matching(job.place, header["made"])
        names, most = header["fetch"] + made, header["limits"]["fetched"]
        fetched, refused = files.fetch(job.place, names, most)
        report |= {"files": list(fetched), "refused_files": too_many | refused}
        return report, [*blobs, *fetched.values()]
    except Refused as refusal:
        return {"status": "refused", "error": str(refusal)}, []
    except Exception as problem:  # noqa: BLE001  the client must get any error
        return {"status": "infrastructure", "error": f"{type(problem).__name__}: {problem}"}, []


def _run_steps(
    job: Job, header: dict[str, Any], stdin: bytes, running: Running
) -> tuple[dict[str, Any], list[bytes | bytearray]]:
    """Compile, then run; a step that fails is the last."""
    results: list[dict[str, Any]] = []
    blobs: list[bytes | bytearray] = []
    status = "finished"
    for number, step in enumerate(header["steps"]):
        if results:
            running = _forked(job.place)
            if step["argv"][0].startswith("./"):
                job.place.allow_to_run(step["argv"][0])
        meter = Meter({**header["limits"], **step}, job.evidence, job.place.pids, job.killed)
        names = ["stdout", "stderr"]
        last = verdict.LastWord() if step.get("mark") else None
        if last:
            names.insert(0, "answer")
            running.streams = {last.ours: bytearray(), **running.streams}
        given = stdin if step is header["steps"][-1] else b""
        _begin(running, job, number, given, [last.theirs] if last else [])
        time_limit = TimeLimit(running.started, step["wall"], step.get("patient", False))
        _watch(running, job, meter, step, time_limit, header["limits"]["output"])
        result = verdict.close(running, meter, job.evidence)
        result["marked"] = not last or last.read(running.streams[last.ours])
        result["streams"] = names
        results.append(result)
        blobs += running.streams.values()
        status = result["status"]
        if status != "finished" or result["return_code"]:
            break
    return {"status": status, "steps": results}, blobs


def _fork_ahead(place: Place) -> Running:
    """A process that waits to become a program: made before there is one, used for one."""
    pipes = [os.pipe() for _ in range(3)]
    ours, theirs = wire.pair()
    pid = os.fork()
    if pid == 0:
        raise program.Begun(
            partial(program.become, place, theirs.detach(), [end for _, end in pipes])
        )
    theirs.close()
    for end, other in pipes:
        os.close(other)
        os.set_blocking(end, False)
    out, err, complaint = (end for end, _ in pipes)
    return Running(pid, {out: bytearray(), err: bytearray()}, complaint, ours)


def _forked(place: Place) -> Running:
    """Fork a program's process in a place that is built."""
    running = _fork_ahead(place)
    running.line.send(program.BUILT)
    return running


def _dismiss(running: Running) -> None:
    """Let a clone that waits for an order end, because none will come."""
    running.line.close()
    for end in (*running.streams, running.complaint):
        os.close(end)


def _begin(running: Running, job: Job, number: int, stdin: bytes, marks: Sequence[int]) -> None:
    order = program.ORDER.pack(number, bool(stdin), job.channel is not None, bool(marks))
    channel = [*marks] if job.channel is None else [job.channel]
    given = [job.request, *([files.sealed(stdin)] if stdin else []), *channel, *job.joins]
    try:
        wire.send(running.line, order, given)
    except (BrokenPipeError, ConnectionResetError) as gone:
        raise RuntimeError(verdict.complaint(running) or gone) from None
    running.line.close()
    running.started = time.monotonic()
    for at in channel:
        os.close(at)


def _watch(
    running: Running, job: Job, meter: Meter, step: dict[str, Any], limit: TimeLimit, output: int
) -> None:
    """Watch until the program has ended or passed a limit; then nothing of it is left alive."""
    ended = os.pidfd_open(running.pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(job.reply, select.POLLRDHUP)
    poll.register(job.place.server, select.POLLIN)  # may die before its death signal is set
    for stream in running.streams:
        poll.register(stream, select.POLLIN)
    try:
        while running.wait_status is None and not running.verdict:
            _await_event(poll, limit.next_look, running, job, output)
            now = time.monotonic()
            looks = now >= limit.next_look
            if looks:
                job.look(running, meter, step.get("compiles", False))
                limit.look(now)
            _reap(running)
            if looks and running.wait_status is None and limit.is_over(now, meter):
                running.verdict = running.verdict or "time_limit"
        if not running.verdict and (meter.processes_peak > 1 or _anyone_left()):
            running.verdict = meter.sample()  # it may have grown and ended between two looks
    finally:
        _kill_all(running, job.place)
    for stream in running.streams:
        while running.take(stream, output):
            pass
    os.close(ended)


def _await_event(poll: select.poll, until: float, running: Running, job: Job, output: int) -> None:
    """Take what the program prints. Does not return if the client or the server is gone."""
    for at, _ in poll.poll(max(0, until - time.monotonic()) * 1000 + 0.5):
        if at in (job.reply, job.place.server):
            _kill_all(running, job.place)
            job.place.leave()
            os._exit(1)  # nobody waits any more
        elif at in running.streams and not running.take(at, output):
            poll.unregister(at)


def _reap(running: Running) -> None:
    """Collect the dead."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == running.pid:
                running.wait_status = found[1]


def _anyone_left() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill_all(running: Running, place: Place) -> None:
    """Kill until nobody is left, however long a busy machine takes over it.

    For one that is stuck in the kernel the client's patience ends first, and with it this init.
    """
    with contextlib.suppress(ChildProcessError):
        while True:
            place.kill(running.pid)
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)  # one is dead
            _reap(running)
