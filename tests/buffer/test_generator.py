"""What generators are made of: one turn, the reward, the crew, discovery."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from openai import OpenAI

from buffer import GeneratorError
from buffer.generator import api, base_generator, crew, query_single_turn, sender, single_turn
from buffer.generator.crew import BaseGenerator
from buffer.generator.discovery import discover
from buffer.generator.math_reward import boxed, get_rule_based_math_reward
from ground.errors import SettingError
from tests.harness.scripted_model import Answer, said, scripted_model
from tests.harness.servers import until

ASKED = [{"role": "user", "content": "1+1"}]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_turn, "ABORT_PAUSE", 0.0)
    monkeypatch.setattr(single_turn, "ERROR_PAUSE", 0.0)


def asked_of(url: str, sampling: dict[str, Any]) -> tuple[list[dict[str, Any]], str | None]:
    with OpenAI(api_key="test", base_url=f"{url}/v1", max_retries=0) as client:
        return query_single_turn(client, list(ASKED), sampling)


def test_an_answer_ends_the_turn() -> None:
    with scripted_model(lambda asked, n: said("two")) as model:
        messages, reason = asked_of(model.url, {"max_tokens": 10, "temperature": 0.5})
    assert messages == [*ASKED, {"role": "assistant", "content": "two"}]
    assert reason == "stop"
    (request,) = model.requests
    assert (request["model"], request["stream"], request["max_tokens"]) == ("custom", False, 10)
    assert 1 <= request["seed"] <= 10_000_000


def test_an_aborted_answer_is_continued_with_what_is_left_of_its_tokens() -> None:
    script = [said("I think", "abort", 4), said(" it is", "abort", 3), said(" two", "stop", 2)]
    with scripted_model(lambda asked, n: script[n - 1]) as model:
        messages, _ = asked_of(model.url, {"max_tokens": 10})
    assert messages[-1]["content"] == "I think it is two"
    assert [r["max_tokens"] for r in model.requests] == [10, 6, 3]
    assert "continue_final_message" not in model.requests[0]
    assert all(r["continue_final_message"] is True for r in model.requests[1:])
    assert model.requests[2]["messages"][-1] == {"role": "assistant", "content": "I think it is"}


def test_an_abort_that_used_every_token_ends_the_turn() -> None:
    with scripted_model(lambda asked, n: said("long", "abort", 10)) as model:
        messages, _ = asked_of(model.url, {"max_tokens": 10})
    assert messages[-1]["content"] == "long"
    assert len(model.requests) == 1


def test_six_failures_leave_an_answer_without_content() -> None:
    with scripted_model(lambda asked, n: (500, {"error": "busy"})) as model:
        messages, _ = asked_of(model.url, {"max_tokens": 10})
    assert messages[-1] == {"role": "assistant", "content": None}
    assert len(model.requests) == 6


def test_a_text_is_no_answer_to_whether_versions_interrupt() -> None:
    asked = {
        "remote_engine_url": "http://engine", "remote_buffer_url": "http://buffer",
        "num_repeat_per_sample": 1, "task_type": "math", "input_file": "none.jsonl",
    }  # fmt: skip
    with pytest.raises(SettingError, match="interrupt_on_publish: must be true or false"):
        base_generator.run_rollout(asked | {"interrupt_on_publish": "false"})


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_the_server_refuses_is_not_sent_again(status: int) -> None:
    with scripted_model(lambda asked, n: (status, {"error": "the prompt is too long"})) as model:
        messages, _ = asked_of(model.url, {"max_tokens": 10})
    assert messages[-1] == {"role": "assistant", "content": None}
    assert len(model.requests) == 1


@pytest.mark.parametrize("odd", ["<html>", [], None, {"choices": [{"message": None}]}])
def test_an_answer_that_is_no_chat_completion_is_asked_for_again(odd: Any) -> None:
    with scripted_model(lambda asked, n: said("two") if n == 3 else (200, odd)) as model:
        messages, _ = asked_of(model.url, {"max_tokens": 10})
    assert (messages[-1]["content"], len(model.requests)) == ("two", 3)


def test_no_limit_of_tokens_is_no_key_error() -> None:
    with scripted_model(lambda asked, n: said("two")) as model:
        assert asked_of(model.url, {})[0][-1]["content"] == "two"


@pytest.mark.parametrize(
    ("answer", "label", "reward"),
    [
        ("so \\boxed{4}", "4", 1),
        ("so \\boxed{4} or rather \\boxed{5}", "4", 0),
        ("\\boxed{\\frac{1}{2}}", "0.5", 1),
        ("\\boxed{\\dfrac12}", "\\frac{1}{2}", 1),
        ("\\boxed{1{,}000}", "1000", 0),
        ("\\boxed{1,000}", "1000", 1),
        ("\\boxed{x=3}", "3", 1),
        ("\\boxed{-\\frac{3}{4}}", "-0.75", 1),
        ("\\boxed{50\\%}", "50", 1),
        ("\\boxed{30^{\\circ}}", "30^\\circ", 1),
        ("\\boxed{5\\text{ cm}}", "5", 1),
        ("\\boxed{\\text{Monday}}", "\\text{Monday}", 1),
        ("\\boxed{\\text{Monday}}", "Monday", 1),
        ("\\boxed{\\text{Monday}}", "\\text{Friday}", 0),
        ("\\boxed{\\text{even}, \\text{odd}}", "\\text{odd}, \\text{even}", 0),
        ("\\boxed{}", "\\text{Friday}", 0),
        ("\\boxed{ (1, 2) }", "(1,2)", 1),
        ("4", "4", 0),
        ("", "4", 0),
        (None, "4", 0),
        ("\\boxed{4", "4", 0),
        ("\\boxed{4}", "\\boxed{4}", 1),
        ("\\boxed{1/0}", "1", 0),
        ("\\boxed{2.5e3}", "2500", 1),
        ("\\boxed{10e99999}", "1e100000", 0),  # with more digits it would take hours to compare
        ("\\boxed{10e9_9_9_9}", "1e10000", 0),
        ("\\boxed{9^{9^{9}}}", "7", 0),
        ("\\boxed{((9^99)^99)^99}", "7", 0),
        ("\\boxed{2^{123456789}}", "7", 0),
        pytest.param(
            # It takes no time as the square of its length.
            f"\\boxed{{\\frac{'1' * 300_000}x}}",
            "7",
            0,
            id="a long fraction",
        ),
    ],
)
def test_the_math_reward(answer: str | None, label: str, reward: int) -> None:
    messages = [*ASKED, {"role": "assistant", "content": answer}]
    assert get_rule_based_math_reward({"messages": messages, "label": label}) == reward


def test_braces_are_balanced() -> None:
    assert boxed("\\boxed{\\frac{1}{2}} and more}") == "\\frac{1}{2}"


class Post:
    """What a generator sent to the buffer."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self.refusals: list[httpx.Response] = []
        self.headers: dict[str, str] = {}

    def opened(self, url: str, headers: dict[str, str]) -> "Post":
        self.headers = headers
        return self

    def request(self, method: str, url: str, content: None, headers: Any) -> httpx.Response:
        assert (method, url) == ("GET", "http://buffer/v1/tasks/math/policy")
        return httpx.Response(404)

    def post(self, url: str, content: bytes, headers: dict[str, str]) -> httpx.Response:
        assert headers == {"Content-Type": "application/json"}
        if self.refusals:
            return self.refusals.pop(0)
        self.items.append(json.loads(content))
        return httpx.Response(200)


