"""What a model wrote in its call, made a request; or a sentence that tells it what is wrong.

`code`, `timeout` and `language` are read; whatever else it wrote is ignored. It may
ask for less time than is usual, and for more up to `max_timeout`.
"""

from typing import Any

from worker.errors import RequestRefused
from worker.models import LANGUAGES, CodeRequest
from worker.tool.config import ToolConfig, seconds_of


class CallRefused(Exception):
    """The call cannot be run as the model wrote it; the words are for the model."""


def read_call(arguments: Any, config: ToolConfig, session: str | None) -> CodeRequest:
    """The program to run. Raises `CallRefused`."""
    if not isinstance(arguments, dict):
        raise CallRefused(
            f"the arguments must be a JSON object, not {type(arguments).__name__}: "
            '{"code": "print(1)"}'
        )
    code = arguments.get("code")
    if code is None:
        raise CallRefused("the argument `code` is missing")
    return program(
        code if isinstance(code, str) else str(code),
        _given(arguments, "timeout", config.default_timeout),
        _given(arguments, "language", config.default_language),
        config,
        session,
    )


def _given(arguments: dict[str, Any], name: str, default: Any) -> Any:
    value = arguments.get(name)
    return default if value is None else value


def program(
    code: str, timeout: Any, language: Any, config: ToolConfig, session: str | None
) -> CodeRequest:
    """The request for a piece of code. Raises `CallRefused`."""
    seconds = seconds_of(timeout)
    if seconds is None:
        raise CallRefused(f"`timeout` must be a number of seconds above 0, not {timeout!r:.40}")
    if not isinstance(language, str) or language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES, key=str.lower))
        raise CallRefused(f"the language {language!r:.40} is unknown; known are {known}")
    seconds = min(seconds, config.longest)
    try:
        return CodeRequest(
            code=code,
            language=language,
            compile_timeout=seconds,
            run_timeout=seconds,
            memory_limit_mb=config.memory_limit_mb,
            instance_id=session,
        )
    except RequestRefused as refusal:
        raise CallRefused(str(refusal)) from None
