"""The kinds of values a request is made of, each with its refusal."""

from typing import Annotated

from pydantic import AfterValidator, Field


def utf8(limit: int) -> AfterValidator:
    def check(text: str) -> str:
        try:
            size = len(text.encode())
        except UnicodeEncodeError as wrong:
            raise ValueError(
                f"has a lone surrogate at {wrong.start}, which UTF-8 cannot carry"
            ) from None
        if size > limit:
            raise ValueError(f"is {size:,} bytes, and at most {limit:,} are taken")
        return text

    return AfterValidator(check)


def _named(name: str) -> str:
    parts = name.split("/")
    if "\0" in name or parts[-1] in ("", "."):
        raise ValueError(f"has {name!r}, which names no file")
    if ".." in parts:
        raise ValueError(f"has {name!r}, which leads out of the work directory by '..'")
    return name


def _inside(name: str) -> str:
    if name.startswith("/"):
        raise ValueError(f"has {name!r}; names must be relative to the work directory")
    return name


MAX_TIMEOUT = 3600.0

Seconds = Annotated[float, Field(gt=0, le=MAX_TIMEOUT, allow_inf_nan=False)]
Name = Annotated[str, utf8(1024), AfterValidator(_named)]
Label = Annotated[str, utf8(1024)]
RelativeName = Annotated[Name, AfterValidator(_inside)]
