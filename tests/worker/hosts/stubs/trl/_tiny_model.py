"""The stand-in for TRL needs no model."""


def save(name):
    pass
