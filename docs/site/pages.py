"""The pages of the site: the repository's own markdown files, laid out for Sphinx.

    README.md → index.md · docs/… as they are · a page for each file or folder that a page links to
    the command's source → a page of its help · a package's → its part of the Python API

The order in the margin is that of docs/README.md: its bold lines and second headings are captions.
"""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from docs.tools import python_api, reference

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "README.md"
COMMAND, API = Path("docs/reference/command.md"), Path("docs/reference/python.md")
BESIDE = ("CHANGELOG.md", "CONTRIBUTING.md")

_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_CAPTION = re.compile(r"^(?:## |\*\*)([^*:\n]+)")
_KINDS = {".py": "python", ".yaml": "yaml", ".sh": "bash", ".toml": "toml"}
# A search finds pages, and neither source nor what was long ago.
_NOT_FOUND = "---\nnosearch: true\n---\n\n"
_UNLISTED = "---\norphan: true\nnosearch: true\n---\n\n"
_PICTURES = (".svg", ".png")


def pages() -> list[Path]:
    """Every markdown file of the site, README.md first."""
    written = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *written, *(ROOT / name for name in BESIDE)]


def navigation() -> list[tuple[str, list[str]]]:
    """Captions, and the pages below each, as paths from the root of the repository."""
    found: list[tuple[str, list[str]]] = [("Begin", [])]
    for line in INDEX.read_text().splitlines():
        if caption := _CAPTION.match(line):
            found.append((caption[1].strip(), []))
        for target, _ in _LINK.findall(line):
            if target.endswith(".md"):
                found[-1][1].append((Path("docs") / target).as_posix())
    for caption, names in found:
        if caption == "Reference":
            names += [COMMAND.as_posix(), API.as_posix()]
    found.append(("Project", list(BESIDE)))
    return [(caption, names) for caption, names in found if names]


def lay_out(folder: Path) -> None:
    """Write all that Sphinx reads into a new folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs" / "pictures", folder / "docs" / "pictures")
    shown: set[Path] = set()
    for page in pages():
        text = _linked(page, shown)
        if page == ROOT / "README.md":
            text += _margin()
        if page == ROOT / "CHANGELOG.md":
            text = _NOT_FOUND + text
        _write(folder / _place(page), text)
    for name, text in reference.site_documents().items():
        _write(folder / "docs" / "reference" / name, text)
    for target in sorted(shown):
        _write(folder / _place(target), _UNLISTED + _shown(target))


def _place(target: Path) -> Path:
    """Where a page, or the page of a file or folder, lies in the source of the site."""
    inside = target.relative_to(ROOT)
    if target == ROOT / "README.md":
        return Path("index.md")
    return (
        inside
        if target.suffix == ".md"
        else Path("source", *inside.parts).with_name(f"{inside.name}.md")
    )


def _linked(page: Path, shown: set[Path]) -> str:
    """The page with its links as the site has them. Those in blocks are not links."""
    here = _place(page).parent

    def changed(link: re.Match[str]) -> str:
        if ":" in link[1]:
            return link[0]
        target = (page.parent / link[1]).resolve()
        if target.suffix in _PICTURES:
            return link[0]
        up = "../" * len(here.parts)
        if made := _made_of(target):
            return up + made
        if target.suffix != ".md":
            shown.add(target)
        return f"{up}{_place(target).as_posix()}{link[2] or ''}"

    text, at, parts = page.read_text(), 0, list[str]()
    for fence in _FENCE.finditer(text):
        parts += [_LINK.sub(changed, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, _LINK.sub(changed, text[at:])])


def _made_of(target: Path) -> str:
    """Where the site has more of a source than its text."""
    package = ".".join(target.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    if package == "penstock.cli":
        return COMMAND.as_posix()
    if target.name == "__init__.py" and package in python_api.PACKAGES:
        return f"{API.as_posix()}#{package.replace('.', '')}"
    return ""


def _margin() -> str:
    """The tables of contents, which only the margin shows."""
    trees = [("", ["docs/README.md"]), *navigation()]
    return "".join(_tree(caption, names) for caption, names in trees)


def _tree(caption: str, names: list[str]) -> str:
    option = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n{option}\n" + "\n".join(names) + "\n```\n"


def _shown(target: Path) -> str:
    """A file as it is, or what is in a folder."""
    title = f"# {target.relative_to(ROOT).as_posix()}\n\n"
    if target.is_dir():
        return title + "| File | |\n|---|---|\n" + "".join(_rows(target))
    kind = _KINDS.get(target.suffix, "text")
    return f"{title}````{kind}\n{target.read_text().rstrip()}\n````\n"


def _rows(folder: Path) -> Iterator[str]:
    for file in sorted(folder.iterdir()):
        if not file.name.startswith((".", "__pycache__")):
            name = file.name + "/" * file.is_dir()
            yield f"| `{name}` | {_purpose(file)} |\n"


def _purpose(file: Path) -> str:
    """The first line of its docstring, if it has one."""
    module = file / "__init__.py" if file.is_dir() else file
    if module.suffix != ".py" or not module.exists():
        return ""
    said = ast.get_docstring(ast.parse(module.read_text())) or ""
    return said.partition("\n")[0].replace("|", "\\|")


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
