"""Operators look at gates and their permits here, and change them by the same code as the
monitor."""
