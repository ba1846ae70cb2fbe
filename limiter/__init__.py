"""Gates limit a whole cluster: no grant exceeds a gate's terms, no crash leaks a permit, no waiter
polls.

Its settings are imported when they are first named: pydantic takes as long as all the rest.
"""

from typing import TYPE_CHECKING

from ground.lazy import lazily as _lazily
from limiter.errors import (
    GateError,
    GateInUse,
    GateUnavailable,
    LimitTimeout,
    PermitLost,
    UnknownGate,
    UnknownPermit,
)
from limiter.gate import Gate, Hold
from limiter.permit import Permit, Report, SyncPermit, Wait
from limiter.status import (
    AdaptiveStatus,
    AmountStatus,
    GateShare,
    GateShares,
    GateStatus,
    LeaseStatus,
    LimitChange,
)
from limiter.sync_gate import SyncGate
from limiter.terms import Adaptive, Cost
from limiter.token_bucket import (
    StartingGate,
    TokenBucket,
    existing_gate,
    gate_names,
    named_gate,
    remove_gate,
)

if TYPE_CHECKING:
    from limiter.settings import LimiterSettings

__all__ = [
    "Adaptive",
    "AdaptiveStatus",
    "AmountStatus",
    "Cost",
    "Gate",
    "GateError",
    "GateInUse",
    "GateShare",
    "GateShares",
    "GateStatus",
    "GateUnavailable",
    "Hold",
    "LeaseStatus",
    "LimitChange",
    "LimitTimeout",
    "LimiterSettings",
    "Permit",
    "PermitLost",
    "Report",
    "StartingGate",
    "SyncGate",
    "SyncPermit",
    "TokenBucket",
    "UnknownGate",
    "UnknownPermit",
    "Wait",
    "existing_gate",
    "gate_names",
    "named_gate",
    "remove_gate",
]


__getattr__ = _lazily(__name__, {"LimiterSettings": "limiter.settings"})
