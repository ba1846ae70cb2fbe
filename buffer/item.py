"""A trajectory is read and checked at this door, and turned into what Redis keeps.

An item is a JSON object with an `instance_id`; everything else in it is the user's.
What is refused here could not be stored, or could not be read back as JSON.
"""

import json
import math
import uuid
import zlib
from collections.abc import Iterable
from json.encoder import c_make_encoder, encode_basestring  # type: ignore[attr-defined]
from typing import Any, NamedTuple

from pydantic_core import to_json

from buffer.errors import ItemRefused
from buffer.spans import REPORTS, reported
from ground import tracing
from ground.quick_json import read_json

LONGEST_ID = 1024
HIGHEST_ROUND = 2**53
# Below this, text that redis-cli can show is worth more than the room:
# docs/guide/buffer.md, "Know when items are compressed".
COMPRESS_ABOVE = 64 * 1024
DEEPEST = 200  # levels: as far from the interpreter's limit on any server that reads it again
_NUMBER = (int, float)
_EXACT = 2**53  # integers up to it are the same as floats
_LONG = 50  # characters
_BLANKS = " \t\r\n"  # of JSON; Python strips others too
_OF_VERSIONS = REPORTS | {"slot", "fence"}
_UNKNOWN = ("", "", "", "")  # slot, fence and versions of most items
_LARGEST_REWARD = 1e150  # sums of squares, which variances are made of, stay finite


def _refuse_constant(name: str) -> None:
    raise ItemRefused(f"{name} is not JSON: send null or a number")


def _finite(text: str) -> float:
    """Refuse a number such as 1e999: it would be read as infinity, and could not be written as JSON
    again."""
    number = float(text)
    if math.isinf(number):
        raise ItemRefused(
            f"{text[:40]} is out of range: it would be read as infinity, which is not JSON"
        )
    return number


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy, and tensors, are what their lists are."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"{type(value).__name__} is not JSON")
    return value.tolist()


def _quoted(text: str) -> str:
    """A text as JSON. The standard library takes 29 instructions for each character."""
    if len(text) > _LONG:
        try:
            return to_json(text).decode()
        except ValueError:
            pass  # half a surrogate pair
    return encode_basestring(text)


_strict = c_make_encoder(
    None, json.JSONEncoder().default, _quoted, None, ":", ",", False, False, False
)
_patient = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain
)


class Entry(NamedTuple):  # a frozen dataclass takes three times as long to make
    """An accepted item: where it belongs, and the text that is kept. Items that have the first six
    in common travel as one group.

    slot, fence      the slot it was made under, empty without one
    lowest, highest  the versions that it reports, empty if none
    """

    id: str
    round: str
    slot: str
    fence: str
    lowest: str
    highest: str
    id_json: bytes
    uid: str
    reward: str
    payload: bytes


def entry_of(item: object, max_bytes: int, *, packed: bool = True) -> Entry:
    """Check an item that came as an object; it is compressed if that is worth it."""
    fields = _object(item)
    try:
        text = "".join(_strict(fields, 0))
    except (ValueError, TypeError, RecursionError):
        text = _encoded(fields)
        fields = json.loads(text)  # what is checked of it is what is stored
    return _entry(fields, text, max_bytes, packed=packed)


def entry_from(body: bytes, max_bytes: int) -> Entry:
    """Check an item that came as JSON text; the text itself is kept, unread keys and all."""
    if len(body) > max_bytes:
        raise _too_large(len(body), max_bytes)
    parsed, text = parse_json(body)
    return _entry(_object(parsed), text, max_bytes)


def parse_json(body: bytes) -> tuple[Any, str]:
    """Any JSON value and its text, without NaN and infinities."""
    try:
        text = body.decode().strip(_BLANKS)
        if not text:
            raise ItemRefused("the body is empty: send JSON")
        return _decoder.decode(text), text
    except UnicodeDecodeError:
        raise ItemRefused("the body is not UTF-8") from None
    except RecursionError:
        raise ItemRefused("the body is nested too deeply") from None
    except ValueError as problem:
        raise ItemRefused(f"the body is not JSON: {problem}") from None


def stored_item(value: bytes) -> tuple[int, dict[str, Any]]:
    """The place of arrival and the item of a value in Redis."""
    place, _, payload = value.partition(b" ")
    if not payload.startswith(b"{"):
        payload = zlib.decompress(payload)
    return int(place), read_json(payload)


def head_of(kept: bytes) -> str:
    """The text of what a script has kept of an item: its group, its uid, and its first bytes."""
    names, packed, rest = kept.partition(b" x\x01")  # as zlib begins at level 1
    try:
        head = zlib.decompressobj().decompress(b"x\x01" + rest, len(kept)) if packed else b""
    except zlib.error:  # a name has these bytes
        return kept.decode(errors="replace")
    return (names + b" " + head if packed else kept).decode(errors="replace")


def by_arrival(values: Iterable[bytes]) -> list[dict[str, Any]]:
    """A group's items in the order in which they came."""
    return [item for _, item in sorted(map(stored_item, values), key=lambda pair: pair[0])]


def instance_key(instance_id: object) -> str:
    """The name of an instance in keys: 7 and "7" are one instance."""
    if isinstance(instance_id, bool) or not isinstance(instance_id, str | int):
        if hasattr(instance_id, "tolist"):
            return instance_key(_plain(instance_id))
        raise ItemRefused("instance_id must be a string or an integer")
    key = _name(instance_id)
    if not key:
        raise ItemRefused("instance_id is empty")
    _utf8(key, "instance_id")
    if len(key) > LONGEST_ID:
        raise ItemRefused(f"instance_id is longer than {LONGEST_ID} characters")
    return key


