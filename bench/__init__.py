"""Reproducible comparisons."""
