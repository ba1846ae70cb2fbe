"""Session sandboxes in E2B's protocol: its SDKs work against ours by two variables."""

from worker.e2b.app import app
from worker.e2b.boxes import Boxes
from worker.e2b.fleet.service import Service
from worker.e2b.fleet.warm import kept_warm
from worker.e2b.settings import E2bSettings

__all__ = ["Boxes", "E2bSettings", "Service", "app", "kept_warm"]
