"""The `penstock` command begins here: it listens to Ctrl-C before it loads anything."""

import io
import os
import sys

from penstock.interrupts import Loading
from penstock.release import __version__


def main() -> None:
    """The command; see `penstock.cli`."""
    _open_what_is_closed()
    _write_any_character()
    if sys.argv[1:] == ["--version"]:  # loads nothing
        print(f"penstock {__version__}", flush=True)
        return
    if len(sys.argv) == 3 and sys.argv[1] == "health" and is_url(sys.argv[2]):
        sys.exit(service_health(sys.argv[2]))  # every few seconds, next to each service
    with Loading():
        from penstock.cli import main as run
    run()


def _write_any_character() -> None:
    """Write characters that stdout's encoding lacks as their numbers, so that none ends a
    command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def is_url(what: str) -> bool:
    return what.startswith(("http://", "https://"))


def service_health(url: str) -> int:
    """Ask a service for its health: 0 if it is well; else 1, and why on stderr. Loads little."""
    import http.client
    import urllib.error
    import urllib.request

    scheme, _, rest = url.partition("://")
    url = f"{scheme}://{rest.rpartition('@')[2]}"  # a token in it is not needed, nor shown
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"{url.rstrip('/')}/healthz", timeout=8.0):
            return 0
    except urllib.error.HTTPError as answer:
        try:
            reason = answer.read(500).decode(errors="replace")
        except (OSError, http.client.HTTPException):  # it hangs or breaks off
            reason = f"{url}: it answers {answer.code}, and does not say why"
    except (OSError, ValueError, http.client.HTTPException) as problem:
        reason = f"{url}: {getattr(problem, 'reason', problem)}"
    from ground import visible  # it loads much, but only here

    print(f"penstock: {visible(reason)}", file=sys.stderr)
    return 1


def _open_what_is_closed() -> None:
    """Open streams that were closed by `>&-`: none of our sockets may get the number of one."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            stream = os.fdopen(number, "w" if number else "r", closefd=False)
            setattr(sys, name, stream)
