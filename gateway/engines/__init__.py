"""Engines: what renders, samples and parses, by its own endpoints. The gateway has no tokenizer."""
