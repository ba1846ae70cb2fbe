"""Completions, the cases that they are graded on, and a sandbox that fails for some of them."""

from typing import Any

from worker.hosts.grading import Grade, Grader

SQUARES = {"inputs": ["3", "4"], "outputs": ["9", "16"]}


def fenced(code: str, fence: str = "python") -> str:
    return f"It is simple:\n```{fence}\n{code}\n```\n"


RIGHT = fenced("print(int(input()) ** 2)")
WRONG = fenced("print(1)")
ENDLESS = fenced("while True: pass")
ASLEEP = fenced("import time; time.sleep(1000)")  # which costs nobody anything
UNLUCKY = fenced("print(int(input()) ** 2)  # unlucky")


class Flaky(Grader):
    """Its sandbox fails for those that are unlucky, whatever else they are."""

    async def grade_code(self, code: str, truth: Any, language: str | None = None) -> Grade:
        if "unlucky" in code:
            return Grade(None, "http_503", "the sandbox is away")
        return await super().grade_code(code, truth, language)