@pytest.fixture
def post(monkeypatch: pytest.MonkeyPatch) -> Post:
    found = Post()
    monkeypatch.setattr(sender, "new_client", found.opened)
    monkeypatch.setattr(api, "new_client", found.opened)
    monkeypatch.setattr(sender, "time", SimpleNamespace(sleep=lambda seconds: None))
    return found


def data_of(tmp_path: Path, rows: int = 2) -> str:
    lines = [json.dumps({"prompt": ASKED, "label": "2", "n": n}) for n in range(rows)]
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "data.jsonl")


def answered(client: OpenAI, messages: list[Any], sampling: dict[str, Any]) -> list[Any]:
    return [*messages, {"role": "assistant", "content": "\\boxed{2}"}]


def test_a_crew_answers_every_question_in_every_round(post: Post, tmp_path: Path) -> None:
    generator = BaseGenerator("http://engine", "http://buffer", 2, num_process=2)
    done = generator.entry(data_of(tmp_path), answered, get_rule_based_math_reward, num_epoch=3)
    assert done == "finished"
    seen = sorted((item["instance_id"], item["round_number"]) for item in post.items)
    assert seen == sorted([(n, r) for n in range(2) for r in range(3) for _ in range(2)])
    one = post.items[0]
    upstream = {"uid", "instance_id", "messages", "reward", "extra_info"}
    assert set(one) == {*upstream, "round_number", "exact"}
    assert one["exact"] is False
    extra = one["extra_info"]
    assert {"label", "n", "rollout_index", "timestamp", "finish_reason", "top_p"} <= set(extra)
    assert (one["reward"], extra["round_number"], extra["max_tokens"]) == (1, 1, 4096)
    assert len({item["uid"] for item in post.items}) == 12


