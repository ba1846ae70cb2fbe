"""What a session has changed becomes a layer, or is refused by name."""

import io

import pytest

from jail.images import ImageBroken
from jail.inside.packing import head
from jail.sessions.layers import LayerWriter

ABOUT = {"kind": "file", "mode": 0o644, "owner": [0, 0], "times": [0, 0]}


@pytest.mark.parametrize("name", [".wh.passwd", "etc/.wh.passwd", "etc/.wh..wh..opq"])
def test_a_file_that_would_delete_another_in_the_image_is_refused(name: str) -> None:
    """As a layer is read, its name says that the other one was removed."""
    with pytest.raises(ImageBroken, match=f"/{name}: in a layer this name means"):
        LayerWriter(io.BytesIO(), 1 << 20).feed(head({**ABOUT, "name": name}))


def test_a_name_with_these_letters_elsewhere_is_a_name() -> None:
    writer = LayerWriter(io.BytesIO(), 1 << 20)
    writer.feed(head({**ABOUT, "name": "etc/a.wh.b"}))
    assert writer.close() == 1
