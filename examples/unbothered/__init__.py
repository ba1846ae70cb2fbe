"""A training that does not notice that its processes are killed."""
