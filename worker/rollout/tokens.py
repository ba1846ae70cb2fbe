"""How long a conversation is: what the server counted, and a guess at what it has not seen yet."""

from collections.abc import Callable

from worker.rollout.trajectory import Masked

CountTokens = Callable[[str], int]


def guess(text: str) -> int:
    """A quarter of its bytes: low for code and digits, and the server's count follows soon."""
    return len(text.encode("utf-8", "replace")) // 4


class TokenCount:
    """The length of one conversation, in tokens."""

    def __init__(self, count: CountTokens, limit: int | None) -> None:
        self._count = count
        self._limit = limit
        self.seq_len = 0

    @property
    def room(self) -> int | None:
        """Tokens that may still follow; None: as many as one likes."""
        return None if self._limit is None else self._limit - self.seq_len

    @property
    def full(self) -> bool:
        return self.room is not None and self.room <= 0

    def add(self, text: str) -> None:
        """Text that the server has not seen."""
        try:
            self.seq_len += self._count(text)
        except Exception as failure:
            raise Masked(f"count_tokens: {type(failure).__name__}: {failure}") from failure

    def counted(self, prompt_tokens: int, completion_tokens: int) -> None:
        """What the server says of all it saw, and of its answer."""
        self.seq_len = prompt_tokens + completion_tokens
