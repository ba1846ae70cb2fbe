"""The gates and their permits, for operators."""
