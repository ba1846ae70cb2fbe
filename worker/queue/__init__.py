"""The trainer's end of a queue: programs go in, results come back. Every order ends with a result
or an error that says why."""
