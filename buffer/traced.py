"""A buffer's spans: writes, takes, and in a take each group with its items.

The items of a group were made in traces of their own. So a group's span links to each of them.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from buffer.batch import Batch
from ground import tracing
from ground.tracing import Span, message

MOST = 256  # groups of one take that are shown


def writing(task: str, items: int) -> Span:
    """Trace a block in which items are written."""
    about = message("send", task) | {"messaging.batch.message_count": items}
    return tracing.span(f"write {task}", about, kind="producer")


@contextmanager
def taking(task: str) -> Iterator[list[Batch]]:
    """The block appends the batch, if there is one."""
    taken: list[Batch] = []
    began = time.time()
    with tracing.span(f"take {task}", message("receive", task), kind="consumer") as span:
        yield taken
        for batch in taken if span.traceparent else ():
            span.set("messaging.batch.message_count", len(batch.groups))
            span.set("penstock.receipt", batch.receipt)
            _show(batch, began)


def _show(batch: Batch, began: float) -> None:
    now = time.time()
    for instance, items in batch.groups[:MOST]:
        about: dict[str, tracing.Value] = {
            "penstock.instance": str(instance), "penstock.items": len(items),
        }  # fmt: skip
        parents = [item.get("traceparent", "") for item in items]
        tracing.record("group", began, now, about, links=parents)
