"""A reward is explained by what it stands on, in one list, by the id of whatever a person has in
hand.

The command, the monitor's page and `top` show the same list. All of it is what Redis keeps.
"""

from penstock.why.looking import NothingFound, explain
from penstock.why.model import Explained, Fact

__all__ = ["Explained", "Fact", "NothingFound", "explain"]
