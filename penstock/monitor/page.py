"""The page: one document, and scripts and a style that this server has beside it."""

from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent / "static"
_KINDS = {".js": "text/javascript", ".css": "text/css"}
PREFIX = "/static/"

# Scripts and styles from this server alone, and never from text; in no frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@cache
def page() -> str:
    """The document."""
    return (_HERE / "page.html").read_text()


def static_file(name: str) -> tuple[str, str] | None:
    """A file's media type and text, by its name as `files()` has it."""
    return files().get(name)


@cache
def files() -> dict[str, tuple[str, str]]:
    """All of them: nothing else of the disk can be asked for."""
    found = sorted(file for file in _HERE.rglob("*") if file.suffix in _KINDS)
    return {
        file.relative_to(_HERE).as_posix(): (_KINDS[file.suffix], file.read_text())
        for file in found
    }
