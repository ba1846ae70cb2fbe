"""The shares of a queue, or of a gate, as people see them."""

from limiter import GateShares
from penstock.tables import Table
from worker import Shares


def table_of_shares(shares: Shares | GateShares) -> Table:
    rows = Table("share", "waiting", "weight", right=("waiting", "weight"))
    for one in shares.shares:
        rows.add(one.name or "(none)", str(one.waiting), f"{one.weight:g}")
    rows.add("*", "", f"{shares.others:g}")
    left_out = shares.waiting - sum(one.waiting > 0 for one in shares.shares)
    if left_out > 0:
        rows.add(f"and {left_out} more", "", "")
    return rows
