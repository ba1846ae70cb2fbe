"""Write the table of settings into the README, from the settings models themselves.

A test fails where the table and the models differ; `make docs` runs this.
"""

from pathlib import Path

from pydantic import AliasChoices
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from ground.settings import Settings, variable
from penstock.variables import settings_models

README = Path(__file__).parents[2] / "README.md"
BEGIN, END = "<!-- settings: written by docs/tools/settings_table.py -->", "<!-- /settings -->"


def main() -> None:
    README.write_text(updated(README.read_text()))


def updated(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def table() -> str:
    lines = ["| Variable | Default | Meaning |", "|---|---|---|"]
    for model in settings_models():
        for name, field in model.model_fields.items():
            lines.append(
                f"| {_names(model, name, field)} | {_default(field)} | {_meaning(field)} |"
            )
    return "\n".join(lines)


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
