"""A program that a command is given: how it is read, and how its end is shown."""

import sys
from pathlib import Path
from typing import BinaryIO

import click

from jail.models import LANGUAGES, CodeRequest, CodeResult
from penstock.options import say

NOT_RUN, TIMED_OUT, OUT_OF_BOUNDS = 125, 124, 137
_BY_SUFFIX = {
    ".py": "python", ".sh": "bash", ".js": "nodejs", ".c": "c", ".ts": "typescript", ".cpp": "cpp",
    ".cc": "cpp", ".go": "go", ".rs": "rust", ".java": "java", ".rb": "ruby", ".lua": "lua",
    ".pl": "perl", ".php": "php", ".r": "R", ".sql": "sql", ".cs": "csharp", ".kt": "kotlin_script",
    ".swift": "swift", ".jl": "julia", ".scala": "scala",
}  # fmt: skip


def request_of(
    program: BinaryIO, language: str | None, timeout: float, *, with_input: bool
) -> CodeRequest:
    if with_input and program is sys.stdin.buffer:
        raise click.UsageError("-i: stdin is already the program; use a file for one of them")
    suffix = Path(program.name).suffix.lower() if isinstance(program.name, str) else ""
    chosen = language or _BY_SUFFIX.get(suffix, "python")
    if chosen not in LANGUAGES:
        raise click.UsageError(f"--language {chosen!r} is none of {', '.join(sorted(LANGUAGES))}")
    return CodeRequest.read({
        "code": program.read().decode(errors="replace"),
        "language": chosen,
        "run_timeout": timeout,
        "stdin": sys.stdin.buffer.read().decode(errors="replace") if with_input else None,
    })  # fmt: skip


def ended(result: CodeResult, *, as_json: bool) -> int:
    """Print how a program ended; the exit code that a command has after it."""
    if as_json:
        click.echo(result.model_dump_json())
    else:
        _show(result)
    return exit_code(result)


def _show(result: CodeResult) -> None:
    sys.stdout.write(result.stdout)
    sys.stdout.flush()
    sys.stderr.write(result.stderr)
    if result.error_kind == "limit":
        say(f"penstock: the program was stopped: {result.error_reason}", err=True)
    elif result.error_kind == "infrastructure":
        said = f": {result.message}" if result.message else ""
        say(f"penstock: the sandbox failed ({result.error_reason}){said}", err=True)
    if any(one and one.stdout_truncated for one in (result.run_result, result.compile_result)):
        click.echo("penstock: its output was cut", err=True)


def exit_code(result: CodeResult) -> int:
    """How a shell would see the program's end."""
    if result.error_kind == "infrastructure":
        return NOT_RUN
    if result.error_kind == "limit":
        return TIMED_OUT if result.error_reason.endswith("timeout") else OUT_OF_BOUNDS
    last = result.run_result or result.compile_result
    code = (last and last.return_code) or 0
    return 128 - code if code < 0 else code
