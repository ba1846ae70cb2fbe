"""An explanation is one sentence, and the facts behind it in the order of their weight."""

from dataclasses import dataclass
from typing import Any, Literal

Look = Literal["", "well", "warn", "bad"]
SHOWN = 300  # characters of what programs, checkers and cases say


@dataclass(frozen=True)
class Fact:
    """A fact of an explanation. `kind`, `name` and `where` say what can be opened, as a `Place` of
    `top`."""

    what: str
    said: str
    look: Look = ""
    kind: str = ""
    name: str = ""
    where: str = ""


@dataclass(frozen=True)
class Explained:
    """An explanation says why something has the reward that it has, or has none, or waits.

    kind   job, item, group, session or sandbox
    where  what its address needs beside the name: a task, or the run of a sandbox
    jobs   the jobs whose programs can be judged again
    """

    kind: str
    name: str
    where: str
    sentence: str
    look: Look
    facts: tuple[Fact, ...]
    jobs: tuple[str, ...] = ()


def shown(text: Any) -> str:
    """Text of others as one line: blanks and newlines are seen, and much of it is cut."""
    line = repr(text if isinstance(text, str) else str(text))
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}… ({len(str(text)):,} characters)"


def cut(text: str) -> str:
    """A sentence of others on one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}…"


def seconds(value: float) -> str:
    """Seconds as people say them."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.3g} s" if value < 600 else f"{value / 60:.0f} min"


def many(count: int, what: str) -> str:
    return f"{count:,} {what}{'s' * (count != 1)}"
