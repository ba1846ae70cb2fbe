"""The monitor: one page that shows the fleet live, and changes it for those with the token."""

__all__: list[str] = []
