"""The page: its files made into one, with a policy that lets nothing else in."""

import base64
import hashlib
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent


@cache
def page() -> str:
    """One document that loads nothing."""
    return (
        _part("page.html")
        .replace("/* style */", _part("page.css"))
        .replace("/* script */", _script())
    )


@cache
def policy() -> str:
    """Only this very script and style; requests to this server alone; in nobody's frame."""
    return (
        f"default-src 'none'; script-src 'sha256-{_digest(_script())}'; "
        f"style-src 'sha256-{_digest(_part('page.css'))}'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


@cache
def _script() -> str:
    return "".join(map(_part, ("charts.js", "bars.js", "tables.js", "page.js")))


def _part(name: str) -> str:
    return (_HERE / name).read_text()


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
