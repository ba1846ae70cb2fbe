"""What the E2B face of this machine offers."""

from pydantic import Field, SecretStr

from ground import Settings


class E2bSettings(Settings):
    """The E2B protocol over session sandboxes."""

    e2b_api_key: SecretStr | None = Field(
        None,
        description="The key that clients send as `E2B_API_KEY`. Some SDKs take only"
        " `e2b_` and 40 characters of 0-9a-f.",
    )
    e2b_max_hours: float = Field(
        24, gt=0, description="The longest time to live that one request may ask for, in hours."
    )
