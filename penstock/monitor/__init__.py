"""The monitor: one page that shows the fleet live, and changes it for those with the token."""

from penstock.monitor.app import make_app

__all__ = ["make_app"]
