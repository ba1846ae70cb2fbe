"""A machine that cannot isolate is refused, with the reason; nothing weaker is taken silently."""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from jail import Outcome, SandboxUnavailable, inside
from jail.inside import janitor, landlock
from jail.isolation import levels, probes, selftest
from jail.jails import Jails
from jail.launch import ServerConfig
from jail.outcome import Program, Step

from .fenced import config

in_one_loop = pytest.mark.asyncio(loop_scope="module")

HERE = Path(__file__)
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can map a pod's users")


def start_where(restriction: str, level: str = "ns") -> str:
    ran = subprocess.run(
        [sys.executable, HERE.with_name("restricted.py"), restriction, level],
        env={"PYTHONPATH": str(HERE.parents[2])},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize(
    ("restriction", "level", "reason", "remedy"),
    [
        ("no-namespaces", "ns", "unshare: No space left on device", "user.max_user_namespaces"),
        ("docker", "ns", "unshare: Operation not permitted", "seccomp=unconfined"),
        ("no-mount", "ns", "Operation not permitted", "seccomp=unconfined"),
        ("no-landlock", "landlock", "landlock is absent", "lsm="),
        pytest.param(
            "masked-pod",
            "ns",
            "mount proc on /proc: Operation not permitted",
            "procMount: Unmasked",
            marks=AS_ROOT,
        ),
    ],
)
def test_it_does_not_start_and_says_why(
    restriction: str, level: str, reason: str, remedy: str
) -> None:
    said = start_where(restriction, level)
    assert f"sandbox level '{level}' is unavailable" in said
    assert reason in said
    assert remedy in said
    assert "started" not in said
    if level == "ns" and landlock.abi() >= landlock.LEAST_ABI:
        assert "PENSTOCK_SANDBOX_LEVEL=landlock" in said


@pytest.mark.skipif(landlock.abi() < landlock.LEAST_ABI, reason="no Landlock of ABI 6")
@pytest.mark.parametrize(
    "restriction",
    ["no-namespaces", "docker", pytest.param("masked-pod", marks=AS_ROOT)],
)
def test_landlock_serves_where_namespaces_are_forbidden_if_it_is_named(restriction: str) -> None:
    assert start_where(restriction, "landlock").strip() == "started b'42\\n'"


@AS_ROOT
def test_ns_serves_in_a_pod_with_users_of_its_own_and_an_unmasked_proc() -> None:
    """As process 1 there, without root and without a capability."""
    assert start_where("pod").strip() == "started b'42\\n'"


@pytest.mark.parametrize("level", ["ns", "landlock"])
def test_it_serves_a_clusters_user_in_a_container_with_read_only_files(level: str) -> None:
    if level == "landlock" and landlock.abi() < landlock.LEAST_ABI:
        pytest.skip("no Landlock of ABI 6")
    assert start_where("apptainer", level).strip() == "started b'42\\n'"


@pytest.mark.parametrize(("abi", "said"), [(0, "absent or switched off"), (5, "ABI 5")])
def test_a_landlock_that_lets_signals_through_is_not_used(
    monkeypatch: pytest.MonkeyPatch, abi: int, said: str
) -> None:
    monkeypatch.setattr(landlock, "abi", lambda: abi)
    with pytest.raises(OSError, match=f"landlock is {said}"):
        landlock.require()


@pytest.mark.parametrize(
    ("level", "problem", "remedy"),
    [
        ("ns", "mount none on /: Permission denied", "apparmor_restrict_unprivileged_userns=0"),
        ("ns", "unshare: Operation not permitted", "unprivileged_userns_clone=1"),
        ("ns", "root cannot become uid 65534 here: x", "PENSTOCK_SANDBOX_UID"),
        ("landlock", "[Errno 13] Permission denied: '/x/python'", "PENSTOCK_SANDBOX_PYTHON"),
    ],
)
def test_the_setting_behind_a_refusal_is_named(
    monkeypatch: pytest.MonkeyPatch, level: levels.Level, problem: str, remedy: str
) -> None:
    """On a machine where each of the settings stands in the way."""
    bad = {f"/proc/sys/{name}": value for name, (value, _) in levels._SETTINGS.items()}
    monkeypatch.setattr(levels, "_read", lambda path: bad.get(path, ""))
    refusal = levels.unavailable(level, problem)
    assert problem in refusal.problem
    assert remedy in refusal.remedy
    assert "PENSTOCK_SANDBOX_FUSION_URL" in refusal.remedy


@in_one_loop
async def test_a_probe_that_gets_through_keeps_it_from_starting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leak = probes.Probe("read its own folder", "os.listdir('/home/sandbox')")
    monkeypatch.setattr(probes, "PROBES", [*probes.PROBES, leak])
    with pytest.raises(SandboxUnavailable, match="could read its own folder"):
        await Jails().start()


@in_one_loop
async def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(SandboxUnavailable, match="/nowhere/python"):
        await Jails(ServerConfig(python="/nowhere/python")).start()


@in_one_loop
@pytest.mark.parametrize("other", ["/bin/false", "/bin/true", "/bin/echo"])
async def test_what_is_no_interpreter_is_named(other) -> None:
    with pytest.raises(SandboxUnavailable, match=f"{other} cannot be run: it ended"):
        await Jails(ServerConfig(python=other)).start()


@in_one_loop
async def test_an_interpreter_that_is_too_old_is_named(tmp_path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\nprintf '3.9\\n/usr\\n/usr\\n/usr\\n'\n")
    old.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match=r"newer, and this is 3\.9"):
        await Jails(ServerConfig(python=str(old))).start()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can ask for root")
@in_one_loop
async def test_it_never_runs_as_root() -> None:
    with pytest.raises(SandboxUnavailable, match="would run as root"):
        await Jails(ServerConfig(uid=0, gid=0)).start()


@in_one_loop
async def test_what_is_exposed_is_seen_below_the_folders_that_each_jail_has_anew() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        (Path(folder) / "given").write_text("seen")
        async with Jails(ServerConfig(expose=(folder,)), use_cgroups=False) as jails:
            code = f"print(open('{folder}/given').read()); open('{folder}/given', 'w')"
            outcome = await jails.run(Program(code))
    assert outcome.stdout == b"seen\n"
    assert b"Read-only file system" in outcome.stderr or b"Permission denied" in outcome.stderr


@in_one_loop
async def test_what_is_exposed_by_a_link_is_seen_by_its_name() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        data, link = Path(folder) / "data", Path(folder) / "link"
        data.mkdir()
        (data / "given").write_text("seen")
        link.symlink_to(data)
        async with Jails(ServerConfig(expose=(str(link),)), use_cgroups=False) as jails:
            outcome = await jails.run(Program(f"print(open('{link}/given').read())"))
    assert outcome.stdout == b"seen\n", outcome


@in_one_loop
async def test_the_self_test_tells_what_it_tried(sandbox: Jails) -> None:
    assert len(sandbox.findings) == len(probes.at("ns"))
    assert all(isinstance(found, selftest.Finding) for found in sandbox.findings)


@pytest.mark.parametrize(
    ("ended_early", "problem"),
    [
        ("attack", "not every attack could be tried: time_limit"),
        ("works", "does not work: time_limit"),
    ],
)
@in_one_loop
async def test_a_self_test_that_does_not_end_is_told_from_one_that_fails(
    ended_early: str, problem: str
) -> None:
    well = Outcome("finished", "ns", run=Step("finished", 0, b"", b"", 1.0, 1.0, 1, 1))
    endings = {"attack": well, "works": well, ended_early: Outcome("time_limit", "ns")}
    outcomes = iter([endings["attack"], endings["works"]])

    async def run(_: Program) -> Outcome:
        return next(outcomes)

    with pytest.raises(SandboxUnavailable, match=problem):
        await selftest.check(run)


@pytest.mark.parametrize(
    ("bare", "tried"),
    [("/elsewhere", True), (inside.__file__, False), (str(Path(inside.__file__).parent), False)],
)
@in_one_loop
async def test_the_probe_of_locks_is_left_out_only_if_what_it_locks_lies_bare(
    bare: str, tried: bool
) -> None:
    async def run(_: Program) -> Outcome:
        said = "\n".join(json.dumps([probe.name, "refused"]) for probe in probes.PROBES)
        step = Step("finished", 0, said.encode(), b"", 1.0, 1.0, 1, 1)
        return Outcome("finished", "ns", run=step)

    table = await selftest.check(run, bare={bare: "no overlay"})
    assert (probes.MEETS_LOCKS in {found.probe for found in table}) is tried


@in_one_loop
async def test_a_self_test_that_cannot_be_set_up_leaves_no_fork_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_port_is_free(*_: object) -> NoReturn:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(selftest.socket, "create_server", no_port_is_free)
    jails = Jails()
    with pytest.raises(SandboxUnavailable, match="Address already in use"):
        await jails.start()
    assert not jails._servers


def test_a_folder_that_is_swept_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a fork server that starts at the same moment."""
    make, made = tempfile.mkdtemp, []

    def swept(prefix: str, dir: str) -> str:
        made.append(make(prefix=prefix, dir=dir))
        if len(made) == 1:
            janitor.sweep(dir)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", swept)
    base, lock = janitor.locked_folder(str(tmp_path))
    janitor.sweep(str(tmp_path))
    assert ([base], made) == ([str(left) for left in tmp_path.iterdir()], [made[0], base])
    os.close(lock)


LEAVES_ONE_WITHOUT_A_GROUP = """
import os, sys, time
from jail.inside import janitor
janitor.stand_by(sys.argv[1], os.open("/dev/null", os.O_RDONLY))
if not os.fork():  # an init
    if not os.fork(): time.sleep(60)
    os._exit(1)
os.wait()
"""


def test_what_an_init_leaves_before_it_has_a_group_of_its_own_dies_alone(tmp_path: Path) -> None:
    """A program is refused, and its process, made ahead, has not run at all yet."""
    said = subprocess.run(
        [sys.executable, "-c", LEAVES_ONE_WITHOUT_A_GROUP, str(tmp_path)],
        start_new_session=True, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (said.returncode, said.stdout, said.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


KEEPS_FILES_OF_ITS_OWN = """
import os, sys, time
from jail.inside import janitor
given = janitor.stand_by(sys.argv[1], os.open("/dev/null", os.O_RDONLY))
os.mkdir(kept := given["base"] + "/.cache")
if not (init := os.fork()):
    os._exit(1)
os.mkdir(left := f"{given['base']}/{init}-left")
os.waitpid(init, 0)
os.write(given["waking"], b"x")
while os.path.exists(left): time.sleep(0.01)
print(os.path.exists(kept))
"""


def test_the_janitor_leaves_alone_what_preloaded_modules_keep_in_their_home(tmp_path: Path) -> None:
    """Some are still being imported as the first files are removed."""
    said = subprocess.run(
        [sys.executable, "-c", KEEPS_FILES_OF_ITS_OWN, str(tmp_path)],
        start_new_session=True, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (said.stdout, said.stderr) == ("True\n", "")
    assert list(tmp_path.iterdir()) == []


def test_a_tree_is_removed_however_deep_and_closed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    deepest = top
    for _ in range(100):
        deepest /= "d"
    deepest.mkdir(parents=True)
    (deepest / "file").write_text("")
    (top / "link").symlink_to(tmp_path)
    for closed in (top / "d/d", top / "d", top):
        closed.chmod(0)
    assert janitor.remove(str(top))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_swapped_for_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "another").mkdir(mode=0o500)
    (tmp_path / "link").symlink_to("another")
    with pytest.raises(NotADirectoryError):
        janitor.remove(str(tmp_path / "link"))
    assert (tmp_path / "another").stat().st_mode & 0o777 == 0o500


def test_removing_ends_at_its_time_and_can_be_taken_up_again(tmp_path: Path) -> None:
    (tmp_path / "top/d").mkdir(parents=True)
    assert not janitor.remove(str(tmp_path / "top"), until=0)
    assert janitor.remove(str(tmp_path / "top"))


WRITES_AS_IT_IS_IMPORTED = """
import os
with open(os.path.expanduser("~/made"), "w") as file: file.write("made")
"""


def interpreter_with_a_writer(python: str, folder: str) -> str:
    Path(folder).chmod(0o755)
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = Path(folder).glob("lib/python*/site-packages")
    (packages / "writer.py").write_text(WRITES_AS_IT_IS_IMPORTED)
    return f"{folder}/bin/python"


@pytest.mark.parametrize("level", ["ns", "landlock"])
@in_one_loop
async def test_a_module_that_writes_to_its_home_can_be_preloaded(level: levels.Level) -> None:
    """As matplotlib does. No program sees what it wrote."""
    if level == "landlock" and landlock.abi() < landlock.LEAST_ABI:
        pytest.skip("no Landlock of ABI 6")
    base = config(level, "root")
    with tempfile.TemporaryDirectory() as folder:
        python = interpreter_with_a_writer(base.python, folder)
        given = replace(base, python=python, preload=("writer",))
        async with Jails(given, use_cgroups=False) as jails:
            code = "import os, writer; print(os.listdir(os.path.expanduser('~')))"
            outcome = await jails.run(Program(code))
    assert outcome.stdout == b"['main.py']\n", outcome
