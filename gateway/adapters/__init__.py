"""Rows of sessions as trainers have them."""
