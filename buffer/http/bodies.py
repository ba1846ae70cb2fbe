"""The bodies that are read as they come: the OpenAPI document is made of these models.

They check nothing. An item is checked once, at its door (`buffer/item.py`), which keeps its bytes;
and slime's clients send some numbers as strings.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field

from buffer.item import HIGHEST_ROUND, LONGEST_ID
from buffer.spans import MOST_TOKENS, UNKNOWN

MOST_ITEMS = 10_000
TASK = r"^[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}$"
FENCE = r"^[0-9]{1,18}$"

Id = Annotated[str, Field(min_length=1, max_length=LONGEST_ID)] | int
Digits = Annotated[str, Field(pattern="^[1-9][0-9]{0,4}$")]
Size = Annotated[int, Field(ge=-1, le=2**53)] | Digits
Version = Annotated[int, Field(ge=UNKNOWN, le=2**31)]
Tokens = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Span = tuple[Tokens, Version]


class Item(BaseModel):
    """A trajectory, as a client sends it."""

    instance_id: Id
    uid: Annotated[str, Field(max_length=LONGEST_ID)] | int | None = None
    messages: Any = Field(
        None, description="A list; what is none is kept, and filter_item leaves it out."
    )
    reward: Any = None
    round_number: Annotated[int, Field(ge=0, lt=HIGHEST_ROUND)] | None = None
    extra_info: Any = None
    slot: Any = Field(None, description="The slot it was made under, with `fence`.")
    fence: Any = None
    version_start: Version | None = None
    version_end: Version | None = None
    versions: list[Span] | list[list[Span]] | None = Field(
        None, description="Run lengths, or for several rows of tokens a list of them per row."
    )
    weight_versions: Any = None


class Items(BaseModel):
    """A body of many items."""

    items: list[Item] = Field(max_length=MOST_ITEMS)


class Parked(BaseModel):
    """Unfinished items of a slot."""

    fence: Annotated[str, Field(pattern=FENCE)]
    items: list[Item] = Field(max_length=MOST_ITEMS)
    go_on: bool = False


class Start(BaseModel):
    """A rollout."""

    task_type: Annotated[str, Field(pattern=TASK)]
    num_repeat_per_sample: Annotated[int, Field(ge=1, le=1_000_000)] | Digits
    skip_instance_ids: list[Id] | None = None


class Batch(BaseModel):
    """How many items a reader wants."""

    batch_size: Size = -1


class Read(BaseModel):
    """How many items a reader wants, and how long it waits for them."""

    batch_size: Size
    timeout: float = Field(ge=0)
    wait: bool = True


MODELS = Item, Items, Parked, Start, Batch, Read


def takes(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """The part of an operation that describes its body. One that is not required may be no
    object."""
    schema: dict[str, Any] = {"$ref": f"#/components/schemas/{model.__name__}"}
    if not required:
        schema = {"anyOf": [schema, {"not": {"type": "object"}}]}
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }
