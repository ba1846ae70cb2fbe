"""What an ordinary user does first, with the wheel that was built from here. `make outside`.

From /tmp and from /, through pipes and on a terminal, with a `redis-server` on PATH, on a machine
that has just started, in a home with spaces; with the oldest Python and the newest.
"""

import json

import pytest

from tests.outside.conftest import Way

pytestmark = [pytest.mark.outside, pytest.mark.timeout(1800)]

CASES = [{"input": "6 7\n", "output": "42\n"}]
PRODUCT = """
#include <iostream>
int main() { long a, b; std::cin >> a >> b; std::cout << a * b << std::endl; }
"""
TESTED = """
import numpy, pytest

@pytest.mark.parametrize("factors", [(6, 7), (2, 21)])
def test_product(factors):
    assert numpy.prod(factors) == 42
"""


def test_the_doctor_finds_the_machine_ready(way: Way) -> None:
    said = way.says("doctor")
    assert "\nReady" in said
    assert way.server in said


def test_the_demo_loses_nothing(way: Way) -> None:
    said = way.says("demo", "--jobs", "12")
    assert "The picture: " in said
    assert way.server in said


def test_a_worker_runs_what_others_ask_for(way: Way) -> None:
    product, cases = way.file("product.cpp", PRODUCT), way.file("cases.json", json.dumps(CASES))
    worker = ("worker", "--sandbox", "local", "--gate", "outside", "--gate-limit", "4")
    with way.running(*worker, until_it_says="jobs at once"):
        assert "42" in way.says("run", way.file("six.py", "print(6 * 7)"))
        assert "1 of 1 cases passed" in way.says("run", "--cases", cases, product)
        assert "outside" in way.says("limits", "ls")
        assert "WORKER" in way.says("top", "--once")


def test_the_sandbox_runs_first_programs(way: Way) -> None:
    numbers = way.file("numbers.py", "import numpy\nprint(numpy.arange(4).sum())")
    assert "6" in way.says("sandbox", "run", numbers)
    tested = way.file("test_product.py", TESTED)
    assert "2 passed" in way.says("sandbox", "run", "--language", "pytest", tested)
    hello = '#include <iostream>\nint main() { std::cout << "hello" << std::endl; }'
    assert "hello" in way.says("sandbox", "run", way.file("hello.cpp", hello))
