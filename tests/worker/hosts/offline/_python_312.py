"""What SkyRL's Python 3.12 has, and Pydantic asks for on an older one."""

import typing

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict
