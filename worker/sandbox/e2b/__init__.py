"""Session sandboxes in E2B's protocol: its SDKs work against ours by two variables."""

from worker.sandbox.e2b.app import app
from worker.sandbox.e2b.boxes import Boxes
from worker.sandbox.e2b.fleet.service import Service
from worker.sandbox.e2b.fleet.warm import kept_warm
from worker.sandbox.e2b.settings import E2bSettings

__all__ = ["Boxes", "E2bSettings", "Service", "app", "kept_warm"]
