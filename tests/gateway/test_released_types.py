"""What the gateway sends to engines, and what the scripted engines answer, beside released types.

`make conformance-engines` unpacks the engines' packages. They are read and not imported: each
needs a GPU's libraries. A name that a released type lacks is a name that a real engine ignores.
"""

import ast
import os
import re
from pathlib import Path
from typing import Any

import pytest

import ground
from tests.gateway.scripted.engine import ScriptedEngine
from tests.gateway.scripted.model import Model
from tests.gateway.scripted.sglang import ScriptedSglang
from tests.gateway.scripted.vllm import ScriptedVllm
from tests.gateway.serving import TOOLS, world

SOURCE = os.environ.get("ENGINES_SOURCE", "")
pytestmark = pytest.mark.skipif(not SOURCE, reason="ENGINES_SOURCE names no folder of packages")

FILES = {
    "vllm": [
        "entrypoints/scale_out/token_in_token_out/protocol.py", "sampling_params.py",
        "entrypoints/openai/chat_completion/protocol.py", "entrypoints/serve/tokenize/protocol.py",
        "entrypoints/openai/completion/protocol.py", "entrypoints/serve/engine/protocol.py",
        "entrypoints/generate/base/protocol.py", "outputs.py",
    ],
    "sglang": ["srt/entrypoints/openai/protocol.py", "srt/managers/io_struct.py"],
}  # fmt: skip
# Of each path: the type of a request, and that of an answer or of its events. A text in place of
# a type is the files that make the answer by hand, in which its names are written.
TYPES = {
    "vllm": {
        "/v1/chat/completions/render": ("ChatCompletionRequest", "GenerateRequest"),
        "/inference/v1/generate": ("GenerateRequest", "GenerateTokensStreamResponse"),
        "/v1/chat/completions/derender": ("DerenderChatRequest", "ChatCompletionResponse"),
        "/tokenize": ("TokenizeChatRequest", "TokenizeResponse"),
        "/detokenize": ("DetokenizeRequest", "DetokenizeResponse"),
        "/v1/completions": ("CompletionRequest", "CompletionStreamResponse"),
    },
    "sglang": {
        "/v1/tokenize": ("TokenizeRequest", "TokenizeResponse"),
        "/generate": (
            "GenerateReqInput",
            "srt/managers/tokenizer_manager.py srt/utils/weight_versions.py",
        ),
        "/v1/chat/completions": ("ChatCompletionRequest", "ChatCompletionResponse"),
        "/parse_function_call": ("ParseFunctionCallReq", "srt/entrypoints/http_server.py"),
        "/separate_reasoning": ("SeparateReasoningReqInput", "srt/entrypoints/http_server.py"),
    },
}
CONTROL = {
    "vllm": {"/weight_info": "weight_version", "/version": "version"},
    "sglang": {"/model_info": "model_path", "/server_info": "server_info"},
}
WORDS = re.compile(r"\w+")


class Types:
    """The classes of an engine's files: of each its fields, and the words of their types."""

    def __init__(self, engine: str) -> None:
        self.root = Path(SOURCE) / engine
        self._classes: dict[str, ast.ClassDef] = {}
        for name in FILES[engine]:
            for node in ast.walk(ast.parse((self.root / name).read_text())):
                if isinstance(node, ast.ClassDef):
                    self._classes.setdefault(node.name, node)

    def fields(self, name: str) -> dict[str, set[str]]:
        """With those that it inherits."""
        found: dict[str, set[str]] = {}
        node = self._classes[name]
        for base in node.bases:
            if ast.unparse(base) in self._classes:
                found |= self.fields(ast.unparse(base))
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                said = set(WORDS.findall(ast.unparse(each.annotation)))
                found[each.target.id] = said & self._classes.keys()
        return found

    def unknown(self, name: str, said: Any, at: str = "") -> set[str]:
        """The names in this value which the type does not have."""
        if isinstance(said, list):
            return set().union(*(self.unknown(name, each, at) for each in said))
        if not isinstance(said, dict):
            return set()
        fields, found = self.fields(name), set()
        for key, value in said.items():
            if key not in fields:
                found.add(f"{name}{at}.{key}")
            elif fields[key]:  # one of these types has it
                tried = [self.unknown(inner, value) for inner in sorted(fields[key])]
                found |= min(tried, key=len)
        return found

    def unwritten(self, files: str, said: Any) -> set[str]:
        """The names in this value which no text of these files is."""
        text = "".join((self.root / file).read_text() for file in files.split())
        names = set(said) if isinstance(said, dict) else set()
        return {f"{files}: {name}" for name in names if f'"{name}"' not in text}


class Heard:
    """What an engine was asked, and answered, by path."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.asked: list[tuple[str, Any]] = []
        self.answered: list[tuple[str, Any]] = []
        engine.routes = {key: self._spied(key[1], handle) for key, handle in engine.routes.items()}

    def _spied(self, path: str, handle: Any) -> Any:
        async def spied(engine: Any, body: Any, reply: Any, query: Any) -> Any:
            event = reply.event

            async def noted(found: Any) -> None:
                self.answered.append((path, found))
                await event(found)

            reply.event = noted
            self.asked.append((path, body))
            found = await handle(engine, body, reply, query)
            if found is not None:
                self.answered.append((path, found))
            return found

        return spied


def calls_a_tool() -> Model:
    call = '<think>\nhm\n</think>\n<tool_call>\n{"name": "sh", "arguments": {}}\n</tool_call>'
    return Model(script=lambda prompt, chance: call)


@pytest.mark.parametrize("face", ["vllm", "vllm-plain", "sglang"])
async def test_each_name_on_the_wire_is_one_of_the_released_types(
    real_redis: ground.Client, face: str
) -> None:
    engine: ScriptedEngine = {
        "vllm": lambda: ScriptedVllm(model=calls_a_tool()),
        "vllm-plain": lambda: ScriptedVllm(plain=True),
        "sglang": lambda: ScriptedSglang(model=calls_a_tool(), incremental=True),
    }[face]()
    heard = Heard(engine)
    name = face.removesuffix("-plain")
    more = {} if face == "vllm-plain" else {"tools": TOOLS}
    async with world(real_redis, engine) as here:
        agent = await here.open(sampling={"temperature": 0.7, "top_k": 5, "min_p": 0.1, "seed": 3})
        await agent.says("hello", **more)
        await agent.goes_on(**more)
        await agent.says("more", stop=["four"], max_tokens=30, logprobs=True, **more)
        if more:
            await agent.says("you must", tool_choice="required", **more)
    types = Types(name)
    wrong: set[str] = set()
    for path, body in heard.asked:
        if path in TYPES[name]:
            wrong |= types.unknown(TYPES[name][path][0], body)
    for path, body in heard.answered:
        kind = TYPES[name].get(path, ("", ""))[1]
        if kind.endswith(".py") and body != "[DONE]":
            wrong |= types.unwritten(kind, body)
            wrong |= types.unwritten(kind, body.get("meta_info") if isinstance(body, dict) else {})
        elif kind and body != "[DONE]":
            wrong |= types.unknown(kind, body)
    assert wrong == set()
    used = {path for path, _ in heard.asked} & TYPES[name].keys()
    assert len(used) >= 3, used


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_what_the_gateway_reads_of_an_engine_itself_is_served(engine: str) -> None:
    texts = [file.read_text() for file in (Path(SOURCE) / engine).rglob("*.py")
             if "entrypoints" in file.parts]  # fmt: skip
    for path, word in CONTROL[engine].items():
        assert [text for text in texts if f'"{path}"' in text and word in text], path
