"""Rewards in the words of each trainer: one file per host, and one core, `grading`.

Each file is imported only by its host, and imports no other host.
"""

from worker.hosts.grading import Grade, Grader, cases_of, text_of

__all__ = ["Grade", "Grader", "cases_of", "text_of"]
