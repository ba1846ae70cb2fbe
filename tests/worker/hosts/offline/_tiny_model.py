"""A random model of one layer, under the name of one that would be fetched."""

from transformers import Qwen2Config, Qwen2ForCausalLM


def save(name):
    from tests.worker.hosts.tiny_trl import tokenizer

    words = tokenizer()
    words.save_pretrained(name)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=8192,
        pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(name)