def round_key(number: object) -> str:
    """The number of a round in keys; empty for none."""
    if number is None:
        return ""
    if isinstance(number, float) and number.is_integer():
        number = int(number)  # 3.0 is an integer to JSON
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < HIGHEST_ROUND:
        if hasattr(number, "tolist"):
            return round_key(_plain(number))
        raise ItemRefused("round_number must be an integer from 0 up")
    return str(number)


def _entry(item: dict[str, Any], text: str, max_bytes: int, *, packed: bool = True) -> Entry:
    if item.get("instance_id") is None:
        raise ItemRefused("the item has no instance_id")
    if (_has_many(text, "[") or _has_many(text, "{")) and _deeper(item, DEEPEST):
        raise ItemRefused(f"the item is nested too deeply: more than {DEEPEST} levels")
    key = instance_key(item["instance_id"])
    # The top level only: inside `extra_info`, upstream's round_number counts turns.
    reward, number = _reward(item), round_key(item.get("round_number"))
    item, uid, text = _with_uid(item, text)
    item, text = _traced(item, text)
    try:
        payload = text.encode()
    except UnicodeEncodeError:  # half a surrogate pair is text to JSON, as an escape
        payload = json.dumps(item, separators=(",", ":")).encode()
    if len(payload) > max_bytes:
        raise _too_large(len(payload), max_bytes)
    id_json = encode_basestring(key) if isinstance(item["instance_id"], str) else key
    made = _UNKNOWN if _OF_VERSIONS.isdisjoint(item) else (*_slot(item), *reported(item))
    kept = _packed(payload) if packed else payload
    return Entry(key, number, *made, id_json.encode(), uid, reward, kept)


def _traced(item: dict[str, Any], text: str) -> tuple[dict[str, Any], str]:
    """An item names the span that it was written in, if there is one: its batch links there."""
    parent = tracing.current()
    if not parent or "traceparent" in item:
        return item, text
    return {**item, "traceparent": parent}, f'{text[:-1]},"traceparent":"{parent}"}}'


def _has_many(text: str, bracket: str) -> bool:
    """Whether more than half of the levels may be of this kind. To find a few is quicker than to
    count them, which looks at each character."""
    place = -1
    for _ in range(DEEPEST // 2 + 1):
        place = text.find(bracket, place + 1)
        if place < 0:
            return False
    return True


def _deeper(value: dict[str, Any], levels: int) -> bool:
    layer: list[Any] = [value]
    for _ in range(levels):
        parts = (part.values() if isinstance(part, dict) else part for part in layer)
        layer = [one for part in parts for one in part if isinstance(one, dict | list | tuple)]
    return bool(layer)


def _with_uid(item: dict[str, Any], text: str) -> tuple[dict[str, Any], str, str]:
    """An item without uid gets one, so that readers always find it; it is not deduplicated. Its
    writer may write the same dict again, so that stays as it is."""
    uid = item.get("uid")
    if uid is None or uid == "":
        uid = uuid.uuid4().hex
        item = {**item, "uid": uid}
        return item, uid, _encoded(item)
    if isinstance(uid, bool) or not isinstance(uid, str | int):
        raise ItemRefused("uid must be a string or an integer")
    name = _name(uid)
    _utf8(name, "uid")
    if len(name) > LONGEST_ID:
        raise ItemRefused(f"uid is longer than {LONGEST_ID} characters")
    return item, name, text


def _name(value: str | int) -> str:
    """A string or an integer as JSON has it. The text of a member of an `Enum` is another one."""
    return str.__str__(value) if isinstance(value, str) else int.__repr__(value)


def _reward(item: dict[str, Any]) -> str:
    reward = item.get("reward")
    if not isinstance(reward, _NUMBER):
        return ""
    try:
        number = float(reward)
    except OverflowError:
        raise ItemRefused("reward is out of range") from None
    if not abs(number) <= _LARGEST_REWARD:
        raise ItemRefused("reward is out of range: its square must be a finite number")
    whole = isinstance(reward, int) and abs(reward) < _EXACT
    return str(int(reward)) if whole else repr(number)  # 1 is not 1.0: figures show it as it came


def _slot(item: dict[str, Any]) -> tuple[str, str]:
    """Under a policy an item may name the slot that it was made under."""
    slot, fence = item.get("slot"), item.get("fence")
    if slot is None or fence is None:
        return "", ""
    _utf8(str(slot), "slot")
    _utf8(str(fence), "fence")
    return str(slot)[:LONGEST_ID], str(fence)[:32]


def _encoded(item: dict[str, Any]) -> str:
    try:
        return _patient.encode(item)
    except (ValueError, TypeError, RecursionError) as problem:
        raise ItemRefused(f"the item is not JSON: {problem}") from None


def _packed(payload: bytes) -> bytes:
    return payload if len(payload) < COMPRESS_ABOVE else zlib.compress(payload, 1)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ItemRefused(f"an item is a JSON object, not {type(value).__name__}")
    return value


def _utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ItemRefused(f"{what} holds half a surrogate pair, which is not Unicode") from None


def _too_large(size: int, limit: int) -> ItemRefused:
    return ItemRefused(
        f"the item has {size} bytes and PENSTOCK_MAX_ITEM_BYTES is {limit}", too_large=True
    )
