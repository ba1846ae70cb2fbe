"""The plug-in brings back `verl.tools.sandbox_fusion_tools` as another name of `worker.tool`, if
asked to.

verl removed that module in 0.8; old YAML files and recipes name it still. As the name
is another project's, PENSTOCK_VERL_TOOL_PATH=1 has to ask for it. verl 0.9 finds this
plug-in by itself; 0.8 with VERL_USE_EXTERNAL_MODULES=worker.tool.verl_plugin.
"""

import logging
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from ground import SettingError
from worker.settings import ToolSettings

log = logging.getLogger("penstock.tool")

OLD_PATH = "verl.tools.sandbox_fusion_tools"


class _Alias(ModuleType):
    """The alias looks at `worker.tool` only when it is used: verl loads plug-ins before it is
    whole."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(import_module("worker.tool"), name)


def restore() -> bool:
    """Whether the old path leads to our tool now. A verl that has its own keeps it."""
    try:
        if not ToolSettings.load().verl_tool_path:
            return False
    except SettingError as refusal:  # verl keeps what a plug-in raises to itself
        log.warning("%s stays as it is: %s", OLD_PATH, refusal)
        return False
    if OLD_PATH in sys.modules:
        return isinstance(sys.modules[OLD_PATH], _Alias)
    if "verl" not in sys.modules or find_spec(OLD_PATH) is not None:
        return False
    sys.modules[OLD_PATH] = _Alias(OLD_PATH, "worker.tool, by its old name in verl.")
    return True


restore()
