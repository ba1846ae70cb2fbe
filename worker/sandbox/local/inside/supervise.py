"""The jail's init: runs the program's steps, holds it to its limits, reports what happened.

It is out of the program's reach, at the level `ns` as process 1 of a process namespace, and
whatever is alive when a step ends dies by its hand before a result is written.
"""

import contextlib
import json
import os
import select
import socket
import time
from typing import Any, NamedTuple

from . import files, program, wire
from .evidence import Evidence
from .meter import Meter
from .place import Place, Refused
from .verdict import Running, close

_TICK = 0.02
_CHUNK = 1 << 16
_LONGEST_REAP = 5.0


class Job(NamedTuple):
    """What the fork server hands to an init: the client's descriptors."""

    request: int
    reply: int
    session: bool
    for_program: list[int]  # a session's channel first, then what it joins its cgroups by
    evidence: Evidence | None
    place: Place


def main(place: Place, line: socket.socket) -> None:
    """Everything between the clone and the end of an init; it never returns."""
    problem = ""
    try:
        place.enter()
        first = _fork_ahead(place)
    except Exception as refusal:  # noqa: BLE001  told to the client whose program comes
        problem = f"{type(refusal).__name__}: {refusal}"
    job = _wait_for(place, line)
    report, blobs = (
        _run(job, first) if not problem else ({"status": "infrastructure", "error": problem}, [])
    )
    _send(job.reply, wire.pack(report, blobs))
    place.leave()
    os._exit(0)


def _wait_for(place: Place, line: socket.socket) -> Job:
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(place.server, select.POLLIN)
    ready = {at for at, _ in poll.poll()}
    message, fds, _, _ = socket.recv_fds(line, _CHUNK, 16, socket.MSG_DONTWAIT)
    if place.server in ready or not message:
        place.leave()
        os._exit(0)  # nobody will come
    line.close()
    request, reply, *rest = fds
    session = json.loads(message)["session"]
    channel = [rest.pop(0)] if session else []
    evidence = Evidence(*rest[:3]) if rest else None
    return Job(request, reply, session, channel + rest[3:], evidence, place)


def _run(job: Job, first: Running) -> tuple[dict[str, Any], list[bytes]]:
    try:
        with open(job.request, "rb", closefd=False) as payload:
            header, given = wire.unpack(payload.read())
        job.place.furnish(header["limits"])
        files.write(job.place, header["files"], given[1:])
        report, blobs = _run_steps(job, header, first)
        fetched, refused = files.fetch(job.place, header["fetch"], header["limits"]["fetched"])
        report |= {"files": list(fetched), "refused_files": refused}
        return report, [*blobs, *fetched.values()]
    except Refused as refusal:
        return {"status": "refused", "error": str(refusal)}, []
    except Exception as problem:  # noqa: BLE001  whatever it is, the client must hear of it
        return _our_failure(problem), []


def _our_failure(problem: Exception) -> dict[str, Any]:
    return {"status": "infrastructure", "error": f"{type(problem).__name__}: {problem}"}


def _run_steps(
    job: Job, header: dict[str, Any], running: Running
) -> tuple[dict[str, Any], list[bytes]]:
    """Compile, then run; a step that fails is the last."""
    results: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    status = "finished"
    for number, step in enumerate(header["steps"]):
        if results:
            running = _fork_ahead(job.place)
            if step["argv"][0].startswith("./"):
                job.place.allow_to_run(step["argv"][0])
        meter = Meter({**header["limits"], **step}, job.evidence, job.place.pids)
        _begin(running, job, number)
        _watch(running, job, meter, step["wall"], header["limits"]["output"])
        result = close(running, meter, job.evidence)
        results.append(result)
        blobs += (bytes(stream) for stream in running.streams.values())
        status = result["status"]
        if status != "finished" or result["return_code"]:
            break
    return {"status": status, "steps": results}, blobs


def _fork_ahead(place: Place) -> Running:
    """A process that waits to become a program: made before there is one, used for one."""
    pipes = [os.pipe() for _ in range(3)]
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        program.become(place, theirs.fileno(), [end for _, end in pipes])
    theirs.close()
    for end, other in pipes:
        os.close(other)
        os.set_blocking(end, False)
    out, err, complaint = (end for end, _ in pipes)
    return Running(pid, {out: bytearray(), err: bytearray()}, complaint, ours)


def _begin(running: Running, job: Job, number: int) -> None:
    order = json.dumps({"step": number, "session": job.session}).encode()
    socket.send_fds(running.line, [order], [job.request, *job.for_program])
    running.line.close()
    running.started = time.monotonic()
    if job.session:
        os.close(job.for_program.pop(0))


def _watch(running: Running, job: Job, meter: Meter, wall: float, output: int) -> None:
    """Until the program has ended or passed a limit; then nothing of it is left alive."""
    ended = os.pidfd_open(running.pid)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(job.reply, select.POLLRDHUP)
    poll.register(
        job.place.server, select.POLLIN
    )  # a death signal alone could come before it is set
    for stream in running.streams:
        poll.register(stream, select.POLLIN)
    deadline = running.started + wall
    next_sample = running.started + _TICK
    while running.wait_status is None and not running.verdict:
        now = time.monotonic()
        for at, _ in poll.poll(max(0, min(next_sample, deadline) - now) * 1000 + 0.5):
            if at in (job.reply, job.place.server):
                _kill_all(running, job.place)
                job.place.leave()
                os._exit(1)  # nobody waits any more
            elif at in running.streams and not _read(running, at, output):
                poll.unregister(at)
        now = time.monotonic()
        if now >= next_sample:
            running.verdict = running.verdict or meter.sample()
            next_sample = now + _TICK
        _reap(running)
        if now >= deadline and running.wait_status is None:
            running.verdict = running.verdict or "time_limit"
    if meter.processes_peak > 1 or _anyone_left():
        meter.sample()
    _kill_all(running, job.place)
    for stream in running.streams:
        while _read(running, stream, output):
            pass
    os.close(ended)


def _read(running: Running, stream: int, limit: int) -> bool:
    """Take what is there, up to the limit; False when the stream is at its end or empty."""
    try:
        chunk = os.read(stream, _CHUNK)
    except BlockingIOError:
        return False
    room = limit - sum(map(len, running.streams.values()))
    running.streams[stream] += chunk[: max(0, room)]
    if len(chunk) > room:
        running.verdict = running.verdict or "output_limit"
        return False
    return bool(chunk)


def _reap(running: Running) -> bool:
    """Collect the dead; False when there is nobody left to wait for."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == running.pid:
            running.wait_status = status
        if pid == 0:
            return True


def _anyone_left() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _kill_all(running: Running, place: Place) -> None:
    deadline = time.monotonic() + _LONGEST_REAP
    while True:
        place.kill(running.pid)
        if not _reap(running):
            return
        if time.monotonic() > deadline:
            # Stuck in the kernel. It dies with this namespace, whose end waits for it.
            raise TimeoutError("a process of the program does not die")
        time.sleep(0.0005)


def _send(reply: int, message: bytes) -> None:
    view = memoryview(message)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # nobody waits any more
        while view:
            view = view[os.write(reply, view) :]
