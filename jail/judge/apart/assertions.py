"""Assertions in C++, JavaScript and bash: the program answers their calls, and they hold outside.

A check whose statements are all assertions of one call with plain arguments, beside a literal:

    assert(f(1, {2}) == 3);     assert.deepEqual(f([1]), [2]);     test "$(f 1 2)" = 3

Only the calls go into the program's process. What they return comes back as JSON, and is compared
with the literal here. Any other statement, but for declarations of plain values that the arguments
name, makes it a check that shares its program's process.
"""

from functools import lru_cache

from jail.judge.apart import bash, cpp, nodejs
from jail.judge.apart.parts import MARK, Apart

_LANGUAGES = {"cpp": cpp.taken_apart, "nodejs": nodejs.taken_apart, "bash": bash.taken_apart}


@lru_cache(256)
def apart_of(language: str, check: str) -> Apart | None:
    """Take a check apart in its language; None if a statement is no such assertion."""
    try:
        return _LANGUAGES[language](check)
    except (ValueError, RecursionError, OverflowError):
        return None


def answer_in(language: str, stdout: bytes) -> tuple[bytes | None, bytes]:
    """The results of the calls, as JSON, and what the program printed besides. None: it did not
    come to its end."""
    before, *between = stdout.split(MARK.encode())
    if len(between) != 2:
        return None, stdout
    answer, after = between
    return bash.as_json(answer) if language == "bash" else answer, before + after
