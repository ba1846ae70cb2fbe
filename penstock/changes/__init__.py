"""What a person changes while the fleet runs, from the monitor or from `top`; each is noted."""

from penstock.changes.audit import Audit, Author, Noted
from penstock.changes.changes import Changed, Changes

__all__ = ["Audit", "Author", "Changed", "Changes", "Noted"]
