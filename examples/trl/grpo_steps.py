"""GRPO on the CPU with TRL, from prompts to advantages and weights, in half a minute.

    pip install trl==1.16.0 torch
    python examples/trl/grpo_steps.py

The model is random and has one layer. Its words are whole programs, so that some of what it writes
runs. The programs run in the embedded sandbox of this process; with PENSTOCK_REDIS_URL, on its
workers. It prints the first step's rewards and advantages, and what the model has learned.
"""

import json
import tempfile

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer

from worker.hosts.trl import CodeReward

RIGHT = "print(int(input()) ** 2)"
PROGRAMS = [
    RIGHT,
    "print(int(input()) * 2)",  # right for 0 and 2
    "print(0)",
    "1 / 0",
    "while True: pass",
    "print(",
]
WORDS = ["<pad>", "<end>", "<unknown>", *(f"```python\n{program}\n```" for program in PROGRAMS)]
FIRST = len(WORDS) - len(PROGRAMS)
PROMPT = "Write a program that prints the square of a number."
CASES = {"inputs": ["0", "1", "2", "3"], "outputs": ["0", "1", "4", "9"]}
ROW = {"prompt": PROMPT, "ground_truth": json.dumps(CASES)}


class Trainer(GRPOTrainer):
    """TRL's own, which remembers the first step's advantages."""

    first = None

    def _generate_and_score_completions(self, inputs):
        found = super()._generate_and_score_completions(inputs)
        if self.first is None:
            self.first = found["completion_ids"][:, 0].tolist(), found["advantages"].tolist()
        return found


def tokenizer() -> PreTrainedTokenizerFast:
    """A token for each word."""
    words = {word: number for number, word in enumerate(WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token="<unknown>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="<unknown>"
    )


def chance(model: Qwen2ForCausalLM, words: PreTrainedTokenizerFast) -> float:
    """How likely the model is to write the right program."""
    with torch.no_grad():
        scores = model(**words(PROMPT, return_tensors="pt", return_token_type_ids=False)).logits
    return float(scores[0, -1, FIRST:].softmax(-1)[0])


def main() -> None:
    torch.manual_seed(1)
    words = tokenizer()
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(WORDS), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, pad_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip
    before = chance(model, words)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            processing_class=words,
            reward_funcs=CodeReward("ground_truth", case_timeout=0.5),
            train_dataset=Dataset.from_list([ROW]),
            args=GRPOConfig(
                output_dir=folder, report_to=[], use_cpu=True, bf16=False, max_steps=15,
                gradient_checkpointing=False, save_strategy="no", disable_tqdm=True,
                per_device_train_batch_size=8, num_generations=8, max_completion_length=1,
                learning_rate=0.05, logging_steps=15, log_level="error",
                generation_kwargs={"suppress_tokens": list(range(FIRST))},
            ),
        )  # fmt: skip
        trainer.train()
    for token, advantage in zip(*trainer.first, strict=True):
        print(f"{advantage:6.2f}  {PROGRAMS[token - FIRST]}")
    print(f"the right program: {before:.0%} before, {chance(model, words):.0%} after 15 steps")


if __name__ == "__main__":
    main()
