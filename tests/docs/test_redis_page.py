"""The page on Redis has every form of the URL and every option of it."""

from ground.redis import url
from tests.architecture.source import ROOT

PAGE = (ROOT / "docs" / "guide" / "redis.md").read_text()


def test_every_form_of_the_url_is_there() -> None:
    assert [scheme for scheme in url._KINDS if f"`{scheme}://" not in PAGE] == []


def test_every_option_of_the_url_is_there() -> None:
    known = {*url._OPTIONS, *url._SENTINEL_OPTIONS, "db"}
    assert [option for option in sorted(known) if f"`{option}`" not in PAGE] == []