def test_an_id_named_twice_is_skipped_for_its_first_two_rounds(post: Post, tmp_path: Path) -> None:
    generator = BaseGenerator(
        "http://engine", "http://buffer", num_process=1, skip_instance_ids=[0, 0, "1"]
    )
    generator.entry(data_of(tmp_path), answered, lambda row: 1, num_epoch=3)
    seen = sorted((item["instance_id"], item["round_number"]) for item in post.items)
    assert seen == [(0, 2), (1, 1), (1, 2)]


def test_a_question_that_always_fails_is_written_as_a_failure(post: Post, tmp_path: Path) -> None:
    def fails(client: OpenAI, messages: list[Any], sampling: dict[str, Any]) -> Any:
        raise RuntimeError("no")

    BaseGenerator("http://engine", "http://buffer", num_process=1).run(
        data_of(tmp_path, 1), fails, lambda row: 1
    )
    (item,) = post.items
    assert (item["reward"], item["messages"][-1]["content"]) == (-1, "")
    assert item["extra_info"]["failure"] == "RuntimeError: no"


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [("1+1", ["1+1"]), (["1+1"], [["1+1"]]), ({"x": 1}, [{"x": 1}]), (None, []), ([], [])],
)
def test_a_failed_question_of_another_form_ends_no_generator(
    post: Post, tmp_path: Path, prompt: Any, asked: list[Any]
) -> None:
    (tmp_path / "data.jsonl").write_text(json.dumps({"prompt": prompt}))
    BaseGenerator("http://engine", "http://buffer", num_process=1).run(
        str(tmp_path / "data.jsonl"), lambda *_: 1 / 0, lambda row: 1
    )
    (item,) = post.items
    assert [message["content"] for message in item["messages"]] == [*asked, ""]
    assert item["extra_info"]["failure"] == "ZeroDivisionError: division by zero"


def test_columns_of_a_data_set_have_any_name(post: Post, tmp_path: Path) -> None:
    columns = {"held": "a", "partial": "b", "tries": "c"}
    (tmp_path / "data.jsonl").write_text(json.dumps({"prompt": ASKED, **columns}))

    def fails_once(
        client: OpenAI, messages: list[Any], sampling: dict[str, Any], partial: Any
    ) -> list[Any]:
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise RuntimeError("no")
        return answered(client, messages, sampling)

    BaseGenerator("http://engine", "http://buffer", num_process=1).run(
        str(tmp_path / "data.jsonl"), fails_once, lambda row: int(columns.items() <= row.items())
    )
    (item,) = post.items
    assert item["reward"] == 1
    assert columns.items() <= item["extra_info"].items()


def test_a_query_without_answer_is_written_as_a_failure(post: Post, tmp_path: Path) -> None:
    def silent(client: OpenAI, messages: list[Any], sampling: dict[str, Any]) -> Any:
        return [*messages, {"role": "assistant", "content": None}], None

    BaseGenerator("http://engine", "http://buffer", num_process=1).run(
        data_of(tmp_path, 1), silent, lambda row: 1
    )
    assert (post.items[0]["reward"], post.items[0]["messages"][-1]["content"]) == (-1, "")


@pytest.mark.parametrize("reward", [math.nan, math.inf, 1 + 2j, {1}])
def test_a_reward_that_is_not_json_costs_its_own_item_alone(
    post: Post, tmp_path: Path, reward: Any
) -> None:
    BaseGenerator("http://engine", "http://buffer", num_process=1).run(
        data_of(tmp_path, 2), answered, lambda row: reward if row["n"] == 0 else 1
    )
    assert sorted((item["instance_id"], item["reward"]) for item in post.items) == [(0, -1), (1, 1)]


@pytest.mark.parametrize("reward", [math.nan, 1 + 2j])
def test_what_is_not_json_is_refused_for_good(post: Post, reward: Any) -> None:
    generator = BaseGenerator("http://engine", "http://buffer")
    generator.send_data_to_buffer({"instance_id": "a", "reward": reward})
    generator.send_data_to_buffer({"instance_id": "b", "text": "\ud800"})
    assert post.items == [{"instance_id": "b", "text": "\ud800"}]


