"""Settings are read from the environment; what is wrong is refused by its variable's name."""

import pytest
from pydantic import AliasChoices, Field, SecretStr, model_validator

import ground
from ground import SettingError
from ground.settings import GroundSettings, Settings
from jail.settings import SandboxSettings


class Example(Settings):
    limit: int = Field(8, ge=1, validation_alias=AliasChoices("PENSTOCK_LIMIT", "MAX_STARTING"))
    token: SecretStr | None = Field(None, min_length=8)
    low: int = 1
    high: int = 2

    @model_validator(mode="after")
    def _in_order(self):
        if self.low > self.high:
            raise ValueError("PENSTOCK_LOW is above PENSTOCK_HIGH")
        return self


class Demanding(Settings):
    needed: int
    token: SecretStr | None = None


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for name in ("LIMIT", "TOKEN", "LOW", "HIGH", "NEEDED", "REDIS_URL", "RUN"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)


def refusal(model, **given):
    with pytest.raises(SettingError) as refused:
        model.load(**given)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_defaults_hold_where_nothing_is_set():
    settings = GroundSettings.load()
    assert (settings.run, settings.redis_url, settings.redis_port) == ("default", None, 0)


def test_the_environment_is_read_and_what_is_given_wins(monkeypatch):
    monkeypatch.setenv("PENSTOCK_RUN", "seven")
    assert GroundSettings.load().run == "seven"
    assert GroundSettings.load(run="eight").run == "eight"


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch):
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "")
    monkeypatch.setenv("PENSTOCK_RUN", "")
    settings = GroundSettings.load()
    assert (settings.redis_url, settings.run) == (None, "default")


@pytest.mark.parametrize("name", ["PENSTOCK_LIMIT", "MAX_STARTING"])
def test_a_setting_can_be_given_by_its_other_name(monkeypatch, name):
    monkeypatch.setenv(name, "3")
    assert Example.load().limit == 3


def test_the_first_of_two_names_wins(monkeypatch):
    monkeypatch.setenv("PENSTOCK_LIMIT", "3")
    monkeypatch.setenv("MAX_STARTING", "4")
    assert Example.load().limit == 3


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PENSTOCK_REDIS_PORT", "70000", "less than or equal to 65535 (got '70000')"),
        ("PENSTOCK_REDIS_PORT", "many", "valid integer"),
        ("PENSTOCK_REDIS_TIMEOUT", "0", "greater than 0"),
        ("PENSTOCK_REDIS_TIMEOUT", "inf", "finite"),
        ("PENSTOCK_LOG_FORMAT", "xml", "'text' or 'json' (got 'xml')"),
        ("PENSTOCK_LOG_LEVEL", "LOUD", "got 'LOUD'"),
        ("PENSTOCK_RUN", "a run", "a run is named with 1 to 128 letters"),
        ("PENSTOCK_RUN", "a/b", "a run is named without /"),
    ],
)
def test_a_value_out_of_range_is_refused_by_its_variable(monkeypatch, name, value, says):
    monkeypatch.setenv(name, value)
    sentence = refusal(GroundSettings)
    assert sentence.startswith(f"{name}: ")
    assert says in sentence


@pytest.mark.parametrize("name", ["PENSTOCK_LIMIT", "MAX_STARTING"])
def test_the_name_that_was_used_is_the_one_refused(monkeypatch, name):
    monkeypatch.setenv(name, "0")
    assert refusal(Example).startswith(f"{name}: ")


def test_a_variable_in_small_letters_is_read_too(monkeypatch):
    monkeypatch.setenv("penstock_run", "seven")
    assert GroundSettings.load().run == "seven"


def test_settings_made_without_load_read_the_environment_too(monkeypatch):
    monkeypatch.setenv("PENSTOCK_RUN", "seven")
    assert GroundSettings().run == "seven"


def test_a_secret_out_of_range_is_refused_without_being_shown(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TOKEN", "hunter2")
    sentence = refusal(Example)
    assert sentence.startswith("PENSTOCK_TOKEN: ")
    assert "hunter2" not in sentence


def test_settings_at_odds_are_refused_without_showing_the_rest(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TOKEN", "hunter2-hunter2")
    sentence = refusal(Example, low=5)
    assert "PENSTOCK_LOW is above PENSTOCK_HIGH" in sentence
    assert "hunter2" not in sentence


def test_a_setting_that_is_missing_is_named_and_nothing_else_shown(monkeypatch):
    monkeypatch.setenv("PENSTOCK_TOKEN", "hunter2-hunter2")
    sentence = refusal(Demanding)
    assert sentence.startswith("PENSTOCK_NEEDED: ")
    assert "hunter2" not in sentence


def test_printed_settings_do_not_show_secrets(monkeypatch):
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://:hunter2@host")
    settings = GroundSettings.load()
    for shown in (str(settings), repr(settings), settings.model_dump_json()):
        assert "hunter2" not in shown
    assert settings.redis_url.get_secret_value() == "redis://:hunter2@host"


def test_the_url_of_redis_comes_from_its_variable_or_from_its_file(monkeypatch, tmp_path) -> None:
    for name in ("PENSTOCK_REDIS_URL", "PENSTOCK_REDIS_URL_FILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SettingError, match="PENSTOCK_REDIS_URL: is not set, nor is PENSTOCK_REDIS"):
        ground.redis_url()
    monkeypatch.setenv("PENSTOCK_REDIS_URL", "redis://one")
    assert ground.redis_url() == "redis://one"
    monkeypatch.delenv("PENSTOCK_REDIS_URL")
    (tmp_path / "url").write_text("redis://two\n")
    monkeypatch.setenv("PENSTOCK_REDIS_URL_FILE", str(tmp_path / "url"))
    assert ground.redis_url() == "redis://two"


@pytest.mark.parametrize("count", [10**9 + 1, 10**400])
def test_a_number_beyond_all_measure_is_refused_if_its_field_has_no_bound(count):
    assert "PENSTOCK_LOW: must be at most 1000000000" in refusal(Example, low=count)
    assert Example.load(low=1, high=10**9).high == 10**9


def test_a_user_may_have_any_number_that_linux_gives():
    """OpenShift's are above a billion."""
    assert SandboxSettings.load(sandbox_uid=1_000_660_000).sandbox_uid == 1_000_660_000
    assert "PENSTOCK_SANDBOX_UID: must be less" in refusal(SandboxSettings, sandbox_uid=2**32 - 1)
