"""A self-test shows which level of isolation this machine can give, by running the abuse probes.
Nothing weaker is taken in its place."""