def test_a_worker_that_dies_is_replaced_and_its_question_asked_again(
    post: Post, tmp_path: Path
) -> None:
    def dies_once(client: OpenAI, messages: list[Any], sampling: dict[str, Any]) -> Any:
        mark = tmp_path / "died"
        if not mark.exists():
            mark.touch()
            os._exit(9)
        return answered(client, messages, sampling)

    BaseGenerator("http://engine", "http://buffer", num_process=1).run(
        data_of(tmp_path), dies_once, lambda row: 1
    )
    assert sorted(item["instance_id"] for item in post.items) == [0, 1]
    assert all(item["reward"] == 1 for item in post.items)


KILLED = """
import os, sys, time
from pathlib import Path
from buffer.generator import BaseGenerator, crew

crew.admission_for = lambda *_: None
parent = os.getpid()

def lasts_longer(client, messages, sampling):
    Path(sys.argv[2], str(os.getpid())).touch()
    while os.getppid() == parent:
        time.sleep(0.01)
    return [*messages, {"role": "assistant", "content": "2"}]

BaseGenerator("http://engine", "http://buffer", num_process=3).run(
    sys.argv[1], lasts_longer, lambda row: 1
)
"""


def test_no_worker_outlives_a_killed_generator(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    words = [sys.executable, "-c", KILLED, data_of(tmp_path, 5), str(begun)]
    with subprocess.Popen(words, start_new_session=True) as process:
        try:
            until(lambda: len(list(begun.iterdir())) == 3, "three questions under way", 100)
            process.kill()
            process.wait()
            workers = [worker.name for worker in begun.iterdir()]
            until(lambda: not any(map(lives, workers)), "the end of its workers", 100)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def test_ctrl_c_ends_a_generator_with_one_traceback(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    begun.mkdir()
    words = [sys.executable, "-c", KILLED, data_of(tmp_path, 5), str(begun)]
    with subprocess.Popen(words, start_new_session=True, stderr=subprocess.PIPE) as process:
        until(lambda: len(list(begun.iterdir())) == 3, "three questions under way", 100)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=100)
    assert said.count(b"Traceback") == 1
    assert process.returncode == -signal.SIGINT


def lives(pid: str) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"prompt": []}\n{"prompt": [}\n', "line 2 is not JSON"),
        ('"a question"\n', "line 1 is not a JSON object"),
        ('{"instance_id": 1.5}\n', "line 1: instance_id must be a string or an integer"),
        ('{"instance_id": ""}\n', "line 1: instance_id is empty"),
        (
            '{"instance_id": 1, "prompt": "a"}\n{"prompt": "b"}\n',
            "two questions .* instance_id '1'",
        ),
        (None, "No such file"),
    ],
)
def test_a_data_set_that_cannot_be_read_is_named(
    tmp_path: Path, text: str | None, said: str
) -> None:
    data = tmp_path / "data.jsonl"
    if text is not None:
        data.write_text(text)
    with pytest.raises(GeneratorError, match=said) as refusal:
        BaseGenerator("http://engine", "http://buffer").run(str(data), answered, lambda _: 0.0)
    assert "data.jsonl" in str(refusal.value)


def test_a_line_whose_id_is_null_is_known_by_its_number(post: Post, tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"prompt": []}\n{"prompt": [], "instance_id": null}\n')
    BaseGenerator("http://engine", "http://buffer", num_process=1).run(
        str(tmp_path / "data.jsonl"), answered, lambda row: 1
    )
    assert sorted(item["instance_id"] for item in post.items) == [0, 1]


@pytest.mark.parametrize("wrong", [{"num_process": 0}, {"num_repeat_per_sample": "8"}])
def test_a_crew_of_none_is_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(SettingError, match=f"{name}: must be a whole number from 1"):
        BaseGenerator("http://engine", "http://buffer", **wrong)


def test_sending_goes_on_until_the_buffer_has_room(post: Post) -> None:
    post.refusals = [httpx.Response(429, headers={"Retry-After": "1"}), httpx.Response(503)]
    BaseGenerator("http://engine", "http://buffer").send_data_to_buffer({"instance_id": "a"})
    assert post.items == [{"instance_id": "a"}]


