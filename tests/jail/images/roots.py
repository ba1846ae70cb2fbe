"""A small image that can run commands: the machine's own shell and tools, with their libraries."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from tests.jail.images.archives import Layer

TOOLS = (
    "sh", "bash", "cat", "chmod", "chown", "cp", "id", "install", "kill", "ln", "ls", "mkdir",
    "mknod", "mv", "python3", "rm", "setpriv", "sleep", "stat", "tar", "touch", "true", "truncate",
    "useradd",
)  # fmt: skip
ACCOUNTS = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/home/agent:/bin/sh\n",
    "etc/group": "root:x:0:\nagent:x:1000:\nmakers:x:2000:agent\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\n",
}


@cache
def base(tools: tuple[str, ...] = TOOLS) -> bytes:
    """A layer with these tools, for root and one user more."""
    made = Layer()
    for folder in ("etc", "usr", "usr/bin", "usr/lib", "var", "root"):
        made.folder(folder)
    made.folder("tmp", mode=0o1777).folder("var/tmp", mode=0o1777)
    made.folder("home").folder("home/agent", uid=1000, gid=1000)
    for name in ("bin", "sbin", "lib"):
        made.link(name, "usr/bin" if name == "sbin" else f"usr/{name}")
    made.link("usr/sbin", "bin").link("lib64", "usr/lib").link("usr/lib64", "lib")
    libraries: set[str] = set()
    for tool in tools:
        path = os.path.realpath(_of_the_system(tool))
        made.file(f"usr/bin/{tool}", Path(path).read_bytes(), mode=0o755)
        libraries |= _libraries_of(path)
    _add_libraries(made, libraries)
    for path, text in ACCOUNTS.items():
        made.file(path, text.encode())
    return made.bytes()


def _libraries_of(path: str) -> set[str]:
    said = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return set(re.findall(r"(/\S+) \(", said))


def _add_libraries(made: Layer, libraries: set[str]) -> None:
    """Into the one folder that every loader looks in."""
    for path in sorted(libraries):
        name = path.rpartition("/")[2]
        made.file(f"usr/lib/{name}", Path(os.path.realpath(path)).read_bytes(), mode=0o755)


def _of_the_system(tool: str) -> str:
    found = shutil.which(tool, path="/usr/sbin:/usr/bin:/sbin:/bin")
    assert found, f"this machine has no {tool}"
    return found


def python() -> bytes:
    """A layer with the machine's own Python, for what is attacked by system calls."""
    asked = "import os, sysconfig; print(os.path.dirname(os.__file__))"
    said = subprocess.run(["/usr/bin/python3", "-I", "-c", asked], capture_output=True, text=True)
    library = Path(said.stdout.strip())
    made = Layer()
    inside = str(library).removeprefix("/")
    packages = ("collections", "ctypes", "encodings", "importlib", "json", "re")
    found = [*library.glob("*.py"), *library.glob("lib-dynload/resource.*")]
    found += library.glob("lib-dynload/_ctypes.*")
    found += [path for name in packages for path in library.glob(f"{name}/*.py")]
    for path in found:
        if path.suffix == ".so":
            _add_libraries(made, _libraries_of(str(path)))
        made.file(f"{inside}/{path.relative_to(library)}", path.read_bytes())
    return made.bytes()
