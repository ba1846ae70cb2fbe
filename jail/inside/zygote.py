"""The fork server: an interpreter started clean, never as root, that clones itself per program.

Two stages. `launch` builds the root, gives up its identity if it is root, and
executes the same interpreter again inside. `serve` imports the warm modules,
and answers each request on its control socket with one clone, made beforehand where
there was time. It reads no request itself: the payload is a memory file that only
the clone opens.
"""

import importlib.util
import json
import os
import select
import signal
import sys
from typing import Any

from . import landlock, namespaces, program, root, supervise, syscalls, users, wire
from .job import PROGRAM, SESSION
from .place import Place

_BOOT = """import sys; usual = set(sys.modules); sys.path.insert(0, {!r})
from inside.zygote import main; run = main(usual)
while run: run = run()"""
_LARGEST_MESSAGE = 4096
_MOST_FDS = 16
_MOMENT = 8
_CHILD_ENDED = int(signal.SIGCHLD)


def command(stage: str, config: dict[str, Any]) -> list[str]:
    """How either stage is executed; the interpreter takes nothing from its surroundings."""
    boot = _BOOT.format(config["source"])
    flags = ["-I", "-X", "utf8"]
    return [config["python"], *flags, "-c", boot, stage, json.dumps(config)]


def main(usual: set[str]) -> program.Next | None:
    """Be the fork server, until its client ends; in a program's process it returns the program.

    `usual` is what every interpreter has imported as it begins.
    """
    del sys.path[0]
    stage, config = sys.argv[1], json.loads(sys.argv[2])
    control = wire.at(config["control"])
    try:
        if stage == "launch":
            launch(config)
        ready = warm(config)
        place = _place(config)
        program.leave_no_trace(usual)
        program.settle()
    except Exception as problem:  # noqa: BLE001  sent to the client, which raises it
        control.send(json.dumps({"failed": f"{type(problem).__name__}: {problem}"}).encode())
        return None
    control.send(json.dumps(ready).encode())
    server = Server(control, place, config["spares"])
    try:
        server.serve()
    except program.Begun as begun:
        return begun.run
    server.close()
    return None


def launch(config: dict[str, Any]) -> None:
    from . import janitor  # while all of the interpreter can be read

    as_root = os.geteuid() == 0
    home = root.HOME
    given = users.Users(*config["users"] or ())
    if config["level"] == "ns":
        root.enter_namespaces(as_root, given)
        config |= root.build(
            config["exposed"], config["hidden"], config["headers"], config["layers"]
        )
    if config["level"] == "landlock":
        landlock.require()
    if as_root and given.many:
        users.unshare(given, syscalls.NEW_USER)
    elif as_root:
        _become(config["uid"], config["gid"])
    if config["level"] != "ns":
        config |= janitor.stand_by(config["scratch"], config["control"])
        home = config["base"]
    os.set_inheritable(config["control"], True)
    # One thread only, whatever is preloaded: a fork copies no others.
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    argv = command("serve", config)
    # Libraries are linked at once, where else every clone would look the same names up again.
    surroundings = {"LANG": "C.UTF-8", "HOME": home, "LD_BIND_NOW": "1", **threads}
    os.execve(argv[0], argv, surroundings)  # noqa: S606


def _become(user: int, group: int) -> None:
    try:
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
    except OSError as problem:
        raise OSError(f"root cannot become uid {user} here: {problem}") from None


def _place(config: dict[str, Any]) -> Place:
    # Each has modules that only it needs, and that would make every clone dearer.
    if config["users"]:
        from . import image

        return image.Image(config, users.Users(*config["users"]))
    if config["level"] == "ns":
        return namespaces.Namespaces(config)
    from . import without_namespaces

    return without_namespaces.Folder(config)


def warm(config: dict[str, Any]) -> dict[str, Any]:
    """Import what programs will want, and become the process that they are clones of."""
    if users.is_root():
        raise PermissionError("the fork server would run as root")
    os.umask(0o022)
    for name in config["preload"]:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as problem:  # noqa: BLE001  the module's own code ran
            raise ImportError(f"PENSTOCK_SANDBOX_PRELOAD names {name!r}: {problem}") from None
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # what a module printed would be in each program's output
    syscalls.flush_files()
    os.environ.clear()  # after the imports: some read there how many threads to start
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError(f"importing {config['preload']} started threads, which forks would lack")
    program.measure()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a program can signal its init: no handler there
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if the machine runs out of memory, programs go first
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    many = users.Users(*config["users"] or ()).many
    syscalls.give_up_capabilities(users.NEEDED_TO_ADMIT if many else ())
    syscalls.prctl(syscalls.PR_SET_DUMPABLE, 0)
    lacks = [name for name in config["asked"] if importlib.util.find_spec(name) is None]
    return {"pid": os.getpid(), "lacks": lacks, "not_overlaid": config.get("not_overlaid", {})}


