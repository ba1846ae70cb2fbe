"""Answers to GSM8K's questions, and the tool with which a model checks its own.

An answer is what follows the last `####`. Numbers are compared as numbers, exactly: 220000.0
is 220000, and $220,000; 220000.01 is not. verl compares their text, by which it is wrong.
"""

import re
import uuid
from decimal import Decimal, InvalidOperation
from typing import Any

from worker.tool.schemas import OpenAIFunctionToolSchema, ToolResponse

_MARK = "####"
# Not what continues as more than a number: 1/2, 1 1/2, 12:30, 3-4, 1e1000. Digits are tried in
# only one way: models run away in them, and every way of splitting a thousand takes seconds.
_NUMBER = re.compile(
    r"[-+]?(?:\d[\d,]*+(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d{1,3})?"
    r"(?![\d/^*:=+-]|\.\d|[eE][-+]?\d|\s++\d*+\s*+/\s*+\d)"
)
NOT_BETTER = -0.05

_ANSWER = {"type": "string", "description": "The answer to the question."}
CALC_GSM8K_REWARD = OpenAIFunctionToolSchema.model_validate(
    {
        "type": "function",
        "function": {
            "name": "calc_gsm8k_reward",
            "description": "A tool for calculating the reward of gsm8k.",
            "parameters": {
                "type": "object",
                "properties": {"answer": _ANSWER},
                "required": ["answer"],
            },
        },
    }
)


def gsm8k_score(text: str, ground_truth: str) -> float:
    """Score 1.0 if the final answer in the text is the ground truth, else 0.0."""
    answer, truth = final_answer(text), final_answer(ground_truth) or ground_truth.strip()
    return float(answer is not None and same_answer(answer, truth))


def final_answer(text: str) -> str | None:
    """The text behind the last `####`, to the end of its line; None if nothing does."""
    _, mark, rest = text.rpartition(_MARK)
    lines = rest.strip().splitlines()
    return lines[0] if mark and lines else None


def same_answer(answer: str, truth: str) -> bool:
    """Equal as exact numbers, where both are; else as text, spaces at the ends aside."""
    first, second = _number(answer), _number(truth)
    if first is None or second is None:
        return answer.strip() == truth.strip()
    return first == second


def _number(text: str) -> Decimal | None:
    """The number that the text begins with, a currency sign aside: `$1,200.50 in all`."""
    found = _NUMBER.match(text.strip().replace("$", "").lstrip())
    try:
        return Decimal(found[0].replace(",", "")) if found else None
    except InvalidOperation:
        return None


class Gsm8kTool:
    """A tool for GSM8K, `calc_gsm8k_reward`, by verl's interface: the model submits an answer, and
    may improve it.

    Each trajectory's `create_kwargs` have its `ground_truth`. A call that does not improve
    on the last one costs 0.05.
    """

    def __init__(
        self, config: dict[str, Any] | None = None, tool_schema: Any = CALC_GSM8K_REWARD
    ) -> None:
        self.config = config or {}
        self.tool_schema = tool_schema or CALC_GSM8K_REWARD
        self.name: str = self.tool_schema.function.name
        self._truth: dict[str, str] = {}
        self._reward: dict[str, float] = {}

    def get_openai_tool_schema(self) -> Any:
        return self.tool_schema

    async def create(
        self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs: Any
    ) -> tuple[str, ToolResponse]:
        instance_id = instance_id or uuid.uuid4().hex
        truth = ground_truth
        if truth is None:
            truth = (kwargs.get("create_kwargs") or {}).get("ground_truth")
        if truth is None:
            raise ValueError(f"{self.name} needs the sample's ground_truth, in its create_kwargs")
        self._truth[instance_id], self._reward[instance_id] = str(truth), 0.0
        return instance_id, ToolResponse()

    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **_: Any
    ) -> tuple[ToolResponse, float, dict[str, Any]]:
        answer = str(parameters.get("answer", "")).rpartition(_MARK)[2].strip()
        reward = gsm8k_score(f"{_MARK} {answer}", self._truth[instance_id])
        better = reward > self._reward[instance_id]
        self._reward[instance_id] = reward
        text = f"Current parsed answer={answer!r} reward={reward}"
        return ToolResponse(text=text), 0.0 if better else NOT_BETTER, {}

    async def calc_reward(self, instance_id: str, **_: Any) -> float:
        return self._reward[instance_id]

    async def release(self, instance_id: str, **_: Any) -> None:
        self._truth.pop(instance_id, None)
        self._reward.pop(instance_id, None)
