"""The doctor says whether this machine is ready: facts, a verdict on each, and what to do."""

from penstock.doctor.finding import Finding
from penstock.doctor.packages import require_own_packages

__all__ = ["Finding", "require_own_packages"]