class Jail:
    """A clone: a spare that waits for a program, or one that has its own."""

    def __init__(self, pid: int, line: wire.Socket) -> None:
        self.pid = pid
        self.line = line
        self.number: int | None = None


class Server:
    """The server hands each program to a jail that is ready, and makes the next one. It ends with
    its client.

    A spare has its program's process too, if what was asked for last had use of it: commands and
    cases have processes of their own.
    """

    def __init__(self, control: wire.Socket, place: Place, spares: int) -> None:
        self._control = control
        self._place, self._ahead = place, False
        self._jails: dict[int, Jail] = {}  # by pidfd
        self._spares: list[int] = []
        self._wanted = self._usual = spares
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)

    def serve(self) -> None:
        while True:
            events = self._poll.poll(self._rest())
            if not events:
                self._make_spare()
            for at, _ in events:
                if at in self._jails:
                    self._bury(at)
                elif not self._answer():
                    return

    def _rest(self) -> int | None:
        """Milliseconds until a spare is made, if there is nothing else to do. While one is left,
        the program that has just begun has the processor first."""
        if len(self._spares) >= self._wanted:
            return None
        return _MOMENT if self._spares else 0

    def _answer(self) -> bool:
        message, fds = wire.receive(self._control, _LARGEST_MESSAGE, _MOST_FDS)
        if not message:
            return False
        order = json.loads(message)
        if "kill" in order:
            self._kill(order["kill"])
        else:
            self._ahead = order["what"] in (PROGRAM, SESSION)
            self._hand_over(order, fds)
        for at in fds:
            os.close(at)
        return True

    def _hand_over(self, order: dict[str, Any], fds: list[int]) -> None:
        try:
            while not self._send(order, fds):
                pass  # it was a spare, and is dead
        except OSError as problem:
            # Its client may have gone; the jails of others go on.
            wire.write(fds[1], wire.pack({"status": "infrastructure", "error": str(problem)}))

    def _send(self, order: dict[str, Any], fds: list[int]) -> bool:
        """Send a run to a spare or a new jail, which is its own from now on; False if that has
        died."""
        # The oldest: the newest may still be building its jail.
        pidfd = self._spares.pop(0) if self._spares else self._clone()
        held = self._jails[pidfd]
        try:
            wire.send(held.line, order["what"].encode(), fds)
        except (BrokenPipeError, ConnectionResetError):
            return False
        except OSError:
            self._spares.insert(0, pidfd)  # nothing is wrong with it
            raise
        self._wanted = self._usual
        held.number = order["run"]
        held.line.close()
        return True

    def _make_spare(self) -> None:
        try:
            self._spares.append(self._clone())
        except OSError:
            self._wanted = 0  # until the next program has a jail of its own, or an error

    def _clone(self) -> int:
        ours, theirs = wire.pair()
        try:
            pid, pidfd = syscalls.clone(self._place.clone_flags, _CHILD_ENDED)
            if pid == 0:
                ours.close()
                self._control.close()
                for other, held in self._jails.items():
                    os.close(other)
                    held.line.close()
                supervise.main(self._place, theirs, self._ahead)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._admit(pid, pidfd, ours)
        self._jails[pidfd] = Jail(pid, ours)
        self._poll.register(pidfd, select.POLLIN)
        return pidfd

    def _admit(self, pid: int, pidfd: int, line: wire.Socket) -> None:
        try:
            self._place.admit(pid, line)
        except OSError:
            line.close()
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pidfd)
            raise

    def _kill(self, number: int) -> None:
        for pidfd, held in self._jails.items():
            if held.number == number:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _bury(self, pidfd: int) -> None:
        held = self._jails.pop(pidfd)
        held.line.close()
        if pidfd in self._spares:
            self._spares.remove(pidfd)
        self._poll.unregister(pidfd)
        _, status = os.waitpid(held.pid, 0)
        os.close(pidfd)
        if status:
            self._place.bury()

    def close(self) -> None:
        """End every jail."""
        for pidfd in list(self._jails):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            select.select([pidfd], [], [])
            self._bury(pidfd)
