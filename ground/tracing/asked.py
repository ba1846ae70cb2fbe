"""Whether the environment asks for traces or metrics, by OpenTelemetry's own variables."""

import os
from typing import Literal


def asked(signal: Literal["TRACES", "METRICS"]) -> bool:
    """An exporter is named, or where one is to send to."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if exporter := os.environ.get(f"OTEL_{signal}_EXPORTER"):
        return exporter != "none"
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(os.environ.get(name) for name in endpoints)
