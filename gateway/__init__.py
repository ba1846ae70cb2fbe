"""Agents speak to engines through here, and each turn's exact tokens are kept for the trainer."""
