"""What plain English asks of a page, as far as a machine can check it.

- A sentence has at most 22 words, a table's cell 20, a paragraph or a list's item 4 lines of
  120 characters. A sentence ends at `.`, `!` or `?`, at a colon, and at the end of its block.
- Inline code, a link's target and a picture count as one word or none; blocks are not read.
- Some words are not used, because a colleague would not say them so.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

SENTENCE, CELL, LINES, WIDTH = 22, 20, 4, 120

_EACH = "second|minute|hour|job|write|megabyte|core|turn|call"
NOT_SAID = {
    r"anew": "again",
    r"for ?ever": "permanently, without a limit",
    r"who(?:ever|soever)|whomever": "anyone who, everyone who",
    r"heard of|hears? nothing": "name the fact: no heartbeat, unknown",
    r"mend(?:s|ed|ing)?": "fix, repair",
    r"ours|theirs": "name it: Penstock's, this server's",
    r"told": "name the fact: gets, reads, the message says",
    r"deeds?": "action",
    r"goes without": "has no",
    r"what (?:\w+ )?(?:is|are) to (?!be\b)\w+": "name the thing",
    r"lest|hitherto|thereof|wherein|whence|hence|thereby": "if, so, because",
    r"becomes? of": "happens to",
    rf"(?:\d(?:[\d,.]*\d)?|many|much)(?: \w+)? an? (?:{_EACH})": "per",
}
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"(`+)(?:(?!\1).)+?\1", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)\s]*\)")
_ENDS = re.compile(r"(?<=[.!?:])[)\"”*_]*\s+")
_MARK = re.compile(r"^ *(?:[-*+]|\d+\.) +")


@dataclass(frozen=True)
class Block:
    """A paragraph, an item of a list, a heading or a cell, without its marks."""

    line: int
    text: str
    cell: bool = False


def faults(page: str) -> list[str]:
    """One line for each, with its place and what to do."""
    return [f"{block.line}: {fault}" for block in blocks(page) for fault in _of(block)]


def blocks(page: str) -> Iterator[Block]:
    gathered: list[str] = []
    began = 0
    for number, line in enumerate([*_without_code(page).split("\n"), ""], 1):
        apart = not line.strip() or _MARK.match(line) or line.lstrip().startswith(("#", "|", ">"))
        if apart and gathered:
            yield Block(began, " ".join(gathered))
            gathered = []
        if line.lstrip().startswith("|"):
            yield from (Block(number, cell, cell=True) for cell in _cells(line))
        elif line.strip():
            began = began if gathered else number
            gathered.append(_MARK.sub("", line).strip().lstrip("#> "))
        if line.lstrip().startswith("#"):
            yield Block(began, gathered.pop())


def _without_code(page: str) -> str:
    """Blocks and comments leave their line ends, so that lines keep their numbers."""
    for pattern in (_FENCE, _COMMENT):
        page = pattern.sub(lambda found: "\n" * found[0].count("\n"), page)
    page = _CODE.sub(lambda found: "Code" + "\n" * found[0].count("\n"), page)
    return "\n".join("" if line.startswith("    ") else line for line in page.split("\n"))


def _cells(row: str) -> list[str]:
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip())[1:-1]]
    return [] if all(re.fullmatch(r":?-*:?", cell) for cell in cells) else cells


def _of(block: Block) -> Iterator[str]:
    text = _LINK.sub(r"\1", block.text)
    said = text if len(text) < 60 else f"{text[:57]}…"
    if block.cell and len(_words(text)) > CELL:
        yield f"a cell of {len(_words(text))} words: {said}"
    if not block.cell and len(text) > LINES * WIDTH:
        yield f"a paragraph of {len(text) / WIDTH:.1f} lines: {said}"
    for sentence in _ENDS.split(text):
        if len(words := _words(sentence)) > SENTENCE:
            yield f"a sentence of {len(words)} words: {sentence}"
    for pattern, instead in NOT_SAID.items():
        for found in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
            yield f"{found[0]!r}; say: {instead}"


def _words(text: str) -> list[str]:
    return [word for word in text.split() if re.search(r"\w", word)]
