"""What servers of a fleet know of each other, from a Redis that may hold anything."""

import json
import os

import pytest
from starlette.responses import Response

from ground.redis.connect import target_of
from jail.images.archive import ImageConfig
from jail.images.settings import ImageSettings
from jail.images.store import BUILD, ImageStore
from tests.jail.images.archives import layer, oci
from worker.e2b.fleet.fleet import Fleet
from worker.e2b.fleet.images import Images
from worker.e2b.fleet.machines import Machine, Machines
from worker.e2b.fleet.relay import Unreachable
from worker.e2b.problems import Problem
from worker.e2b.settings import E2bSettings
from worker.lifecycle.registry.registry import Registry

GOOD = {"scope": "local@b", "address": "http://10.0.0.6:3000", "alive": 1, "most": 9}
OWN = Machine("a/http://10.0.0.5:3000", "local@a", "http://10.0.0.5:3000", 0, 9)
STRANGE = [
    "no JSON", "[]", "null", "{}", json.dumps(GOOD | {"alive": "many"}),
    json.dumps(GOOD | {"address": ""}), json.dumps(GOOD | {"address": "http://:3000"}),
    json.dumps(GOOD | {"address": "file:///etc/passwd"}),
    json.dumps(GOOD | {"address": "http://10.0.0.6:3000/x?y="}),
    json.dumps(GOOD | {"address": "http://user:secret@10.0.0.6:3000"}),
    json.dumps(GOOD | {"address": "http://10.0.0.6:3000\r\nx-penstock-forwarded: x"}),
    json.dumps(GOOD | {"address": "http://10.0.0.6:99999"}),
    json.dumps(GOOD | {"address": "http://[::::]:3000"}),
    json.dumps(GOOD | {"alive": float("inf")}), "[" * 100_000, b"\xff",
]  # fmt: skip


@pytest.fixture
def machines(redis):
    found = Machines(target_of(redis), "fleet", OWN.id, lambda: OWN, 30.0)
    yield found
    found._client.close()


def enter(redis, id: str, text: str | bytes) -> None:
    redis.hset("penstock:e2b:{fleet}", f"machine:{id}", text)
    redis.zadd("penstock:e2b:{fleet}:machines", {id: 4e15})


async def test_an_entry_that_cannot_be_read_hides_no_other_machine(redis, machines):
    enter(redis, "b", json.dumps(GOOD))
    for number, text in enumerate(STRANGE):
        enter(redis, f"strange-{number}", text)
    enter(redis, "c\r\nhost: elsewhere", json.dumps(GOOD))
    assert [machine.id for machine in await machines.look(0.0)] == ["b"]
    assert machines.reached


async def test_a_look_at_the_others_asks_this_machine_nothing(redis):
    def own() -> Machine:
        raise AssertionError("it was asked")

    machines = Machines(target_of(redis), "fleet", OWN.id, own, 30.0)
    enter(redis, "b", json.dumps(GOOD))
    assert [machine.id for machine in await machines.look(0.0)] == ["b"]
    machines._client.close()


def test_a_machine_names_its_images_without_steps_and_what_cannot_be_read(tmp_path, caplog):
    store = ImageStore.of(ImageSettings(images=tmp_path / "images"), 65534)
    images = Images(store)
    assert images.names() == ()
    store.add(oci(tmp_path / "oci", [layer({"a": "1"})], name="t:latest", packed=bytes))
    store.extend(store.find("t"), None, f"{BUILD}{'0' * 40}", ImageConfig())
    records = store.folder / "images"
    (records / "torn.json").write_text('{"version": 1, "na')
    (records / "newer.json").write_text('{"version": 99}')
    (records / "list.json").write_text("[]")
    assert images.names() == ("t:latest",)
    assert {"torn", "newer", "list"} <= set(caplog.text.replace(".json", "/").split("/"))


