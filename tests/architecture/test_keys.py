"""Every key is in docs/reference/keys.md, and every key there is in the code."""

import re
from pathlib import Path

import pytest

from tests.architecture.keys_in_code import keys_in, plain
from tests.architecture.source import ROOT, modules, name_of

# A row of a table whose first cell is a key: | `penstock:gate:{name}:leases` | …
ROW = re.compile(r"^\| `(penstock:[^`]*)` \|", re.MULTILINE)


def in_docs() -> dict[str, str]:
    return {
        plain(key): key
        for key in ROW.findall((ROOT / "docs" / "reference" / "keys.md").read_text())
    }


# What a gate's scripts make of its key, as `GATE .. ':idle:' .. lane`.
OF_A_GATE = re.compile(r"\bGATE \.\. '(:\w+:?)'")


def in_code() -> dict[str, str]:
    found = {
        key: name_of(file)
        for file in modules()
        if file != ROOT / "ground" / "keys.py"
        for key in keys_in(file)
    }
    for file in (ROOT / "limiter" / "lua").glob("*.lua"):
        for part in OF_A_GATE.findall(file.read_text()):
            found["penstock:gate:{}" + part + ("<>" if part.endswith(":") else "")] = file.name
    return found


def test_every_key_of_the_code_is_in_the_list() -> None:
    listed = in_docs()
    missing = {key: where for key, where in in_code().items() if key not in listed}
    assert missing == {}, "add a row to docs/reference/keys.md"


def test_every_key_of_the_list_is_in_the_code() -> None:
    made = in_code()
    assert [key for key in in_docs() if key not in made] == [], "no code makes these keys"


def test_keys_are_read_from_every_way_to_write_them(tmp_path: Path) -> None:
    file = tmp_path / "gate.py"
    file.write_text(
        '"""penstock:not:a:key"""\n'
        'PARTS = ("open", "ready")\n'
        'a = tagged("gate", name)\n'
        'b = tagged("gate", name, f"inbox:{process}")\n'
        'c = [tagged("buffer", name, part) for part in PARTS]\n'
        'd = f"penstock:hand:{worker.name}"\n'
        'e = "penstock:client:{x}:y"\n'
    )
    assert set(keys_in(file)) == {
        "penstock:gate:{}",
        "penstock:gate:{}:inbox:<>",
        "penstock:buffer:{}:open",
        "penstock:buffer:{}:ready",
        "penstock:hand:<>",
        "penstock:client:{}:y",
    }


def test_a_key_that_cannot_be_listed_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "gate.py"
    file.write_text('tagged("gate", name, anything())\n')
    with pytest.raises(AssertionError, match=r"gate\.py:1: the part must be a literal"):
        list(keys_in(file))
