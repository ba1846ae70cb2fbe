"""RQ's own transactions, under our fence."""

from typing import Any

from redis.client import Pipeline
from redis.exceptions import WatchError


class LeaseLost(Exception):
    """The execution is somebody else's by now: its late end is refused."""


class FencedPipeline(Pipeline):
    """RQ's transaction, which happens only while the execution is ours.

    Losing an execution deletes its record, in the script in which others take the job:
    so the record is watched, from before its lease is looked at until EXEC.
    """

    fence: tuple[str, str, str] | None = None  # the record's key, the leases' key, the member

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        if self.fence is None:
            return super().execute(raise_on_error)
        rq_watches = self.watching
        while True:
            commands = self.command_stack
            try:
                self._require_ours(*self.fence)
                replies = super().execute(raise_on_error)
            except WatchError:
                if rq_watches:
                    raise  # RQ reads again what it had read, and comes back
                self.command_stack = commands  # the heartbeat touched the record: look again
            else:
                self.fence = None  # with this transaction the execution is over; RQ may send more
                return replies

    def _require_ours(self, record: str, leases: str, member: str) -> None:
        ask: Any = self.immediate_execute_command
        ask("WATCH", record)
        if ask("ZSCORE", leases, member) is None:
            self.reset()
            raise LeaseLost(f"job {member.partition(':')[0]}: its lease had ended")


class Fenced:
    """RQ's connection, with pipelines that can be fenced."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def pipeline(self, transaction: bool = True, shard_hint: Any = None) -> FencedPipeline:
        ours = self._connection
        return FencedPipeline(
            ours.connection_pool, ours.response_callbacks, transaction, shard_hint
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
