"""Python, the versions of our dependencies, and whether nothing else has our flat package names.

`worker`, `buffer` and `limiter` are names that other distributions and users' own
folders carry too. Whichever comes first on the path wins, silently; so it is checked.
"""

import importlib.util
import os
import platform
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from ground import PenstockError
from ground.extras import EXTRAS
from penstock.doctor.finding import Finding, fail, ok, warn
from penstock.release import __version__

DISTRIBUTION = "penstock-rl"
NAMES = ("ground", "limiter", "buffer", "gateway", "jail", "worker", "penstock")
_OUR_MODULES = re.compile(rf"^({'|'.join(NAMES)})(?:/[^,\n]*)?\.py,", re.MULTILINE)
OLDEST_PYTHON = (3, 11)
# The newest that `make test` has passed on. What is newer is likely to work, and is said.
TESTED_PYTHON = (3, 13)
TESTED = {"redis": "8.1", "rq": "3.0"}


class PackageClash(PenstockError):
    """Something else on this Python's path has the name of one of our packages."""


def require_own_packages() -> None:
    """Raise `PackageClash` if `import worker` and the like would find another package."""
    for finding in check_names():
        if finding.verdict == "fail":
            raise PackageClash(f"{finding.about}: {finding.fact}; {finding.remedy}")


def check_python(version: tuple[int, int] | None = None) -> Finding:
    found = version or sys.version_info[:2]
    shown = f"{found[0]}.{found[1]}" if version else platform.python_version()
    if found < OLDEST_PYTHON:
        return fail("Python", shown, "Penstock needs Python 3.11 or newer")
    if found > TESTED_PYTHON:
        newest = ".".join(map(str, TESTED_PYTHON))
        return warn("Python", f"{shown}, tested up to {newest}", "report what does not work")
    return ok("Python", shown)


def check_versions() -> Iterator[Finding]:
    """Each direct dependency against its lower bound, and the range tested where that matters. What
    extras bring is examined if it is here."""
    yield ok("penstock", __version__)
    try:
        lines = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        home = Path(__file__).resolve().parents[2]
        yield warn(
            DISTRIBUTION,
            f"{home} is on the path, but not installed: the versions it needs are not checked",
            f"pip install --no-deps --editable {shlex.quote(str(home))}",
        )
        return
    for needed in {one.name: one for one in map(Requirement, lines)}.values():
        if _is_for(needed, "") or (
            any(_is_for(needed, extra) for extra in set(EXTRAS.values())) and _is_here(needed.name)
        ):
            yield _check_version(needed)


def _is_for(needed: Requirement, extra: str) -> bool:
    """Whether this machine needs it with that extra; an empty one is a plain install."""
    return needed.marker is None or needed.marker.evaluate({"extra": extra})


def _is_here(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def _check_version(needed: Requirement) -> Finding:
    try:
        found = metadata.version(needed.name)
    except metadata.PackageNotFoundError:
        return fail(needed.name, "not installed", f"pip install '{needed}'")
    if not needed.specifier.contains(found, prereleases=True):
        return fail(needed.name, f"{found}, needed {needed.specifier}", f"pip install '{needed}'")
    tested = TESTED.get(needed.name)
    if tested and Version(found).release[:2] > Version(tested).release[:2]:
        return warn(
            needed.name,
            f"{found}, tested up to {tested}",
            f"pip install '{needed.name}=={tested}.*' if something does not work",
        )
    return ok(needed.name, found)


def check_names(
    owners: Mapping[str, list[str]] | None = None, here: Path | None = None
) -> Iterator[Finding]:
    """Our package names: each has one owner, comes from our folder, is not shadowed from here."""
    owners = _owners() if owners is None else owners
    here = _working_folder() if here is None else here
    home = Path(__file__).resolve().parents[2]
    troubles = [
        trouble
        for name in NAMES
        if (trouble := _trouble(name, set(owners.get(name, ())) - {DISTRIBUTION}, home, here))
    ]
    yield from troubles or [ok("package names", f"{', '.join(NAMES)}: Penstock's, from {home}")]
    yield from _shadows(here)


def _owners() -> Mapping[str, list[str]]:
    """The distributions that have each of our names, as `packages_distributions` tells it of every
    name. That takes a fifth of a second of a processor, since it looks at each of their files."""
    owners: dict[str, list[str]] = defaultdict(list)
    for distribution in metadata.distributions():
        said = (distribution.read_text("top_level.txt") or "").split()
        names = said or _OUR_MODULES.findall(distribution.read_text("RECORD") or "")
        for name in {*names} & {*NAMES}:
            owners[name].append(distribution.metadata["Name"])
    return owners


def _shadows(here: Path) -> Iterator[Finding]:
    """Files of this folder that have the name of a module that we, or RQ, import. The folder is
    not listed: it may be large, far away, or one that this user may not list."""
    installed = {
        name.partition(".")[0]
        for name, module in sys.modules.items()
        if "-packages" in (getattr(module, "__file__", None) or "")
    }
    known = sys.stdlib_module_names | installed
    places = [place for name in sorted(known - {*NAMES}) for place in _places(here, name)]
    found = [place for place in places if _is_module(place)]
    if found:
        yield warn(
            "working folder",
            f"{', '.join(file.name for file in found)}: named as modules that are imported",
            "rename them: a stock `rq worker` or a `python -m` started here imports them instead",
        )


def _places(folder: Path, name: str) -> tuple[Path, Path]:
    """The paths at which a module of that name would lie."""
    return folder / name, folder / f"{name}.py"


def _trouble(name: str, others: set[str], home: Path, here: Path) -> Finding | None:
    about = f"package {name}"
    if others:
        return fail(
            about,
            f"also installed by {', '.join(map(_known, sorted(others)))}",
            f"pip uninstall {' '.join(sorted(others))}, then pip install --force-reinstall "
            f"{DISTRIBUTION}; or give Penstock an environment of its own",
        )
    found = _location(name)
    if found != home / name:
        return fail(
            about,
            f"imported from {found or 'nowhere'}, not from {home / name}",
            "rename or move that one, or take its folder off PYTHONPATH",
        )
    shadow = next(filter(_is_module, _places(here, name)), None)
    if shadow and here.resolve() != home:
        return warn(
            about,
            f"{shadow} hides Penstock's package from programs started in this folder",
            "rename it: a stock `rq worker` started here imports it instead",
        )
    return None


def _known(distribution: str) -> str:
    if distribution == "penstock":
        return f"penstock, another project (Penstock is {DISTRIBUTION})"
    return distribution


def _location(name: str) -> Path | None:
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).resolve().parent if spec and spec.origin else None


def _is_module(path: Path) -> bool:
    """Whether a path is a module that this user's programs can import."""
    file = path if path.suffix == ".py" else path / "__init__.py"
    try:
        return file.is_file()
    except OSError:
        return False


def _working_folder() -> Path:
    """The working folder may have been deleted; then nothing is imported from it."""
    try:
        return Path.cwd()
    except OSError:
        return Path(os.devnull)
