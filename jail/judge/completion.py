"""The program in what a model wrote, and its language."""

import re
from collections.abc import Iterator

# What is written behind the three backquotes, in lower case.
_FENCES = {
    "python": "python", "py": "python", "python3": "python", "py3": "python",
    "c": "c", "cpp": "cpp", "c++": "cpp", "cxx": "cpp", "cc": "cpp",
    "java": "java", "go": "go", "golang": "go", "rust": "rust", "rs": "rust",
    "javascript": "nodejs", "js": "nodejs", "node": "nodejs", "nodejs": "nodejs",
    "typescript": "typescript", "ts": "typescript", "bash": "bash", "sh": "bash", "shell": "bash",
    "csharp": "csharp", "c#": "csharp", "cs": "csharp", "php": "php", "ruby": "ruby", "rb": "ruby",
    "kotlin": "kotlin_script", "scala": "scala", "swift": "swift", "perl": "perl", "lua": "lua",
    "julia": "julia", "jl": "julia", "r": "R", "sql": "sql", "racket": "racket", "lean": "lean",
}  # fmt: skip
for _year in ("98", "03", "11", "14", "17", "20", "23", "26"):
    _FENCES |= {f"c++{_year}": "cpp", f"cpp{_year}": "cpp"}
_NAME = re.compile(r"[{.\s]*([\w+#-]+)")
_OPENING = re.compile(r"([^`~]*)(`{3,}|~{3,}(?!~))([^`]*)")
_MARKERS = " \t>*+-.)0123456789"  # of lists and quotations, in front of a fence
_VERLS = re.compile(r"```([^\n`]*)\n(.*?)(?:```|\Z)", re.DOTALL)


def language_named(name: str) -> str | None:
    """The language that a fence names, or a data set: `c++`, `py`, `python title="a.py"`."""
    found = _NAME.match(name)
    return _FENCES.get(found[1].lower()) if found else None


def code_of(completion: str, language: str | None = None) -> tuple[str, str] | None:
    """A program and its language; None if there is no block.

    It is the last block whose fence names the language: Python's or else any, if none is given.
    If there is none, it is the first block without a name, or else the first of all.
    """
    blocks = list(_blocks(completion))
    kinds = {kind for _, kind, _ in blocks}
    wanted = language or ("python" if "python" in kinds else None)
    for _, kind, code in reversed(blocks):
        if kind and kind == (wanted or kind):
            return code, kind
    unnamed = [code for words, _, code in blocks if not words]
    rest = unnamed or [code for _, _, code in blocks]
    return (rest[0], language or "python") if rest else None


def _blocks(completion: str) -> Iterator[tuple[str, str | None, str]]:
    """The blocks of a completion: a fence's words, the language that they name, and the code, which
    may lack its end.

    A fence may be indented or quoted, as in a list: so is its code, then. One behind words on its
    line must name a language.
    """
    fence, indent, words, kind = "", "", "", None
    code: list[str] = []
    for line in completion.split("\n"):
        text = line.rstrip()
        if fence and text.lstrip().startswith(fence):  # words behind its end are none of it
            yield words, kind, "\n".join([*code, ""])
            words = text.lstrip().removeprefix(fence).strip()
            kind, code = language_named(words), []
            fence = fence if kind else ""  # another block that begins is its end too
        elif fence and not text.endswith(fence):
            if not any(code) and text.strip(" \t>") and not line.startswith(indent):
                indent = ""  # its first line stands in front of its fence
            code.append(_without(indent, line))
        elif fence:
            yield words, kind, "\n".join([*code, _without(indent, text.rstrip(fence[0]))])
            fence = ""
        elif opening := _OPENING.fullmatch(text):
            before, words = opening[1], opening[3].strip()
            kind = language_named(words)
            marked = not before.strip(_MARKERS)
            if kind or marked:
                indent = re.sub(r"[^>\s]", " ", before) if marked else ""
                fence, code = opening[2], []
    if fence:
        yield words, kind, "\n".join(code)


def _without(indent: str, line: str) -> str:
    """The line without what stands in front of its block. An empty quoted line lacks its blank."""
    return line.removeprefix(indent if line.startswith(indent) else indent.rstrip())


def code_as_verl(completion: str, language: str | None = None) -> tuple[str, str] | None:
    """The program as verl takes it: the last ```python block, else the first block of any kind,
    which is Python where its fence does not say otherwise. With a `language`: the last block of
    that, else the same, taken for that language.
    """
    if language is not None and language != "python":
        own = [code for fence, code in _VERLS.findall(completion)
               if language_named(fence) == language]  # fmt: skip
        if own:
            return own[-1], language
    if "```python" in completion:
        code = completion.rpartition("```python")[2].partition("```")[0]
        return code, language or "python"
    pieces = completion.split("```")
    if len(pieces) < 2:
        return None
    fence, newline, code = pieces[1].partition("\n")
    named = language_named(fence)
    if newline and (named or fence.strip().isalpha()):
        return code, language or named or "python"
    return pieces[1], language or "python"
