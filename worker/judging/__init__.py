"""A job that judges: its cases read, tried one by one or at once, and reported."""