def test_a_generator_shows_the_servers_token(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BUFFER_TOKEN", "secret")
    post.refusals = [httpx.Response(401)]
    BaseGenerator("http://engine", "http://buffer").send_data_to_buffer({"instance_id": "a"})
    assert post.headers == {"Authorization": "Bearer secret"}
    assert post.items == [{"instance_id": "a"}]


def test_no_proxy_is_asked_for_a_buffer_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody listens there
    with scripted_model(lambda *_: said("2")) as server, api.new_client(server.url, {}) as client:
        assert client.post(server.url, json={}).status_code == 200


def test_half_a_surrogate_pair_reaches_slots_and_sessions_as_it_reaches_the_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with scripted_model(lambda *_: said("2")) as server, httpx.Client(trust_env=False) as client:
        monkeypatch.setattr(api, "new_client", lambda *_: client)
        assert api.Api(server.url, {}).call("POST", "/park", {"text": "\ud800"})
    assert server.requests == [{"text": "\ud800"}]


def test_no_proxy_is_asked_for_an_engine_on_this_machine(
    post: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody listens there
    with scripted_model(lambda *_: said("2")) as model:
        BaseGenerator(model.url, "http://buffer", num_process=1).run(
            data_of(tmp_path, 1), query_single_turn, lambda row: 1
        )
    assert [item["reward"] for item in post.items] == [1]


def test_an_item_refused_for_good_is_not_sent_again(post: Post) -> None:
    post.refusals = [httpx.Response(400, text="no")]
    BaseGenerator("http://engine", "http://buffer").send_data_to_buffer({"instance_id": "a"})
    assert post.items == []


def test_the_documents_template_works_as_it_is_printed(
    post: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters set through the module's SAMPLING_PARAMS reach the model."""
    monkeypatch.setattr(crew, "SAMPLING_PARAMS", crew.SAMPLING_PARAMS.copy())
    monkeypatch.setattr(base_generator, "SAMPLING_PARAMS", crew.SAMPLING_PARAMS)

    def sums(asked: dict[str, Any], number: int) -> Answer:
        return said("\\boxed{2}")

    with scripted_model(sums) as model:
        base_generator.run_rollout(
            {
                "remote_engine_url": model.url, "remote_buffer_url": "http://buffer",
                "task_type": "math", "input_file": data_of(tmp_path, 1),
                "num_repeat_per_sample": "2", "num_epoch": "1", "num_process": "1",
                "sampling_params": {"max_tokens": 7, "temperature": 0.25},
            }
        )  # fmt: skip
    assert [(r["temperature"], r["max_tokens"], r["top_p"]) for r in model.requests] == [
        (0.25, 7, 1)
    ] * 2
    assert [item["reward"] for item in post.items] == [1, 1]


GOOD = "TASK_TYPE = '{}'\ndef run_rollout(data): pass\n"


def test_generators_are_found_by_the_end_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "code_generator.py").write_text(
        GOOD.format("code") + "def filter_item(item, task_type): return True\n"
    )
    (tmp_path / "helper.py").write_text("raise SystemExit\n")
    found = discover(tmp_path)
    assert set(found) == {"code", "math"}
    assert found["code"].functions.filter_item is not None
    assert found["code"].functions.is_valid_group is None
    assert found["math"].functions.is_valid_group is base_generator.is_valid_group


def test_a_generator_may_import_from_the_folder_that_its_server_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside_the_server.py").write_text("NAME = 'code'\n")
    (tmp_path / "generators").mkdir()
    (tmp_path / "generators" / "code_generator.py").write_text(
        "from beside_the_server import NAME as TASK_TYPE\ndef run_rollout(data): pass\n"
    )
    assert set(discover(tmp_path / "generators")) == {"code", "math"}


def test_a_copy_of_the_template_is_a_generator(tmp_path: Path) -> None:
    text = Path(base_generator.__file__).read_text().replace('"math"', '"mine"')
    (tmp_path / "mine_generator.py").write_text(text)
    assert discover(tmp_path)["mine"].functions.is_valid_group is not None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a": "1/0"}, "a_generator.py: ZeroDivisionError"),
        ({"a": "def run_rollout(data): pass"}, "does not define TASK_TYPE"),
        ({"a": "TASK_TYPE = 'a'"}, "does not define run_rollout"),
        ({"a": GOOD.format("x"), "b": GOOD.format("x")}, "b_generator.py: TASK_TYPE 'x' is"),
        ({"a": "import nothing_such"}, "ModuleNotFoundError"),
    ],
)
def test_a_fault_is_reported_by_its_file(
    tmp_path: Path, files: dict[str, str], reason: str
) -> None:
    for name, text in files.items():
        (tmp_path / f"{name}_generator.py").write_text(text)
    with pytest.raises(GeneratorError, match="PENSTOCK_GENERATORS") as fault:
        discover(tmp_path)
    assert reason in str(fault.value)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(GeneratorError, match="is not a folder"):
        discover(tmp_path / "absent")
