"""TRL's GRPOTrainer as small as it can be: a random model of one layer, on the CPU, that says what
a test wrote for it. In the place of vLLM, a server that does."""

import itertools
import json
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END = "<|im_end|>"


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte; the chat template of Qwen 3, which has tools."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({byte: n for n, byte in enumerate(alphabet)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
    )  # fmt: skip
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    found.chat_template = template.read_text()
    return found


def model(words: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8192,
        pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


class Trainer(trl.GRPOTrainer):
    """Its model says `says[turn][i]` to the i-th prompt of a batch; then it says no more."""

    says: Sequence[Sequence[str]] = ()
    turn = 0

    def __init__(self, **options: Any) -> None:
        self.advantages: list[list[float]] = []
        self.rewards: list[list[float]] = []
        super().__init__(**options)

    def _generate_single_turn(self, prompt_ids: Any, *_: Any, **__: Any) -> Any:
        turn = self.turn % len(self.says)
        self.turn += 1
        said = [self.says[turn][i % len(self.says[turn])] for i in range(len(prompt_ids))]
        ids = [self._tokenizer(text)["input_ids"] + [self._tokenizer.eos_token_id] for text in said]
        return ids, None

    def _calculate_rewards(self, *given: Any) -> Any:
        found = super()._calculate_rewards(*given)
        self.rewards.append(found.tolist())
        return found

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        found = super()._generate_and_score_completions(inputs)
        self.advantages.append(found["advantages"].tolist())
        return found


class Engine:
    """vLLM's completions, for AsyncGRPO: it says `says(n, prompt)` to the n-th first turn.

    First turns are answered four at a time, as many as are in flight: so a group of four has turns
    of its own.
    """

    def __init__(self, words: PreTrainedTokenizerFast, says: Callable[[int, str], str]) -> None:
        turns, all_asked = itertools.count(), threading.Barrier(4, timeout=100)

        class Completions(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                prompt = words.decode(asked["prompt"])
                first = "<tool_response>" not in prompt
                text = says(next(turns) if first else -1, prompt)
                if first:
                    all_asked.wait()
                ids = [*words(text)["input_ids"], words.eos_token_id]
                choice = {"token_ids": ids, "logprobs": {"token_logprobs": [0.0] * len(ids)}}
                body = json.dumps({"choices": [choice]}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Completions)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Engine":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def trainer(
    folder: Path,
    says: Sequence[Sequence[str]],
    rewards: Any,
    rows: Sequence[dict[str, Any]],
    *,
    steps: int = 1,
    group: int = 4,
    environment: Callable[[], object] | None = None,
    **config: Any,
) -> Trainer:
    """One that takes all rows in each step, `group` completions of each."""
    words = tokenizer()
    options = {
        "output_dir": str(folder), "report_to": [], "use_cpu": True, "max_steps": steps,
        "per_device_train_batch_size": group * len(rows), "num_generations": group,
        "max_completion_length": 4096, "logging_steps": 1, "save_strategy": "no", "seed": 0,
        "disable_tqdm": True, "beta": 0.0, "bf16": False, "gradient_checkpointing": False,
        "shuffle_dataset": False,
    }  # fmt: skip
    made = Trainer(
        model=model(words), processing_class=words, reward_funcs=rewards,
        args=trl.GRPOConfig(**options | config), train_dataset=Dataset.from_list([*rows]),
        environment_factory=environment,
    )  # fmt: skip
    made.says = says
    return made
