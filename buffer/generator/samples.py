"""The lines of a data set, checked before the first question is asked."""

import json
from typing import Any

from buffer.errors import GeneratorError


def samples_of(input_file: str) -> list[dict[str, Any]]:
    """The objects of a JSONL file; without an `instance_id` a line is known by its number."""
    try:
        with open(input_file, encoding="utf-8") as lines:
            samples = [
                _sample(line, f"{input_file}, line {number}")
                for number, line in enumerate(lines, 1)
                if line.strip()
            ]
    except (OSError, UnicodeDecodeError) as fault:
        raise GeneratorError(f"input_file cannot be read: {fault}") from None
    for number, sample in enumerate(samples):
        sample.setdefault("instance_id", number)
    return samples


def _sample(line: str, place: str) -> dict[str, Any]:
    try:
        sample = json.loads(line)
    except ValueError as fault:
        raise GeneratorError(f"input_file {place} is not JSON: {fault}") from None
    if not isinstance(sample, dict):
        raise GeneratorError(
            f"input_file {place} is not a JSON object: each line is one question, "
            'such as {"instance_id": "math_0", "prompt": [...], "label": "4"}'
        )
    return sample
