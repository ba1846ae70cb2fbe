"""The spans of an item say which versions made it: `version_start` and `version_end`, run-length
`versions` as `[[tokens, version], …]`, or slime's `weight_versions`, one for each engine's answer.
An item with several rows of tokens has a list of `versions` per row.

Version -1 marks tokens that no version made, such as a prompt. Version -2 is an unknown one, which
counts as older than any.
"""

from collections.abc import Sequence
from typing import Any

from buffer.errors import ItemRefused

_ENDS = ("version_start", "version_end")
REPORTS = frozenset((*_ENDS, "versions", "weight_versions"))
Span = tuple[int, int]
NOT_MADE, UNKNOWN = -1, -2
_HIGHEST = 2**31  # versions are part of scores, next to the time
MOST_TOKENS = 2**31  # of an item: what is masked is added up in an integer of Redis


def reported(item: dict[str, Any]) -> tuple[str, str]:
    """The lowest and the highest version that an item reports; empty if it reports none."""
    if REPORTS.isdisjoint(item):
        return "", ""
    found = [_version(item[name], name) for name in _ENDS if item.get(name) is not None]
    found += [version for _, version in spans_of(item)]
    answers = item.get("weight_versions")
    if isinstance(answers, list):  # an engine that was given no name for its weights says "default"
        found += [int(said) for said in map(str, answers) if said.isdecimal() and len(said) < 10]
    made = [max(version, 0) for version in found if version != NOT_MADE]
    return (str(min(made)), str(max(made))) if made else ("", "")


def rows_of(item: dict[str, Any]) -> list[list[Span]]:
    """The stretches, as (tokens, version), of each row of tokens; empty if the item names none."""
    said = item.get("versions")
    if said is None or said == []:
        return []
    if not isinstance(said, list):
        raise ItemRefused(
            "versions must be a list of [tokens, version] pairs, or such a list per row"
        )
    rows = [[_span(pair) for pair in row] for row in (said if _has_rows(said) else [said])]
    if sum(tokens for row in rows for tokens, _ in row) > MOST_TOKENS:
        raise ItemRefused("versions has more than 2^31 tokens in all")
    return rows


def spans_of(item: dict[str, Any]) -> list[Span]:
    """The stretches, as (tokens, version), of an item, row after row."""
    return [span for row in rows_of(item) for span in row]


def mask(items: list[dict[str, Any]], oldest: int, start: int | None = None) -> int:
    """Write into each item what of its tokens is older than `oldest`; returns how many those are.

    `masked` has the stale stretches, `[first, end]`, and `train_from` the first token behind all of
    them: for each row, if its `versions` are by row. A row without a token to train on has None. An
    item that reports no version counts by the `start` of its group.
    """
    masked, oldest = 0, max(oldest, 0)  # -1 and -2 are no versions, early in a run either
    for item in items:
        rows = rows_of(item)
        lowest, _ = reported(item)
        fresh = int(lowest) >= oldest if lowest else start is None or start >= oldest
        stale = [_stale(row, oldest) for row in rows]
        firsts = [
            _first_behind(row, ranges, oldest) if row else 0 if fresh else None
            for row, ranges in zip(rows, stale, strict=True)
        ]
        if not rows:
            item["train_from"] = 0 if fresh else None
        elif _has_rows(item["versions"]):
            item["train_from"], item["masked"] = firsts, stale
        else:
            item["train_from"], item["masked"] = firsts[0], stale[0]
        masked += sum(end - first for ranges in stale for first, end in ranges)
    return masked


def _stale(row: list[Span], oldest: int) -> list[list[int]]:
    """The stretches that a version before `oldest` made, as [first, end]."""
    found: list[list[int]] = []
    place = 0
    for tokens, version in row:
        end = place + tokens
        if tokens and version != NOT_MADE and version < oldest:
            if found and found[-1][1] == place:
                found[-1][1] = end
            else:
                found.append([place, end])
        place = end
    return found


def _first_behind(row: list[Span], stale: list[list[int]], oldest: int) -> int | None:
    """The first token of version `oldest` or later with no stale one behind it."""
    place, after = 0, stale[-1][1] if stale else 0
    for tokens, version in row:
        if tokens and version >= oldest and place >= after:
            return place
        place += tokens
    return None


def joined(*parts: Sequence[Span]) -> list[list[int]]:
    """Spans one after the other; neighbours of one version become one."""
    out: list[list[int]] = []
    for tokens, version in (span for part in parts for span in part):
        if out and out[-1][1] == version:
            out[-1][0] += tokens
        elif tokens:
            out.append([tokens, version])
    return out


def _has_rows(said: list[Any]) -> bool:
    """Whether these are lists of pairs, not pairs."""
    pairs = (list, tuple)
    return all(
        isinstance(row, pairs) and all(isinstance(one, pairs) for one in row) for row in said
    )


def _span(pair: Any) -> Span:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ItemRefused(f"versions holds {pair!r:.100}, which is no [tokens, version] pair")
    tokens = _whole(pair[0])
    if tokens is None or not 0 <= tokens <= MOST_TOKENS:
        raise ItemRefused(f"versions has {pair[0]!r:.100} tokens: an integer from 0 to 2^31")
    return tokens, _version(pair[1], "versions")


def _version(value: Any, where: str) -> int:
    version = _whole(value)
    if version is None or not UNKNOWN <= version <= _HIGHEST:
        raise ItemRefused(f"{where} has the version {value!r:.100}: an integer from 0 to 2^31")
    return version


def _whole(value: Any) -> int | None:
    """Take 3.0 as an integer, as JSON does."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
