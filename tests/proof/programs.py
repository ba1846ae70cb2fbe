"""A program by the queue, and its result once more: as players do it, and write it down."""

from ground import PenstockError
from tests.proof.journal import Journal
from worker import CodeQueue, CodeRequest


def program(job: str) -> str:
    """It prints a value that follows from the name, and a number that no other run prints."""
    return f"import os\nprint(sum({job!r}.encode()), os.urandom(8).hex())"


async def submit(queue: CodeQueue, journal: Journal, job: str) -> str:
    """Which of its runs gave the result; '' if the sandbox failed."""
    journal.add("submits", job=job)
    try:
        ran = await queue.run(CodeRequest(code=program(job)), token=job)
    except PenstockError as error:
        journal.add("has no result", job=job, error=type(error).__name__)
        raise
    value, run = ran.stdout.split() if ran.ok else ("", "")
    journal.add("has a result", job=job, ok=ran.ok, kind=str(ran.error_kind), value=value)
    return run


async def ask_again(queue: CodeQueue, journal: Journal, job: str, run: str) -> None:
    """By a job's token anybody gets the result of the same run."""
    journal.add("asks again", job=job)
    try:
        ran = await queue.run(CodeRequest(code=program(job)), token=job)
    except PenstockError as error:
        journal.add("has none again", job=job, error=type(error).__name__)
        return
    same = ran.ok and ran.stdout.split()[1] == run
    journal.add("has it again", job=job, same=same, said=ran.stdout)
