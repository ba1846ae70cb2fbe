"""A copy of every delivered batch in a folder, as slime's buffer writes them."""

import json
import logging
from datetime import datetime
from pathlib import Path

from buffer.batch import Batch

log = logging.getLogger(__name__)


def dump(batch: Batch, folder: Path) -> None:
    """Write a batch as upstream does; but two batches of one second do not overwrite each other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"rollout_data_{datetime.now():%Y%m%d_%H%M%S}_{batch.receipt[:8]}.json"
        (folder / name).write_bytes(_text(batch))
    except OSError as failure:
        log.warning("a batch could not be dumped", extra={"reason": str(failure)})


def _text(batch: Batch) -> bytes:
    try:
        return json.dumps(batch.items, ensure_ascii=False, indent=2).encode()
    except UnicodeEncodeError:  # half a surrogate pair is text to JSON, as an escape
        return json.dumps(batch.items, indent=2).encode()
