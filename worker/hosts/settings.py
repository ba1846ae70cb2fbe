"""What the operator of a host's server may set."""

from pydantic import Field, SecretStr

from ground import Settings


class HostSettings(Settings):
    """Servers that speak a host's protocol."""

    openenv_token: SecretStr | None = Field(
        None, description="The bearer token that `penstock openenv` asks its clients for."
    )
