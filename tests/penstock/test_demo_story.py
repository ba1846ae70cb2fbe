"""What the demo's story leaves to nobody when it fails."""

import asyncio
import gc
import threading
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import redis

from penstock.demo.agents import Agents, Tally
from penstock.demo.model import question, scripted_model
from penstock.demo.record import DemoFailed
from penstock.demo.story import Story


async def test_no_proxy_is_asked_for_the_model_on_this_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody listens there
    with scripted_model() as model:
        agents = Agents(model, None, None, Tally())  # type: ignore[arg-type]
        asked = [{"role": "user", "content": question(1)}]
        assert (await agents._ask(asked, 1, 1)).tool_calls
        await agents._model.close()


async def test_who_was_to_strike_says_nothing_once_the_demo_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone, told = threading.Event(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def strikes(_: str) -> NoReturn:
        assert gone.wait(100)
        raise redis.ConnectionError("Connection closed by server.")

    async def fails(*_: object) -> NoReturn:
        raise DemoFailed("no sandbox")

    story = Story.__new__(Story)
    story._name = "demo"
    monkeypatch.setattr(story, "_crew", SimpleNamespace(kill_in_the_middle_of=strikes), False)
    monkeypatch.setattr(story, "_until", fails)
    with pytest.raises(DemoFailed, match="no sandbox"):
        await story._with_an_accident()
    gone.set()
    while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110  there is nothing to await on
        await asyncio.sleep(0.01)
    gc.collect()
    assert told == []
