"""`penstock up`: everything on this machine, until Ctrl-C."""

import asyncio
import fcntl
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ground import SettingError
from ground.extras import needed_by
from ground.redis.connect import UNWELL
from ground.settings import GroundSettings
from ground.tasks import heed_cancellation
from penstock.doctor.packages import require_own_packages
from penstock.fleet import FleetReader
from penstock.interrupts import Loading
from penstock.named_or_own_redis import require_one_primary
from penstock.options import console, examples, given_settings, settings_options
from penstock.up.fleet import Home, Plan, Services, monitor_address
from penstock.up.redis import Redis
from penstock.up.service import Service
from worker.settings import WorkerSettings

if TYPE_CHECKING:
    from penstock.up.screen import Screen


@click.command(
    "up",
    epilog=examples("""
Examples:

  penstock up                       Redis, sandbox, 2 workers, buffer, monitor
  penstock up --workers 8           more of them
  PENSTOCK_REDIS_URL=redis://10.0.0.5 penstock up

Then, in another terminal and the same folder:

  echo 'print(6 * 7)' | penstock run -
  penstock top

A service that ends is started again, after a pause that doubles. State and logs stay in
.penstock/ (PENSTOCK_DATA_DIR). However `penstock up` ends, all its processes end too.
"""),
)
@click.option("--workers", type=click.IntRange(0, 256), default=2, show_default=True,
              help="Worker processes.")  # fmt: skip
@click.option("--gate-limit", type=click.IntRange(1), metavar="N",
              help="The limit of gate `code`, if that is new; default: four per core.")  # fmt: skip
@settings_options
def command(workers: int, gate_limit: int | None) -> int:
    """Run everything on this machine; Ctrl-C ends it cleanly."""
    with Loading(), needed_by("penstock up"):
        import ground.http  # noqa: F401 - of what it starts
        from penstock.up.screen import Screen

    settings = given_settings()
    require_own_packages()
    require_one_primary(settings)
    limit = gate_limit or WorkerSettings.load().gate_limit or 4 * (os.cpu_count() or 1)
    plan = Plan(workers, limit)
    with _alone_in(settings.data_dir) as home:
        return _Up(plan, settings, home, Screen(console(stderr=True))).run()


class _Up:
    def __init__(self, plan: Plan, settings: GroundSettings, home: Home, screen: "Screen") -> None:
        self._settings = settings
        self._home = home
        self._screen = screen
        self._redis = Redis(settings, self._screen.say)
        self._plan = plan
        self._services: list[Service] = []
        self._stop_asked = asyncio.Event()
        self._ended_by = signal.SIGINT
        self._was_up = False
        self._state_kept = True
        self._unread = ""

    def run(self) -> int:
        self._redis.start()  # it may load for long, and a loop that waits for it hears no Ctrl-C
        return asyncio.run(self._all())

    async def _all(self) -> int:
        self._on_signals()
        try:
            made = Services(self._plan, self._settings, self._redis, self._home,
                            self._screen.say, self._changed)  # fmt: skip
            self._services = made.in_order()
            self._screen.start()
            return await self._live()
        finally:
            await self._end()
            self._screen.stop()

    async def _live(self) -> int:
        self._screen.say(f"redis is at {self._redis.shown}")
        self._screen.address = monitor_address(self._home, self._services[-1])
        keeping = [asyncio.create_task(service.keep()) for service in self._services]
        watching = asyncio.create_task(self._watch())
        stop_asked = asyncio.create_task(self._stop_asked.wait())
        try:
            # A service's task ends only with a reason to end them all.
            everything = [*keeping, watching, stop_asked]
            await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._end()
            for task in everything:
                task.cancel()
            ended = await asyncio.gather(*everything, return_exceptions=True)
        for failure in ended:
            if isinstance(failure, Exception):
                raise failure
        return 0 if self._ended_by == signal.SIGINT else 128 + self._ended_by

    def _changed(self, service: Service) -> None:
        self._write_state()
        if service.state != "up":
            return
        where = f" at {service.url}" if service.url else ""
        self._screen.say(f"{service.name} is up{where}")
        if not self._was_up and all(one.state == "up" for one in self._services):
            self._was_up = True
            self._screen.say_all_is_up()

    async def _watch(self) -> None:
        """Draw the screen once a second; Redis may be away."""
        reader = FleetReader(self._redis.url, self._settings.run)
        try:
            while True:
                heed_cancellation()
                try:
                    self._screen.look(await reader.read())
                except UNWELL:
                    pass  # its state is on the screen
                except Exception as problem:  # noqa: BLE001 - what one key holds ends nothing
                    if repr(problem) != self._unread:
                        self._unread = repr(problem)
                        self._screen.say(f"the fleet cannot be read: {self._unread}")
                self._screen.draw(self._redis, self._services)
                await asyncio.sleep(1)
        finally:
            await reader.aclose()

    async def _end(self) -> None:
        """Workers first, that they may give their jobs back; Redis last."""
        workers = [one for one in self._services if one.name.startswith("worker")]
        others = [one for one in self._services if one not in workers]
        for batch in (workers, others):
            await asyncio.gather(*(service.end() for service in batch))
        self._redis.stop()
        (self._home.folder / "up.json").unlink(missing_ok=True)

    def _on_signals(self) -> None:
        loop = asyncio.get_running_loop()

        def stop_asked(number: signal.Signals) -> None:
            if self._stop_asked.is_set():  # the second time: at once
                for service in self._services:
                    service.kill()
                return
            self._ended_by = number
            self._stop_asked.set()
            self._screen.say("ending")

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup starts us
                loop.add_signal_handler(number, stop_asked, number)

    def _write_state(self) -> None:
        """Write for scripts which process is what, and where."""
        shown = [
            {"name": one.name, "state": one.state, "pid": one.pid, "url": one.url,
             "restarts": one.restarts}
            for one in self._services
        ]  # fmt: skip
        state = {"pid": os.getpid(), "redis": self._redis.shown, "services": shown}
        file, written = self._home.folder / "up.json", self._home.folder / "up.json.new"
        try:
            written.write_text(json.dumps(state, indent=2) + "\n")
            written.replace(file)  # whole: no script reads half of it
            self._state_kept = True
        except OSError as failure:  # a full disk must not end what still runs
            if self._state_kept:
                self._screen.say(f"{file} cannot be written and is out of date: {failure}")
            self._state_kept = False


@contextmanager
def _alone_in(folder: Path) -> Iterator[Home]:
    home = Home(folder)
    with (folder / "up.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingError(
                "PENSTOCK_DATA_DIR",
                f"another `penstock up` runs in {folder.resolve()}: end it, or name another folder",
            ) from None
        except OSError as refusal:  # a cluster's shared file system may have no locks
            raise SettingError(
                "PENSTOCK_DATA_DIR",
                f"{folder} cannot be locked: {refusal.strerror}; name a folder on a local disk",
            ) from None
        yield home
