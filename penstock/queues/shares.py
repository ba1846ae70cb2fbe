"""The shares of a queue, or of a gate, as people see them."""

from rich.table import Table

from limiter import GateShares
from worker import Shares


def table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def table_of_shares(shares: Shares | GateShares) -> Table:
    rows = table("share", "waiting", "weight")
    for one in shares.shares:
        rows.add_row(one.name or "(none)", str(one.waiting), f"{one.weight:g}")
    rows.add_row("*", "", f"{shares.others:g}")
    left_out = shares.waiting - sum(one.waiting > 0 for one in shares.shares)
    if left_out > 0:
        rows.add_row(f"and {left_out} more", "", "")
    return rows
