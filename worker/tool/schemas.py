"""The tool protocol: how a tool is described to a model, called, and answered.

Names, defaults and order of fields are verl's, so a dump of these equals a dump
of verl's. Keywords of JSON Schema that are not named here (`items`, `default`) are kept.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class OpenAIFunctionPropertySchema(BaseModel):
    """An argument of a function."""

    model_config = ConfigDict(extra="allow")

    type: str | list[str]
    description: str | None = None
    enum: list[Any] | None = None


class OpenAIFunctionParametersSchema(BaseModel):
    """The arguments of a function."""

    model_config = ConfigDict(extra="allow")

    type: str
    properties: dict[str, OpenAIFunctionPropertySchema]
    required: list[str] = Field(default_factory=list)


class OpenAIFunctionSchema(BaseModel):
    """A function that a model may call."""

    name: str
    description: str
    parameters: OpenAIFunctionParametersSchema = Field(
        default_factory=lambda: OpenAIFunctionParametersSchema(type="object", properties={})
    )
    strict: bool = False


class OpenAIFunctionToolSchema(BaseModel):
    """A tool, as a request to a model lists it."""

    type: str
    function: OpenAIFunctionSchema


class OpenAIFunctionParsedSchema(BaseModel):
    """A call as the model wrote it: its arguments are text, and may be anything."""

    name: str
    arguments: str


class OpenAIFunctionCallSchema(BaseModel):
    """A call whose arguments have been read."""

    name: str
    arguments: dict[str, Any]

    @staticmethod
    def from_openai_function_parsed_schema(
        parsed_schema: OpenAIFunctionParsedSchema,
    ) -> tuple["OpenAIFunctionCallSchema", bool]:
        """The call, and whether its arguments were unreadable: then it has none."""
        try:
            arguments = json.loads(parsed_schema.arguments)
        except (ValueError, RecursionError):  # nested too deeply, which models do write
            arguments = None
        readable = isinstance(arguments, dict)
        call = OpenAIFunctionCallSchema(
            name=parsed_schema.name, arguments=arguments if readable else {}
        )
        return call, not readable


class OpenAIFunctionToolCall(BaseModel):
    """A call in a conversation."""

    id: str
    type: Literal["function"] = "function"
    function: OpenAIFunctionCallSchema


class ToolResponse(BaseModel):
    """The answer of a tool to the model."""

    text: str | None = None
    image: list[Any] | None = None
    video: list[Any] | None = None

    @field_validator("image", "video", mode="before")
    @classmethod
    def _several(cls, given: Any) -> Any:
        if not isinstance(given, list):
            problem = f"must be a list, not {type(given).__name__}; wrap a single one: [it]"
            raise ValueError(problem)  # noqa: TRY004 - pydantic makes its error of this one
        return given

    def is_empty(self) -> bool:
        return not (self.text or self.image or self.video)

    def is_text_only(self) -> bool:
        return bool(self.text) and not (self.image or self.video)


CODE_INTERPRETER = OpenAIFunctionToolSchema(
    type="function",
    function=OpenAIFunctionSchema(
        name="code_interpreter",
        description="A tool for executing code.",
        parameters=OpenAIFunctionParametersSchema(
            type="object",
            properties={
                "code": OpenAIFunctionPropertySchema(
                    type="string", description="The code to execute."
                )
            },
            required=["code"],
        ),
    ),
)
