"""Operators look at queues and their shares here, and change them by the same code as the
monitor."""
