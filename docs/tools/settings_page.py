"""The page of settings, from the settings models themselves."""

from collections.abc import Iterator

from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ground.settings import Settings, variable
from penstock.variables import settings_models

INTRODUCTION = """\
# Settings

Every setting is an environment variable. `--redis-url`, `--run` and `--log-format` are also
options of every subcommand. A value that cannot work is refused, and the message names the
variable. A name that only resembles a setting gets a warning.

To keep a secret in a file, add `_FILE` to its name:
`PENSTOCK_REDIS_URL_FILE=/run/secrets/redis_url`. This works for the Redis URL and for every token.
`make docs` writes this page from the code.
"""
FIRST = (
    "PENSTOCK_REDIS_URL",
    "PENSTOCK_SANDBOX",
    "PENSTOCK_SANDBOX_FUSION_URL",
    "PENSTOCK_GATE",
    "PENSTOCK_CONCURRENCY",
    "PENSTOCK_MAX_STARTING",
    "PENSTOCK_RUN",
    "PENSTOCK_BUFFER_TOKEN",
)
TITLES = {
    "GroundSettings": "Every process",
    "HttpSettings": "HTTP services",
    "LimiterSettings": "Starting gate",
    "BufferSettings": "Buffer",
    "GatewaySettings": "Gateway",
    "WorkerSettings": "Workers",
    "QueueSettings": "Processes that submit jobs",
    "LifecycleSettings": "Session sandboxes",
    "ImageSettings": "Images",
    "RewardSettings": "Rewards",
    "SandboxSettings": "Embedded sandbox",
    "SessionSettings": "Session sandboxes of one machine",
    "E2bSettings": "E2B's protocol",
    "HostSettings": "Servers for hosts",
    "ToolSettings": "Tool for verl",
    "MonitorSettings": "Monitor",
}


OPENTELEMETRY = """\
## OpenTelemetry

These are OpenTelemetry's own variables: see [Trace a job](../guide/tracing.md). Its exporters and
samplers have more.

| Variable | Default | Meaning |
|---|---|---|
| `OTEL_EXPORTER_OTLP_ENDPOINT` | | A collector's address. It turns traces and metrics on. |
| `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | | The same for traces alone, with its path. |
| `OTEL_EXPORTER_OTLP_METRICS_ENDPOINT` | | The same for metrics alone, with its path. |
| `OTEL_TRACES_EXPORTER` | `otlp` | `otlp`, `console`, `none`, or another that is installed. |
| `OTEL_METRICS_EXPORTER` | `otlp` | The same for metrics. |
| `OTEL_EXPORTER_OTLP_PROTOCOL` | `http/protobuf` | `grpc` needs its own exporter package. |
| `OTEL_SERVICE_NAME` | `penstock-…` | What the process is called. |
| `OTEL_TRACES_SAMPLER` | `parentbased_always_on` | Which traces are kept. |
| `OTEL_TRACES_SAMPLER_ARG` | `1.0` | The ratio of samplers that have one. |
| `OTEL_METRIC_EXPORT_INTERVAL` | `60000` | Milliseconds between exports. |
| `OTEL_SDK_DISABLED` | | `true` turns everything off. |
"""


def page() -> str:
    """The eight that one sets first, then all, by what reads them."""
    rows = {title: dict(_rows(model)) for model in settings_models() if (title := _title_of(model))}
    every = {name: row for found in rows.values() for name, row in found.items()}
    parts = [INTRODUCTION, _table("Set these first", [every[name] for name in FIRST])]
    return "\n".join(
        [
            *parts,
            *(_table(title, list(found.values())) for title, found in rows.items()),
            OPENTELEMETRY,
        ]
    )


def _title_of(model: type[Settings]) -> str:
    return TITLES.get(model.__name__, model.__name__.removesuffix("Settings"))


def _table(title: str, rows: list[str]) -> str:
    return "\n".join(
        [f"## {title}\n", "| Variable | Default | Meaning |", "|---|---|---|", *rows, ""]
    )


def _rows(model: type[Settings]) -> Iterator[tuple[str, str]]:
    for name, field in model.model_fields.items():
        row = f"| {_names(model, name, field)} | {_default(field)} | {_meaning(field)} |"
        yield variable(model, name), row


def _names(model: type[Settings], name: str, field: FieldInfo) -> str:
    first = variable(model, name)
    aliases = field.validation_alias
    choices = aliases.choices if isinstance(aliases, AliasChoices) else []
    others = [str(alias) for alias in choices if str(alias).upper() not in (first, name.upper())]
    also = f", also {', '.join(f'`{other}`' for other in others)}" if others else ""
    return f"`{first}`{also}"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "made at start" if field.default_factory else "required"
    return "" if field.default in (None, "") else f"`{field.default}`"


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").replace("|", "\\|")
