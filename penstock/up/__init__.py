"""`penstock up` runs all of it on one machine: started, watched, restarted, ended. No service
outlives it."""

__all__: list[str] = []