def test_records_of_images_are_read_again_only_when_one_has_changed(tmp_path, monkeypatch):
    store = ImageStore.of(ImageSettings(images=tmp_path / "images"), 65534)
    store.add(oci(tmp_path / "oci", [layer({"a": "1"})], name="t:latest", packed=bytes))
    records, read, find = store.folder / "images", [], store.find
    monkeypatch.setattr(store, "find", lambda name: read.append(name) or find(name))
    images = Images(store)
    os.utime(records, (1, 1))
    assert [images.names() for _ in range(3)] == [("t:latest",)] * 3
    assert read == ["t:latest"]
    store.extend(find("t"), None, "u", ImageConfig())
    assert images.names() == ("t:latest", "u")
    store.remove("t")
    assert images.names() == ("u",)


def test_images_are_found_in_a_folder_whose_time_is_the_beginning_of_time(tmp_path):
    store = ImageStore.of(ImageSettings(images=tmp_path / "images"), 65534)
    store.add(oci(tmp_path / "oci", [layer({"a": "1"})], name="t:latest", packed=bytes))
    os.utime(store.folder / "images", (0, 0))
    assert Images(store).names() == ("t:latest",)


async def test_machines_that_look_full_are_tried_after_those_with_room(redis, machines):
    full = GOOD | {"alive": 9}
    for id, entry in (("b", full), ("c", GOOD), ("d", full)):
        enter(redis, id, json.dumps(entry))
    fleet = Fleet(OWN, machines, Registry(target_of(redis), run="fleet"))
    first, *others = [machine.id for machine in await fleet._places("")]
    assert (first, set(others)) == ("c", {"b", "d"})


@pytest.mark.parametrize("address", ["http://10.0.0.5:3000", "http://[::1]:3000", "http://pod-1.x"])
def test_an_address_may_be_any_host_and_port(address):
    assert E2bSettings(e2b_address=address).e2b_address == address


@pytest.mark.parametrize("address", ["10.0.0.5:3000", "https://x:1", "http://a b", "http://x:1/y"])
def test_what_is_no_address_is_refused(address):
    with pytest.raises(ValueError, match="no address"):
        E2bSettings(e2b_address=address)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("", {}), ("8", {"base": 8}), ("base=8, swe/task:1=4", {"base": 8, "swe/task:1": 4})],
)
def test_sandboxes_are_kept_ready_by_template(text, sizes):
    assert E2bSettings(e2b_warm=text).warm == sizes


@pytest.mark.parametrize("text", ["x", "base=", "base=-1", "base=9999", "a b=2", "../x=1"])
def test_a_size_that_cannot_be_read_is_refused(text):
    with pytest.raises(ValueError, match=r"none of|no name"):
        E2bSettings(e2b_warm=text)


@pytest.mark.parametrize(
    ("silent", "said"),
    [("", "no machine has room"), ("c", "of c does not answer"), ("bc", "does not answer")],
)
async def test_a_fleet_is_not_full_while_a_machine_is_silent(
    redis, machines, monkeypatch, silent, said
):
    for id in ("b", "c"):
        enter(redis, id, json.dumps(GOOD))

    async def asked(self, machine, request, raw):
        if machine.id in silent:
            raise Unreachable(machine, "refused")
        return Response(status_code=429)  # it is full

    monkeypatch.setattr(Fleet, "_asked", asked)
    await machines.look(0.0)
    fleet = Fleet(OWN, machines, Registry(target_of(redis), run="fleet"))
    with pytest.raises(Problem, match=said) as refused:
        await fleet.create(None, b"", "", "", None)
    assert refused.value.status == 503
    assert ("are full: 1" in refused.value.message) is (silent == "c")


def test_a_machine_has_an_image_by_its_name_or_as_the_latest_of_it() -> None:
    machine = Machine("m", "local@a", "http://10.0.0.5:3000", images=("mine:1", "python:latest"))
    assert [name for name in ("mine:1", "python", "python:latest", "mine", "other")
            if machine.has(name)] == ["mine:1", "python", "python:latest"]  # fmt: skip
