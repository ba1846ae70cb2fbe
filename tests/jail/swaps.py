"""Programs that leave a child behind, which swaps what is asked back for links to other files."""

from jail import Outcome

_SWAPPING = """
import os
{start}
if os.fork() == 0:
    while True:
        {swap}
while not os.path.lexists({name!r}): pass
"""

SWAPS = {
    "a file for a link": _SWAPPING.format(
        start="",
        swap="""open("own", "w").write("mine"); os.replace("own", "x")
        os.symlink("/etc/passwd", "link"); os.replace("link", "x")""",
        name="x",
    ),
    "a folder for a link": _SWAPPING.format(
        start="os.mkdir('own'); open('own/passwd', 'w').write('mine'); os.symlink('/etc', 'link')",
        swap="""os.rename("own", "d"); os.rename("d", "own")
        os.rename("link", "d"); os.rename("d", "link")""",
        name="d",
    ),
}


def never_another(outcome: Outcome) -> None:
    assert outcome.status == "finished", outcome
    assert set(outcome.files.values()) <= {b"mine", b""}, outcome
