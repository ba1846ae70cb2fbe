"""Which level of isolation this machine can give, shown by running the abuse probes."""
