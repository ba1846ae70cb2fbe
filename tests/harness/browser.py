"""A real headless Chromium, spoken to over two pipes: no driver, no network, no port.

    with Browser() as browser:
        page = browser.open(url, width=390, dark=True)
        page.until("document.title", "penstock")

Its words are those of the DevTools protocol. Where there is no Chromium, CI fails; a
person's run skips, and says what to install.
"""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, Self

from tests.harness import leash

BINARY = "PENSTOCK_TEST_BROWSER"
_NAMES = (
    "chromium-headless-shell", "chromium", "chromium-browser", "chrome-headless-shell",
    "google-chrome", "google-chrome-stable",
)  # fmt: skip
WITHIN = 100.0


def chromium() -> str:
    named = os.environ.get(BINARY)
    found = next(filter(None, map(shutil.which, [named] if named else _NAMES)), None)
    if found is None:
        _refuse()
    return str(found)


def _refuse() -> NoReturn:
    import pytest  # here, so that scripts use a browser without it

    problem = f"no Chromium: apt-get install chromium-headless-shell, or set {BINARY}"
    if os.environ.get("CI"):
        pytest.fail(f"{problem}; CI must have one", pytrace=False)
    pytest.skip(problem)


class Browser:
    """One browser process with a profile of its own."""

    def __init__(self) -> None:
        self._profile = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        shell = f'exec "$@" 3<&{to_read} 4>&{to_write}'
        options = [
            "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
            f"--user-data-dir={self._profile.name}", "about:blank",
        ]  # fmt: skip
        self._process = leash.start(
            ["bash", "-c", shell, "chromium", chromium(), *options],
            pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._rest = b""
        self._number = 0
        self._events: list[dict[str, Any]] = []
        self._tabs: list[str] = []

    def close_tabs(self) -> None:
        """Their connections end: a browser allows six to one server."""
        while self._tabs:
            self.call("Target.closeTarget", {"targetId": self._tabs.pop()})

    def open(self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False) -> "Page":
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._tabs.append(target)
        page = Page(self, attached["sessionId"])
        page.call("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600,
        })  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.call("Emulation.setEmulatedMedia", {"features": [scheme]})
        page.call("Runtime.enable", {})
        page.call("Network.enable", {})
        page.call("Log.enable", {})
        page.call("Page.navigate", {"url": url})
        page.until("location.href != 'about:blank' && document.readyState == 'complete'")
        return page

    def call(self, method: str, params: dict[str, Any], session: str = "") -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (heard := self._heard()).get("id") != self._number:
            self.events.append(heard)
        if "error" in heard:
            raise AssertionError(f"{method}: {heard['error']['message']}")
        result: dict[str, Any] = heard["result"]
        return result

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it said of its own accord."""
        return self._events

    def _heard(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium ended"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        heard: dict[str, Any] = json.loads(message)
        return heard

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._to)
        self._process.kill()
        self._process.wait()
        os.close(self._from)
        self._profile.cleanup()


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return self._browser.call(method, params, self._session)

    def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        asked = {"expression": script, "returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", asked)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str, holds: Callable[[Any], object] = bool) -> Any:
        """Wait for an expression to have such a value."""
        deadline = time.monotonic() + WITHIN
        while not holds(value := self.run(script)):
            assert time.monotonic() < deadline, f"waited in vain: {script} is {value!r}"
            time.sleep(0.05)
        return value

    def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown", "keyUp"):
            told = {"type": kind, "key": key, "windowsVirtualKeyCode": code, "text": text}
            self.call("Input.dispatchKeyEvent", told)

    def picture(self, file: Path) -> None:
        shot = self.call("Page.captureScreenshot", {"format": "png"})
        file.write_bytes(base64.b64decode(shot["data"]))

    def problems(self) -> list[str]:
        """Errors on its console, and refusals of its policy."""
        self.run("0")  # what was said so far has been heard then
        found = []
        for event in self._browser.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            if event.get("method") == "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["level"] == "error":
                    found.append(f"{entry['text']} {entry.get('url', '')}")
        return found

    def requests(self) -> list[str]:
        """Every address it has asked for."""
        self.run("0")
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
