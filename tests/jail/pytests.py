"""The ways in which a program begins pytest, as programs, graders and sessions do."""

import re

PYTESTS = {
    "a shell": ("bash", "python3 -m pytest test_x.py"),
    "a shell, by its name": ("bash", "pytest test_x.py"),
    "a child": (
        "python",
        "import subprocess, sys;"
        "sys.exit(subprocess.call([sys.executable, '-m', 'pytest', 'test_x.py']))",
    ),
    "a call": ("python", "import pytest, sys; sys.exit(pytest.main(['test_x.py']))"),
}
NO_PYTEST = re.compile(rb"No module named '?pytest|pytest: command not found")
