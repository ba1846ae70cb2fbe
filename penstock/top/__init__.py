"""`penstock top`: the fleet in a terminal, to look at and to change."""

__all__: list[str] = []
