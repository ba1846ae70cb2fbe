"""A read makes a batch of raw groups: what is ready, what is valid, and what a trainer is given."""
