"""Write the table of settings into the README, from the settings models themselves.

A test fails where the table and the models differ; `make docs` runs this.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ground.settings import Settings, variable

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- settings: written by docs/settings_table.py -->", "<!-- /settings -->"
PACKAGES = (
    "ground", "limiter", "buffer", "worker", "worker.sandbox.local", "worker.lifecycle", "penstock",
)  # fmt: skip


def main() -> None:
    README.write_text(updated(README.read_text()))


def updated(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def table() -> str:
    lines = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for model in models():
        for name, field in model.model_fields.items():
            lines.append(
                f"| {_names(model, name, field)} | {_default(field)} | {_meaning(field)} |"
            )
    return "\n".join(lines)


def models() -> Iterator[type[Settings]]:
    """Every settings model: each package keeps its own in a module called `settings`."""
    for package in PACKAGES:
        if importlib.util.find_spec(f"{package}.settings"):
            module = importlib.import_module(f"{package}.settings")
            for model in vars(module).values():
                mine = isinstance(model, type) and model.__module__ == module.__name__
                if mine and issubclass(model, Settings) and model is not Settings:
                    yield model


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
    return "" if field.default is None else f"`{field.default}`"


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").replace("|", "\\|")


if __name__ == "__main__":
    main()
