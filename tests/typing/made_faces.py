"""What a type checker sees of faces that are made: mypy reads this, and nothing runs it."""

from collections import Counter
from typing import Any, assert_type

from buffer import Batch, Outcome, RolloutBuffer
from buffer.catalog import GroupInfo
from buffer.versions.publishing import Published


def a_sync_buffer_has_the_signatures_of_the_other_one(buffer: RolloutBuffer) -> None:
    sync = buffer.sync
    assert_type(sync.take(3, wait=1.0, lease=60.0), Batch | None)
    assert_type(sync.publish(4, saved=2, lead=True), Published)
    assert_type(sync.release("receipt"), bool)
    assert_type(sync.write({"instance_id": "a"}), Outcome)
    assert_type(sync.catalog.groups("ready", limit=3), list[GroupInfo])
    assert_type(sync.catalog.finished_rounds(["a"]), Counter[str])
    assert_type(sync.unreported(), list[Any])
    sync.take("three")  # type: ignore[arg-type]
    sync.take(3, waits=1.0)  # type: ignore[call-arg]
    sync.ack()  # type: ignore[call-arg]
