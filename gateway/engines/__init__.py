"""Engines: what renders, samples and parses, by its own endpoints. No tokenizer is of ours."""
