"""The demo: the main job, end to end, with an accident on the way."""

__all__: list[str] = []
