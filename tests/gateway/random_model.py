"""`python random_model.py FOLDER`: a small model with random weights, which vLLM serves.

Its tokens are learned from this file, and its template is of the kind that Qwen's models have. The
weights are large, so that each token changes the log-probabilities of those behind it. The end of a
turn is so unlikely that an answer is as long as its request allows.
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = """
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- set role = 'user' if message.role == 'tool' else message.role %}
    {{- '<|im_start|>' + role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson + '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


def main(folder: str) -> None:
    """Write it."""
    pieces = Tokenizer(models.BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learning = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=alphabet
    )
    pieces.train_from_iterator([Path(__file__).read_text()], learning)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces, eos_token=SPECIAL[2], pad_token=SPECIAL[0]
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=4096,
        initializer_range=0.2, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight *= 3
        model.lm_head.weight[tokenizer.eos_token_id] = 0
    model.save_pretrained(folder)


if __name__ == "__main__":
    main(sys.argv[1])
