"""Assertions that hold outside the process of the program which answers their calls."""
