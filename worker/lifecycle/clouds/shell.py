"""Commands in a sandbox whose provider can run a line of a shell, and pass files.

Most SDKs return text, some mix both outputs, and some wait for what a command left in the
background. So a script inside runs the command with its outputs in files. It ends it with its group
when its time is over, and prints how it ended. It needs `sh`, `base64` and what every image has.
"""

import base64
import errno
import math
import shlex
import uuid
from dataclasses import dataclass
from typing import Protocol

from worker.lifecycle.provider import Command, ExecResult, FileRefused

MOST = 64 << 20  # bytes of a file, an input or an output
SPARE = 20.0  # seconds beyond a command's own timeout, in which the script says how it ended
FILE_WITHIN = 300.0
_INLINE = 48 << 10  # bytes that travel with the line, or with what it prints
_LONGEST_LINE = 96 << 10  # Linux takes 128 KiB as one argument

# $1: where its files lie. $2: seconds for the command. $3: its folder. $4: its input in base64, or
# `-` if it is in a file. Then the command. File 3 is what the line prints; nothing that runs on
# may hold it open.
_RUN = f"""
exec 3>&1 >/dev/null 2>&1
umask 077
mark=$1
case $1 in /*) at=$1 ;; *) at=$PWD/$1 ;; esac
seconds=$2 folder=$3 given=$4
shift 4
mkdir "$at" || exit 0
if [ "$given" = - ]; then mv "$at.in" "$at/in"; else printf %s "$given" | base64 -d >"$at/in"; fi
: >"$at/out" && : >"$at/err" || exit 0
why=
group=
command -v setsid && group=setsid
if cd -- "${{folder:-.}}" 2>"$at/err"; then
  $group "$@" <"$at/in" >"$at/out" 2>"$at/err" 3>&- &
  main=$!
  $group /bin/sh -c 'sleep "$1"; : >"$2/late"; kill -9 "-$3" || kill -9 "$3"' \
    sh "$seconds" "$at" "$main" </dev/null 3>&- &
  clock=$!
  wait "$main"
  code=$?
  kill -9 "-$clock" || kill -9 "$clock"
  [ -e "$at/late" ] && [ "$code" = 137 ] && why=timeout
else
  code=126 why=no_folder
fi
for each in out err; do
  if [ "$(wc -c <"$at/$each")" -gt {MOST} ]; then
    head -c {MOST} <"$at/$each" >"$at/cut" && mv "$at/cut" "$at/$each"
  fi
done
out=$(($(wc -c <"$at/out"))) err=$(($(wc -c <"$at/err")))
if [ $((out + err)) -gt {_INLINE} ]; then
  echo "$mark $code inside $why" >&3
else
  echo "$mark $code here $why" >&3
  base64 <"$at/out" >&3
  echo "$mark" >&3
  base64 <"$at/err" >&3
  echo "$mark" >&3
  rm -rf "$at" "$at.sh"
fi
exit 0
"""
# By a shell, whose 127 and 126 say that a program is missing, or cannot be executed.
_EXEC = ["/bin/sh", "-c", 'exec "$@"', "sh"]


class Inside(Protocol):
    """The inside of one sandbox, by what its provider's SDK can do in it."""

    async def line(self, line: str, within: float) -> str:
        """Run it by a shell, from where the sandbox starts: what it printed."""

    async def put(self, path: str, content: bytes) -> None:
        """Write a new file, whose folder exists."""

    async def get(self, path: str) -> bytes:
        """A file that exists."""


class NoAnswer(Exception):
    """The command's end was not reported by what ran inside."""


@dataclass(frozen=True)
class _Answer:
    code: int
    inside: bool  # whether the outputs still are there
    why: str
    out: bytes = b""
    err: bytes = b""


async def run(inside: Inside, command: Command, folder: str = "/tmp") -> ExecResult:  # noqa: S108
    """Run one command to its end, as `Provider.exec` has it. `folder`: where files may be
    meanwhile, seen from where the sandbox starts."""
    check_size("its input", command.stdin)
    at = f"{folder}/.penstock-{uuid.uuid4().hex}"
    by_file = len(command.stdin) > _INLINE
    if by_file:
        await inside.put(f"{at}.in", command.stdin)
    given = "-" if by_file else base64.b64encode(command.stdin).decode()
    env = ["env", *(f"{name}={text}" for name, text in command.env.items())]
    words = [at, str(max(1, math.ceil(command.timeout))), command.cwd, given]
    words += [*(env if command.env else ()), *_EXEC, *command.argv]
    line = shlex.join(["sh", "-c", _RUN, "sh", *words])
    if len(line) > _LONGEST_LINE:
        await inside.put(f"{at}.sh", f"set -- {shlex.join(words)}\n{_RUN}".encode())
        line = f"sh {at}.sh"
    answer = _read(at, await inside.line(line, command.timeout + SPARE))
    out, err = answer.out, answer.err
    if answer.inside:
        out, err = await inside.get(f"{at}/out"), await inside.get(f"{at}/err")
        await inside.line(f"rm -rf {at} {at}.sh", SPARE)
    if answer.why == "timeout":
        return ExecResult(None, out, err, timed_out=True)
    denied = answer.code == 126 and b"permission denied" in err.lower()  # the shell's words
    refused = answer.why or ("not_executable" if denied else "")
    return ExecResult(answer.code, out, err, refused=refused)


def _read(at: str, printed: str) -> _Answer:
    """A login shell may have printed something before it."""
    _, found, said = printed.partition(f"{at} ")
    first, _, rest = said.partition("\n")
    fields = [*first.split(" "), "", "", ""]
    if not found or not fields[0].isdecimal() or fields[1] not in ("here", "inside"):
        raise NoAnswer(
            "the shell inside did not say how the command ended. Is its /tmp full, or are `sh` or"
            f" `base64` missing? It printed {printed.strip()[-300:]!r}"
        )
    if fields[1] == "inside":
        return _Answer(int(fields[0]), True, fields[2])
    out, err = (base64.b64decode(part) for part in rest.split(at)[:2])
    return _Answer(int(fields[0]), False, fields[2], out, err)


def check_size(what: str, content: bytes) -> None:
    if len(content) > MOST:
        raise FileRefused(
            errno.EFBIG,
            f"{len(content):,} bytes; at most {MOST:,} fit into one call, so send it in parts",
            what,
        )
