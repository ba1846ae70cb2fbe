"""Fleets that are broken, really, and whether each surface names what is wrong."""
