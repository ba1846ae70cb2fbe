"""The settings of what `penstock` itself serves."""

from pydantic import Field, SecretStr

from ground.settings import Settings


class MonitorSettings(Settings):
    """Settings of the monitor page."""

    monitor_host: str = Field("127.0.0.1", description="Address that the monitor listens on.")
    monitor_port: int = Field(8890, ge=0, le=65535, description="Port of the monitor.")
    monitor_token: SecretStr | None = Field(
        None,
        description="Bearer token that the monitor asks for. Without one it shows the fleet, but"
        " refuses changes.",
    )
