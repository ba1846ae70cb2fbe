"""All of it on one machine: started, watched, restarted, ended."""

__all__: list[str] = []
