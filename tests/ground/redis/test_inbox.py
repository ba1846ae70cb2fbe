"""The reader of a process's streams."""

from contextlib import closing
from typing import Any

from ground.redis import inbox as inboxes
from ground.redis.connect import target_of
from ground.redis.connection import Connection
from ground.redis.inbox import Inbox
from tests.harness.servers import until

PATIENCE = 100.0


def test_an_inbox_that_is_idle_for_long_goes_on_by_a_new_connection(
    real_redis, monkeypatch
) -> None:
    class Owner: ...

    owners, received = [Owner()], []
    target, silence = target_of(real_redis), inboxes.SILENCE

    def receive(_: Any, entries: Any) -> None:
        monkeypatch.setattr(inboxes, "SILENCE", 0.01)
        received.append((inbox._connection._opened, entries[0].get(b"n")))
        owners.clear()  # so that nobody wants what comes

    inbox = Inbox(target, receive)
    real_redis.xadd("first", {"n": 1})
    inbox.listen("first", owners[0])
    until(lambda: received and not inbox._connection.open, "its connection to be closed")
    monkeypatch.setattr(inboxes, "SILENCE", silence)
    owners.append(Owner())
    real_redis.xadd("second", {"n": 2})
    inbox.listen("second", owners[0])
    until(lambda: len(received) == 2, "what comes then to be received")
    assert [n for _, n in received] == [b"1", b"2"]
    assert received[0][0] is not received[1][0]
    with closing(Connection(target, 5.0, {})) as other:
        inbox.end(other.converse, PATIENCE)
