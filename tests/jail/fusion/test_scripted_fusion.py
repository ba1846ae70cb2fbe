"""The observer of other tests is itself observed: with plain sockets and stdlib HTTP."""

import http.client
import json
import math
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion

ROOT = Path(__file__).parents[3]


def call(url, path, body=None, headers=None):
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=150)
    try:
        payload = None if body is None else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, payload, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.headers, json.loads(reply.read())
    finally:
        connection.close()


def run(fusion, code="print(1)", job=None):
    return call(fusion.url, "/run_code", {"code": code}, {"X-Correlation-ID": job} if job else {})


def test_answers_come_in_the_scripts_order_and_then_the_default():
    with ScriptedFusion(Answer.busy(retry_after=2), Answer.exit(1, "boom")) as fusion:
        status, headers, _ = run(fusion)
        assert (status, headers["Retry-After"]) == (429, "2")
        assert run(fusion)[2]["run_result"]["stderr"] == "boom"
        assert run(fusion)[2]["run_result"]["stdout"] == "ok\n"


def test_a_known_program_has_its_own_answer():
    with ScriptedFusion(programs={"print(6*7)": Answer.ok("42\n")}) as fusion:
        assert run(fusion, "print(6*7)")[2]["run_result"]["stdout"] == "42\n"
        assert run(fusion, "print(6*8)")[2]["run_result"]["stdout"] == "ok\n"


def test_only_what_was_executed_is_counted_and_by_whose_it_is():
    with ScriptedFusion(Answer.busy(), Answer.refusal(503)) as fusion:
        for _ in range(4):
            run(fusion, "print(1)", job="job-1")
        run(fusion, "print(2)")
        assert fusion.executions == {"job-1": 2, "print(2)": 1}
        assert fusion.codes == {"print(1)": 2, "print(2)": 1}
        assert (fusion.requests, fusion.finished, fusion.in_flight) == (5, 3, 0)


def test_the_peak_is_exact():
    with (
        ScriptedFusion(default=Answer.ok(seconds=math.inf)) as fusion,
        ThreadPoolExecutor(7) as pool,
    ):
        replies = [pool.submit(run, fusion) for _ in range(7)]
        fusion.wait_until(lambda: fusion.in_flight == 7)
        fusion.finish_held()
        assert [reply.result()[0] for reply in replies] == [200] * 7
        assert (fusion.peak, fusion.in_flight, fusion.finished) == (7, 0, 7)
        fusion.default = Answer.ok()
        run(fusion)
        assert fusion.peak == 7


def test_a_program_runs_to_its_end_though_its_client_has_gone():
    with ScriptedFusion(default=Answer.ok(seconds=math.inf)) as fusion:
        body = b'{"code": "x"}'
        with socket.create_connection(("127.0.0.1", urlsplit(fusion.url).port)) as client:
            client.sendall(b"POST /run_code HTTP/1.1\r\nContent-Length: 13\r\n\r\n" + body)
            fusion.wait_until(lambda: fusion.in_flight == 1)
        fusion.wait_until(lambda: fusion.open_connections == 0)
        assert fusion.in_flight == 1
        fusion.finish_held()
        assert (fusion.in_flight, fusion.finished, fusion.peak) == (0, 1, 1)


def test_a_request_that_never_arrives_whole_is_no_execution():
    with ScriptedFusion() as fusion:
        with socket.create_connection(("127.0.0.1", urlsplit(fusion.url).port)) as client:
            client.sendall(b"POST /run_code HTTP/1.1\r\nContent-Length: 13\r\n\r\n{")
        assert run(fusion)[0] == 200
        assert fusion.requests == 1


def test_many_requests_on_one_connection_are_told_apart():
    request = b'POST /run_code HTTP/1.1\r\nContent-Length: 13\r\n\r\n{"code": "x"}'
    with ScriptedFusion() as fusion:
        with socket.create_connection(("127.0.0.1", urlsplit(fusion.url).port)) as client:
            client.sendall(request * 1000)
            answers = b""
            while answers.count(b"HTTP/1.1 200") < 1000:
                answers += client.recv(1 << 16)
        assert (fusion.executions, fusion.connections) == ({"x": 1000}, 1)


def test_a_cut_connection_gives_not_one_byte():
    with ScriptedFusion(Answer.cut()) as fusion:
        with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
            run(fusion)
        assert fusion.executions.total() == 1


def test_half_an_answer_is_cut_inside_its_body():
    with ScriptedFusion(Answer.half()) as fusion, pytest.raises(http.client.IncompleteRead):
        run(fusion)


def test_a_drip_comes_whole_in_the_end():
    with ScriptedFusion(Answer(body={"a": 1}, drip=0.001)) as fusion:
        assert run(fusion)[2] == {"a": 1}


def test_text_that_is_no_json_is_sent_as_it_is():
    with ScriptedFusion(Answer(text="<html>")) as fusion, pytest.raises(json.JSONDecodeError):
        run(fusion)


def test_a_megabyte_is_a_megabyte():
    with ScriptedFusion(Answer(megabytes=3)) as fusion:
        connection = http.client.HTTPConnection(urlsplit(fusion.url).netloc)
        connection.request("POST", "/run_code", '{"code": ""}')
        assert len(connection.getresponse().read()) == 3 << 20
        connection.close()


def test_it_can_go_away_and_come_back_on_the_same_port():
    with ScriptedFusion() as fusion:
        fusion.stop_listening()
        with pytest.raises(ConnectionRefusedError):
            run(fusion)
        fusion.listen_again()
        assert run(fusion)[0] == 200


def test_as_a_process_it_is_scripted_and_read_over_http():
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.worker.scripted_fusion", "--seconds", "0.01"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        url = process.stdout.readline().strip()
        assert call(url, "/v1/ping")[2] == "pong"
        call(url, "/script", [{"status": 503, "body": {}, "executes": False}])
        codes = [call(url, "/run_code", {"code": "x"}, {"X-Correlation-ID": "j"})[0] for _ in "12"]
        stats = call(url, "/stats")[2]
        assert codes == [503, 200]
        assert (stats["executions"], stats["peak"], stats["finished"]) == ({"j": 1}, 1, 1)
        call(url, "/default", {"body": "canned"})
        call(url, "/reset", {})
        assert call(url, "/stats")[2]["executions"] == {}
        assert call(url, "/nowhere")[0] == 404
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 0
        process.stdout.close()
