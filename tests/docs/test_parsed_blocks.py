"""Blocks that no test can run are parsed: by YAML, by `penstock`'s own command line, and
against the manifests, units and settings that they name."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ground.settings import variables
from penstock.release import __version__
from penstock.variables import settings_models
from tests.architecture.source import ROOT
from tests.penstock.commands import parsed

FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SETTINGS = {name for model in settings_models() for name in variables(model)}
SETTINGS |= {f"{name}_FILE" for name in SETTINGS}
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
# Programs whose arguments name nothing of Penstock's.
FOREIGN = {
    ".", "cat", "cd", "curl", "echo", "git", "grep", "helm", "kill", "ln", "mv", "openssl",
    "printf", "python", "rm", "rq-dashboard", "sysctl", "tail", "umask",
}  # fmt: skip


def blocks(*languages: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for fence in FENCE.finditer(page.read_text()):
            if fence[2] in languages:
                yield page, re.sub(rf"^{fence[1]}", "", fence[3], flags=re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of the `$ ` lines, each as its words."""
    joined = text.replace("\\\n", " ")
    for line in re.findall(r"^\$ (.+)$", joined, re.MULTILINE):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
        lexer.commenters = "#"
        lexer.whitespace_split = True
        words: list[str] = []
        before = ""
        for word in [*lexer, ";"]:
            if set(word) <= set("|&;()"):
                if words:
                    yield words
                words = []
            elif not {word, before} & {"<", ">", ">>"}:  # the name of a file
                words.append(word)
            before = word


COMMANDS = [
    pytest.param(words, id=f"{page.stem}: {' '.join(words)[:60]}")
    for page, text in blocks("text")
    for words in commands(text)
]


def test_every_yaml_toml_and_json_block_can_be_read() -> None:
    readers: dict[str, Any] = {
        "yaml": lambda text: list(yaml.safe_load_all(text)), "toml": tomllib.loads,
        "json": json.loads,
    }  # fmt: skip
    read = {language: [reader(text) for _, text in blocks(language)]
            for language, reader in readers.items()}  # fmt: skip
    assert len(read["yaml"]) >= 3


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_that_is_not_run_names_what_there_is(words: list[str]) -> None:
    while words and (words[0] in ("sudo", "export") or re.match(r"[A-Z_]+=", words[0])):
        name, given, _ = words.pop(0).partition("=")
        assert not given or not name.startswith("PENSTOCK_") or name in SETTINGS, name
    if not words or words[0] in FOREIGN:
        return
    check(words)


def check(words: list[str]) -> None:
    match Path(words[0]).name, words[1:]:
        case "penstock", rest:
            parsed(rest)
        case "make", targets:
            for target in (word for word in targets if "=" not in word):
                assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), target
        case "pip", ["install", wanted, *_] if wanted.startswith("./penstock"):
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            named = set(re.findall(r"\w+", wanted.partition("[")[2]))
            assert named <= extras["optional-dependencies"].keys()
        case "pip" | "python3", _:
            pass
        case "srun", rest:
            check(rest)
        case "rq", ["worker", *rest]:
            assert {"worker.ConcurrentWorker", "rq.serializers.JSONSerializer"} <= set(rest)
        case "docker", ["compose", *rest]:
            services = {rest[n + 1].partition("=")[0] for n, w in enumerate(rest) if w == "--scale"}
            profiles = {rest[n + 1] for n, w in enumerate(rest) if w == "--profile"}
            all_of = COMPOSE["services"].values()
            found = {profile for service in all_of for profile in service.get("profiles", ())}
            assert services <= COMPOSE["services"].keys()
            assert profiles <= found
        case "docker", ["build" | "push", *rest]:
            assert any(word.endswith(f"penstock:{__version__}") for word in rest)
        case "kubectl", rest:
            check_cluster(rest)
        case "systemctl" | "journalctl", rest:
            units = {file.name.removesuffix(".service").partition("@")[0] for file in
                     (ROOT / "deploy" / "systemd").glob("*.service")}  # fmt: skip
            wanted = [word for word in rest if word.startswith("penstock")]
            assert {word.partition("@")[0] for word in wanted} <= units
        case "ulimit", ["-n", most]:
            assert int(most) > 2100  # what 2,000 sandboxes take
        case "flock", ["-n", "lock", "$SERVER", "server.conf", *_]:
            pass  # tests/ground/server runs that line
        case "cp" | "install", rest:
            files = [word for word in rest if word.startswith("deploy/")]
            assert all(list(ROOT.glob(file)) for file in files)
        case program, _:
            pytest.fail(f"{program}: say above how its command is checked")


def check_cluster(words: list[str]) -> None:
    """The objects that a command names are in the manifests; what runs inside is parsed."""
    outer, _, inner = " ".join(words).partition(" -- ")
    if inner.startswith("penstock "):
        parsed(shlex.split(inner)[1:])
    texts = [file.read_text() for file in (ROOT / "deploy" / "kubernetes").rglob("*.yaml")]
    objects = {
        (one["kind"].lower(), one["metadata"]["name"])
        for text in texts
        for one in yaml.safe_load_all(text)
        if one and "metadata" in one
    }
    for kind, name in re.findall(r"\b(deployment|deploy|service)/(\w+)", outer):
        assert ({"deploy": "deployment"}.get(kind, kind), name) in objects, f"{kind}/{name}"


def test_an_overlay_names_folders_that_there_are_and_the_image_last() -> None:
    overlays = [
        one
        for _, text in blocks("yaml")
        for one in yaml.safe_load_all(text)
        if isinstance(one, dict) and one.get("kind") == "Kustomization"
    ]
    assert overlays
    for overlay in overlays:
        *folders, image = (*overlay["resources"], *overlay["components"])
        for folder in folders:
            assert (ROOT / folder / "kustomization.yaml").exists(), folder
        assert image == "deploy/kubernetes/image", "`make pinned` writes it; it renames all others"


def test_a_drop_in_of_a_unit_starts_what_penstock_understands() -> None:
    starts = re.compile(r"^ExecStart=(.+)$", re.MULTILINE)
    started = [line for _, text in blocks("text") for line in starts.findall(text)]
    assert started
    for line in started:
        program, *words = shlex.split(line)
        assert Path(program).name == "penstock"
        parsed(words)
