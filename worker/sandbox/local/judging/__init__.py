"""One program and its cases: compiled once, then run on each of them in jails that last."""
