"""The whole fleet as one typed picture; `top`, the monitor, `--json` and `/metrics` all show it."""

from penstock.fleet.model import (
    Fleet,
    Group,
    Job,
    Queue,
    Registry,
    Sandbox,
    Server,
    Task,
    Worker,
)
from penstock.fleet.reader import FleetReader

__all__ = [
    "Fleet",
    "FleetReader",
    "Group",
    "Job",
    "Queue",
    "Registry",
    "Sandbox",
    "Server",
    "Task",
    "Worker",
]
