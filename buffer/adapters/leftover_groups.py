"""A trainer that begins may find groups in its task; it is trained on them, so the log says so."""

import logging

from buffer.versions.publishing import Published, Versions

log = logging.getLogger(__name__)


def log_found(task: str, published: Published, now: Versions, *, resumes: bool) -> None:
    """Log the groups that an earlier process left: a warning, unless the trainer `resumes` a run. A
    new run would not expect them."""
    there = sum(now.outstanding.values()) + now.again
    if there or published.returned or published.gone:
        log.log(
            logging.INFO if resumes else logging.WARNING,
            "the task has groups of an earlier process, which are trained on: a new run needs "
            "a PENSTOCK_RUN of its own",
            extra={"task": task, "groups": there, "returned": published.returned,
                   "gone": published.gone},
        )  # fmt: skip
