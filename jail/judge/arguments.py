"""The arguments of a function that is called: a JSON value a line."""

import json

from jail.inside.values import thing


def arguments_of(given: bytes) -> list[bytes]:
    """The lines, each an argument. Raises ValueError for one that a sandbox could not read."""
    lines = given.rstrip().split(b"\n") if given.strip() else []
    tagged = b'"$' in given
    for line in lines:
        try:
            value = json.loads(line.decode())
            if tagged:
                thing(value)
        except (ValueError, TypeError, RecursionError):
            raise ValueError(f"{line.decode(errors='replace')!r:.60}, which is not JSON") from None
    return lines
