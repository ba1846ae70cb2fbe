"""Dialects: how agents ask, and how they are answered. Each is read into a `Question`."""
