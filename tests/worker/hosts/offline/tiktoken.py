"""In place of tiktoken, which fetches its table: one token per word."""

from typing import Any


class Encoding:
    def encode(self, text: str, **_: Any) -> list[int]:
        return [len(word) for word in text.split()]


def get_encoding(_name: str) -> Encoding:
    return Encoding()


def encoding_for_model(_name: str) -> Encoding:
    return Encoding()
