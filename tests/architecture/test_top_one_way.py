"""`penstock top` has no toolkit of its own: Textual has the terminal. One look needs neither."""

import re

from tests.architecture.source import imported, modules, name_of

# To switch the terminal's mode or screen, to move its cursor, or to know its keys.
OF_A_TOOLKIT = re.compile(r"\btermios\b|\btty\.set|\\x1b\[|SIGWINCH")


def test_nothing_of_top_speaks_to_the_terminal_itself() -> None:
    ours = [file for file in modules("penstock") if "top" in file.parts]
    assert [name_of(file) for file in ours if OF_A_TOOLKIT.search(file.read_text())] == []


def test_only_the_live_program_needs_textual() -> None:
    asking = {
        name_of(file)
        for file in modules()
        for module, _ in imported(file)
        if module.partition(".")[0] == "textual"
    }
    assert asking == {"penstock/top/cells.py", "penstock/top/program.py"}
