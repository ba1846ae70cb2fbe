"""The two ends of the chaos test, as processes: they write down what they were told.

    python -m tests.buffer.ledger write FILE URLS NAME GROUPS
    python -m tests.buffer.ledger read FILE URLS

Each line is on disk before the next step, so that a SIGKILL leaves a true ledger.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import httpx

TASK = "chaos"
SIZE = 4
BATCH = 40
client = httpx.Client(timeout=150)


def main() -> None:
    what, file, urls, *rest = sys.argv[1:]
    servers = itertools.cycle(urls.split(","))
    if what == "write":
        write(Path(file), servers, rest[0], int(rest[1]))
    else:
        read(Path(file), servers)


def items_of(name: str, groups: int) -> Iterator[dict[str, Any]]:
    """Every 10th group lacks two items, every 7th has equal rewards."""
    for group in range(groups):
        for n in range(SIZE if group % 10 else SIZE - 2):
            yield {
                "uid": f"{name}-{group}-{n}", "instance_id": f"{name}-{group}",
                "messages": [{"role": "assistant", "content": "x" * 200}],
                "reward": 1 if group % 7 == 0 else n % 2, "extra_info": {},
            }  # fmt: skip


def write(file: Path, servers: Iterator[str], name: str, groups: int) -> None:
    """Write what the ledger does not have yet; one batch in twenty goes item by item."""
    done = {line.split()[0] for line in lines_of(file)}
    left = [item for item in items_of(name, groups) if item["uid"] not in done]
    with going_on(file) as ledger:
        for number, start in enumerate(range(0, len(left), BATCH)):
            batch = left[start : start + BATCH]
            outcomes = one_by_one(servers, batch) if number % 20 == 0 else at_once(servers, batch)
            for item, outcome in zip(batch, outcomes, strict=True):
                ledger.write(f"{item['uid']} {outcome}\n")
            note(ledger)


def at_once(servers: Iterator[str], batch: list[dict[str, Any]]) -> list[str]:
    answer = insist(servers, f"/v1/tasks/{TASK}/items", {"items": batch})
    found: list[str] = answer.json()["outcomes"]
    return found


def one_by_one(servers: Iterator[str], batch: list[dict[str, Any]]) -> list[str]:
    path = f"/tasks/{TASK}/buffer/write"
    return [insist(servers, path, item).headers["x-penstock-outcome"] for item in batch]


def read(file: Path, servers: Iterator[str]) -> None:
    """Note each batch before it is acknowledged: the server knows whether it was."""
    with going_on(file) as ledger:
        while True:
            answer = insist(servers, f"/v1/tasks/{TASK}/take", {"groups": 40, "wait": 1.0})
            if answer.status_code in (204, 409):  # nothing, or its lease ended on the way here
                continue
            batch = answer.json()
            uids = [item["uid"] for group in batch["groups"] for item in group["items"]]
            ledger.write(json.dumps({"receipt": batch["receipt"], "uids": uids}) + "\n")
            note(ledger)
            insist(servers, f"/v1/tasks/{TASK}/batches/{batch['receipt']}/ack", {})


def insist(servers: Iterator[str], path: str, body: dict[str, Any]) -> httpx.Response:
    """Ask one server after the other until one answers."""
    while True:
        try:
            answer = client.post(next(servers) + path, json=body)
        except httpx.TransportError:
            time.sleep(0.05)
            continue
        if answer.status_code < 300 or answer.status_code == 409:
            return answer
        assert answer.status_code in (429, 503), answer.text
        time.sleep(0.05)


def going_on(file: Path) -> TextIO:
    """The ledger, open for more lines. One that a kill had cut is taken off first."""
    ledger = file.open("a")
    os.truncate(file, len("".join(f"{line}\n" for line in lines_of(file)).encode()))
    return ledger


def note(ledger: TextIO) -> None:
    ledger.flush()
    os.fsync(ledger.fileno())


def lines_of(file: Path) -> list[str]:
    """Whole lines only: the last may have been cut by a kill, or is still being written."""
    return file.read_text().split("\n")[:-1] if file.exists() else []


if __name__ == "__main__":
    main()
