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
    e2b_image_metadata: str = Field(
        "image",
        description="The key of a sandbox's metadata that names its image, where its template is"
        " `base`. slime calls it `SLIME_AGENT_SANDBOX_IMAGE_METADATA_KEY`.",
    )
    e2b_max_hours: float = Field(
        24, gt=0, description="The longest time to live that a client may ask for, in hours."
    )
