"""What rewards raise.

PenstockError
└── RewardUnknown    a sandbox or Redis failed, so there is nothing to score; mask the sample
"""

from typing import Any

from ground import PenstockError

Metadata = dict[str, Any]


class RewardUnknown(PenstockError):
    """There is no score, for no fault of the program: neither 0 nor any other number is true.

    `results` and `metadata` are what `check_correctness` returned; `unknown` are the metadata
    of the cases without outcome.
    """

    def __init__(
        self, results: list[Any], metadata: list[Metadata], unknown: list[Metadata]
    ) -> None:
        why = str(unknown[0]["api_request_error"] or unknown[0]["status"]).rstrip(".?")
        super().__init__(
            f"{len(unknown)} of {len(results)} cases have no outcome, one because: {why}. Mask the"
            " sample; or set PENSTOCK_REWARD_FAILURES=zero to have a score of 0 instead"
        )
        self.results = results
        self.metadata = metadata
        self.unknown = unknown
