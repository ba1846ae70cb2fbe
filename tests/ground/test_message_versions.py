"""Messages of this version and the one before are read; others are refused with advice."""

from typing import ClassVar

import pytest
from pydantic import ValidationError

from ground import VersionError
from ground.message_versions import Versioned


class First(Versioned):
    code: str


class Third(Versioned):
    VERSION: ClassVar[int] = 3
    code: str


def test_a_message_carries_the_version_that_wrote_it():
    assert First(code="1").model_dump() == {"v": 1, "code": "1"}
    assert Third(code="1").model_dump(exclude_unset=True) == {"v": 3, "code": "1"}


@pytest.mark.parametrize("version", [2, 3])
def test_the_current_and_the_previous_version_are_read(version):
    message = Third.read({"v": version, "code": "1"})
    assert (message.v, message.code) == (version, "1")


@pytest.mark.parametrize("version", [0, 1, 4, "3", None, 2.5])
def test_other_versions_are_refused_with_both_versions_named(version):
    with pytest.raises(VersionError, match=r"Third has schema version .* reads 2 to 3: upgrade"):
        Third.read({"v": version, "code": "1"})


def test_a_message_without_a_version_is_of_the_first():
    assert First.read({"code": "1"}).v == 1
    with pytest.raises(VersionError):
        Third.read({"code": "1"})


def test_keys_of_a_newer_minor_version_are_kept_and_passed_on():
    message = First.read({"v": 1, "code": "1", "colour": "blue"})
    assert message.model_dump() == {"v": 1, "code": "1", "colour": "blue"}


def test_a_message_that_lacks_something_is_refused_by_name():
    with pytest.raises(ValidationError, match="code"):
        First.read({"v": 1})


def test_a_message_read_from_json_keeps_its_version():
    written = Third(code="1").model_dump_json()
    assert Third.model_validate_json(written).v == 3
