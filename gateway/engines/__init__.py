"""Engines render, sample and parse, by their own endpoints. The gateway has no tokenizer."""
