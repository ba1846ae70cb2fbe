"""The operator's side of session sandboxes on one machine, from the environment."""

import os
import tempfile
from dataclasses import replace
from pathlib import Path

from pydantic import Field, field_validator

from ground.settings import Settings
from jail.limits import CAPS, MB, Limits, room_for_descriptors
from jail.network.rules import ceiling
from jail.settings import SandboxSettings

FOLDER = "PENSTOCK_LOCAL_SANDBOXES"
LONGEST = 30 * 86400.0  # seconds that a session may be asked to live
_DESCRIPTORS = 16  # that one session needs in the hub, with a few commands
_OPEN_FILES = 1024
_A_FILE_PER = 1 << 14  # bytes of its disk


class SessionSettings(Settings):
    """The settings of session sandboxes, besides those of the embedded sandbox."""

    local_sandboxes: str | None = Field(
        None,
        description="This user's own folder of session sandboxes. Unset:"
        " `penstock-sandboxes-<uid>` in the folder for temporary files.",
    )
    session_disk_mb: int | None = Field(
        None,
        ge=1,
        description="What one session sandbox may write to its folders, in MB. Unset: as"
        " `PENSTOCK_SANDBOX_DISK_MB`.",
    )
    session_most: int = Field(
        1024, ge=1, description="Session sandboxes that one machine keeps at once."
    )
    session_hub_idle: float = Field(
        60.0,
        gt=0,
        description="Seconds without a session and a program after which the process that keeps"
        " them ends.",
    )

    session_network: str = Field(
        "public",
        description="The most that session sandboxes may reach, of what their requests name:"
        " `public,10.0.0.7:8000`, or `none`.",
    )

    @field_validator("session_network")
    @classmethod
    def _rules_can_be_read(cls, text: str) -> str:
        text = "" if text.strip() == "none" else text
        ceiling(text)
        return text

    def most(self) -> int:
        """The most sessions that one machine keeps at once, by the limit of open files too."""
        return min(self.session_most, room_for_descriptors() // _DESCRIPTORS)

    def folder(self) -> Path:
        default = Path(tempfile.gettempdir()) / f"penstock-sandboxes-{os.getuid()}"
        return Path(self.local_sandboxes or default).absolute()

    def limits(self, sandbox: SandboxSettings) -> Limits:
        """The limits of a session whose request says nothing."""
        disk = (self.session_disk_mb or sandbox.sandbox_disk_mb) * MB
        return replace(with_disk(sandbox.limits(), disk), open_files=_OPEN_FILES)


def with_disk(limits: Limits, disk: int) -> Limits:
    """Limits with as many files as that disk may want. Each may be larger than it: a full disk says
    so."""
    return Limits(
        **{
            **vars(limits),
            "disk": disk,
            "file_size": min(disk + MB, max(disk, CAPS.file_size)),
            "inodes": max(limits.inodes, disk // _A_FILE_PER),
        }
    )
