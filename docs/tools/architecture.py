"""Draw docs/pictures/architecture.svg: the packages, their folders, and who imports whom.

Names and sentences are those of the source, arrows its imports. An arrow that follows from two
others is left out.
"""

import ast
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "pictures" / "architecture.svg"
PACKAGES = ("penstock", "worker", "gateway", "limiter", "jail", "buffer", "ground")

WIDTH, GAP, PAD, LINE = 960, 46, 16, 19
_COLOURS = {
    "penstock": "#e8eefc", "worker": "#e6f4ea", "limiter": "#fdf3e0", "buffer": "#f6e9f5",
    "jail": "#e5f3f4", "gateway": "#fbe9e7", "ground": "#ececec",
}  # fmt: skip


@dataclass(frozen=True)
class Box:
    package: str
    x: int
    y: int
    width: int
    lines: list[str]

    @property
    def height(self) -> int:
        return 2 * PAD + LINE * (len(self.lines) + 1)

    @property
    def middle(self) -> int:
        return self.x + self.width // 2


def main() -> None:
    PICTURE.write_text(drawn())


def imports() -> dict[str, set[str]]:
    """Package → the other packages that its files import."""
    found = {}
    for package in PACKAGES:
        trees = [ast.parse(file.read_text()) for file in (ROOT / package).rglob("*.py")]
        nodes = [node for tree in trees for node in ast.walk(tree)]
        names = [
            alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names
        ]
        names += [
            n.module for n in nodes if isinstance(n, ast.ImportFrom) and n.module and not n.level
        ]
        found[package] = {name.split(".")[0] for name in names} & set(PACKAGES) - {package}
    return found


def arrows() -> set[tuple[str, str]]:
    """Who imports whom, less what follows."""
    direct = imports()
    return {
        (one, other)
        for one, others in direct.items()
        for other in others
        if not any(other in direct[between] for between in others - {other})
    }


def drawn() -> str:
    boxes = _laid_out()
    height = boxes["ground"].y + boxes["ground"].height + 10
    shown = [_arrow(boxes[one], boxes[other]) for one, other in sorted(arrows())]
    shown += [_box(box) for box in boxes.values()]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="13" fill="#222">\n'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" '
        'markerHeight="8" orient="auto"><path d="M0 0L8 4L0 8z" fill="#666"/></marker></defs>\n'
        f'<rect width="{WIDTH}" height="{height}" rx="8" fill="#fff"/>\n'
        + "\n".join(shown)
        + "\n</svg>\n"
    )


def _laid_out() -> dict[str, Box]:
    """Each package above those that it imports; jail, limiter and buffer beside each other."""
    left, right = 560, WIDTH - 560 - 3 * 10
    boxes: dict[str, Box] = {}
    y = 10
    for row in (("penstock",), ("worker", "gateway"), ("jail", "limiter", "buffer"), ("ground",)):
        x = 10
        for package in row:
            width = WIDTH - 20 if package in ("penstock", "ground") else left
            if package in ("limiter", "jail"):
                width = (left - 10) // 2
            if package in ("gateway", "buffer"):
                width = right
            boxes[package] = Box(package, x, y, width, _lines(package, width))
            x += width + 10
        y += max(boxes[package].height for package in row) + GAP
    return boxes


def _lines(package: str, width: int) -> list[str]:
    folder = ROOT / package
    said = (ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "").split("\n")[0]
    rooms = sorted(one.parent.name for one in folder.glob("*/__init__.py"))
    letters = (width - 2 * PAD) // 7
    shown = textwrap.wrap(" · ".join(f"{room}/" for room in rooms), letters) if rooms else []
    return [*textwrap.wrap(said, letters), *shown]


def _box(box: Box) -> str:
    texts = [
        f'<text x="{box.x + PAD}" y="{box.y + PAD + 12}" font-size="16" font-weight="600">'
        f"{box.package}/</text>"
    ]
    for number, line in enumerate(box.lines, 1):
        colour = ' fill="#555"' if line.endswith("/") else ""
        y = box.y + PAD + 12 + LINE * number
        texts.append(f'<text x="{box.x + PAD}" y="{y}"{colour}>{escape(line)}</text>')
    return (
        f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8" '
        f'fill="{_COLOURS[box.package]}" stroke="#999"/>\n' + "\n".join(texts)
    )


def _arrow(above: Box, below: Box) -> str:
    x = below.middle if above.width > below.width else above.middle
    begin = min(max(x, above.x + PAD), above.x + above.width - PAD)
    across = f"V{below.y - GAP // 2}H{x}" if begin != x else ""
    return (
        f'<path d="M{begin} {above.y + above.height}{across}V{below.y - 2}" fill="none" '
        'stroke="#666" stroke-width="1.5" marker-end="url(#tip)"/>'
    )


if __name__ == "__main__":
    main()
