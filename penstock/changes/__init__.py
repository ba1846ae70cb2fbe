"""People change a running fleet by these, from the monitor, `top` or a command; all is noted."""

from penstock.changes.audit import Audit, Author, Noted
from penstock.changes.changes import Changed, Changes, change_at_terminal

__all__ = ["Audit", "Author", "Changed", "Changes", "Noted", "change_at_terminal"]
