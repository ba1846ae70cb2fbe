"""The blocks of a document that are run, and how their output is compared.

    ```console      every `$ ` line is run by bash, in order, in one scratch folder a
                    document; what follows it is what it prints (stderr included)
    ```python       run as a program in the same folder; with a file's name behind it, kept
                    there under that name for the steps that follow; ```cpp NAME likewise
    ```output       what the program before it prints

In expected output `...` stands for any text within a line, and alone on a line for any
number of lines; numbers with a point (versions, seconds) match any such number; runs of
blanks are one blank. Blocks of other languages (text, pyi, toml, yaml) are not run; sh and
bash are refused, because nobody would notice when they rot.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

FENCE = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = {"text", "pyi", "toml", "yaml", "lua", "json"}
_NUMBER = r"\d+(?:\.\d+)+"


@dataclass(frozen=True)
class Step:
    """One thing to run, and what it is to print (None: anything)."""

    line: int
    program: str
    python: bool = False
    output: str | None = None
    kept_as: str = ""


def steps(document: Path) -> list[Step]:
    text = document.read_text()
    found: list[Step] = []
    for fence in FENCE.finditer(text):
        line = text.count("\n", 0, fence.start()) + 1
        language, kept_as, body = fence[1], fence[2] or "", fence[3]
        if language == "console":
            found += _console(line, body)
        elif language == "python":
            found.append(Step(line, body, python=True, kept_as=kept_as))
        elif language == "cpp" and kept_as:
            found.append(Step(line, body, kept_as=kept_as))
        elif language == "output":
            found[-1] = replace(found[-1], output=body)
        elif language not in NOT_RUN:
            raise ValueError(
                f"{document.name}:{line}: a block of {language!r} is not run; see here"
            )
    return found


def _console(line: int, body: str) -> list[Step]:
    pieces = re.split(r"^\$ ", body, flags=re.MULTILINE)
    if pieces[0].strip():
        raise ValueError(f"line {line}: a console block begins with `$ `")
    found = []
    for piece in pieces[1:]:
        command, _, output = piece.partition("\n")
        while command.endswith("\\"):
            more, _, output = output.partition("\n")
            command += f"\n{more}"
        found.append(Step(line, command, output=output if output.strip() else None))
    return found


def matches(expected: str, printed: str) -> bool:
    """Whether what was printed is what the document says."""
    pattern = ""
    for line in expected.strip("\n").splitlines():
        pattern += r"(?:.*\n)*?" if line.strip() == "..." else _line(line) + r"[ \t]*\n"
    return re.fullmatch(pattern, _one_blank(printed).strip("\n") + "\n") is not None


def _line(line: str) -> str:
    pieces = re.split(rf"(\.\.\.|{_NUMBER})", _one_blank(line).rstrip())
    as_pattern = {"...": ".*"}
    return "".join(
        as_pattern.get(piece) or (_NUMBER if re.fullmatch(_NUMBER, piece) else re.escape(piece))
        for piece in pieces
    )


def _one_blank(text: str) -> str:
    return re.sub(r"[ \t]+", " ", text)
