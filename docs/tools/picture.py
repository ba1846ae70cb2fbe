"""Draw the pictures of the demo: as it ran just now in a terminal, and its charts."""

import io
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from ground.settings import GroundSettings
from penstock.demo.command import summary
from penstock.demo.drawing import drawn as charts
from penstock.demo.screen import Screen
from penstock.demo.story import jobs_of, play
from penstock.named_or_own_redis import running_redis

PICTURES = Path(__file__).parents[1] / "pictures"
CHARTS, PICTURE = PICTURES / "demo-charts.svg", PICTURES / "demo.svg"
JOBS = 40


def main() -> None:
    console = Console(
        record=True, width=80, force_terminal=True, color_system="truecolor", file=io.StringIO()
    )
    console.print(Text("$ penstock demo", style="bold"))
    with (
        tempfile.TemporaryDirectory() as folder,
        running_redis(GroundSettings.load(), folder=Path(folder) / "redis") as url,
        Screen(console, jobs_of(JOBS), moving=False).shown() as screen,
    ):
        outcome, record = play(url, JOBS, Path(folder), screen)
    console.print(summary(outcome))
    drawn = console.export_svg(title="penstock demo")
    # Fonts from the network are neither allowed here nor needed.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    CHARTS.write_text(charts(record))
    PICTURE.write_text("\n".join(line.rstrip() for line in drawn.splitlines()) + "\n")


if __name__ == "__main__":
    main()
