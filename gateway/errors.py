"""The errors of a session of the gateway.

PenstockError
└── GatewayError         the base of this branch
    ├── SessionUnknown   no session has this key, or it was forgotten
    ├── SessionOver      the session was frozen or finalized: it takes no more calls
    ├── BudgetSpent      the session has used its tokens, turns, time or bytes
    ├── SessionsFull     no room for another session now; says when to come back
    ├── KeyReused        an idempotency key came with another body
    ├── CallLost         Redis does not know that this call began: ask again
    ├── CallConflict     the same call was committed with other contents
    ├── RewardDiffers    the session was finalized with another reward
    ├── RequestRefused   a request of an agent cannot be served; says why
    └── EngineError      an engine did not do what it was asked
        ├── EngineUnfit      as it is started, it cannot do what exact tokens need
        ├── EngineRefused    it refuses this request
        └── EngineFailed     it went away, broke off, or has too much to do
"""

from ground import PenstockError


class GatewayError(PenstockError):
    """The base of what the gateway raises on purpose."""


class SessionUnknown(GatewayError):
    """No such session."""

    def __init__(self) -> None:
        super().__init__(
            "no session has this key: open one, and give the agent its key. A session without a "
            "call is forgotten after PENSTOCK_GATEWAY_SESSION_IDLE seconds"
        )


class SessionOver(GatewayError):
    """The session takes no more calls."""

    def __init__(self, sid: str, state: str) -> None:
        super().__init__(f"session {sid} is {state}: it takes no more calls. Open another one")
        self.sid, self.state = sid, state


class BudgetSpent(GatewayError):
    """The session has used what it was given; `what` is tokens, turns, seconds or bytes."""

    def __init__(self, sid: str, what: str, limit: float) -> None:
        super().__init__(
            f"session {sid} has used its {limit:g} {what}: finalize it, or open sessions with more"
        )
        self.what = what


class SessionsFull(GatewayError):
    """No room for another session; `retry_after` seconds say when to try again."""

    def __init__(self, task: str, what: str, retry_after: float) -> None:
        super().__init__(
            f"task {task!r} has no room for another session: {what}; "
            f"try again in {retry_after:.1f} s"
        )
        self.retry_after = retry_after


class KeyReused(GatewayError):
    """An idempotency key stands for one body only."""

    def __init__(self) -> None:
        super().__init__(
            "this Idempotency-Key came before with another body: "
            "send the same body again, or another key"
        )


class CallLost(GatewayError):
    """The call cannot be committed."""

    def __init__(self, sid: str, call: int) -> None:
        super().__init__(
            f"Redis does not know that call {call} of session {sid} began: it lost its newest "
            "writes. Send the request again"
        )


class CallConflict(GatewayError):
    """Two different answers for one call: neither is trained on."""

    def __init__(self, sid: str, call: int) -> None:
        super().__init__(f"call {call} of session {sid} was committed with other contents")


class RewardDiffers(GatewayError):
    """The first reward counts."""

    def __init__(self, sid: str) -> None:
        super().__init__(
            f"session {sid} was finalized with another reward, which stays: "
            "repeat that one, or open another session"
        )


class RequestRefused(GatewayError):
    """A request of an agent that cannot be served as it is; `param` is the field at fault."""

    def __init__(self, problem: str, param: str = "", *, too_long: bool = False) -> None:
        super().__init__(f"{param}: {problem}" if param else problem)
        self.param = param
        self.too_long = too_long


class EngineError(GatewayError):
    """An engine did not do what it was asked; names it."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"engine {url}: {problem}")
        self.url = url


class EngineUnfit(EngineError):
    """The engine, as it is started, cannot do what exact tokens need."""


class EngineRefused(EngineError):
    """The engine refuses this request, and would refuse it again."""

    def __init__(self, url: str, status: int, reason: str) -> None:
        super().__init__(url, f"status {status}: {reason}")
        self.status = status
        self.reason = reason


class EngineFailed(EngineError):
    """The engine went away, broke off, or has too much to do: another try may help."""

    def __init__(
        self, url: str, problem: str, *, overloaded: bool = False, after: float | None = None
    ) -> None:
        super().__init__(url, problem)
        self.overloaded = overloaded
        self.after = after
