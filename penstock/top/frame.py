"""What stands around the lines of a screen: the title, the line at the bottom, and the help."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.fleet import Fleet
from penstock.top.offers import Offer
from penstock.top.paper import Paper
from penstock.top.screen import Line, Look, Screen

HELP = """\
1 overview 2 queues 3 jobs 4 workers 5 gates 6 groups 7 sandboxes 8 changes
f            the latest failed job, with its traceback
up down j k  move; PgUp PgDn Home End too. Tab goes to the next table
Enter        open: why a queue does not move, where a job's time went
Esc          back; so does Backspace
left right   jobs, groups: those in another state
t            jobs: those whose program ended as …; groups: those that timed out
/            show only rows with these words; Esc ends it
< > s        sort by another column; s turns the order round
[ ]          the page before, the next page
g            go to the id or the name of anything
space, a     mark a job, or all of this page; r x D then change them
r x D        jobs: retry, cancel, delete. Groups: r requeues
x            sandboxes: end one; on a run, end those whose owners are dead
p            pause or resume a queue or a gate
+ -          raise or lower a gate's limit: edit the number, then Enter
? h          this help
q            quit; so does Ctrl-C

Each change is asked about, and noted with your name: 8 lists them.
"""


@dataclass
class Prompt:
    """A line at the bottom that keys go into. `then` is called with what was typed."""

    question: str
    typed: str
    then: Callable[[str], object]
    by_y: bool = False
    """Whether one key answers it."""


def title(paper: Paper, screen: Screen | None, fleet: Fleet | None) -> Line:
    """What is shown, how many alarms there are, of which Redis and run, and when."""
    clock = time.strftime("%H:%M:%S", time.localtime(fleet.at)) if fleet else ""
    where = f"{fleet.server.where}, run {fleet.run}" if fleet else ""
    alarms = f" [alarms: {len(fleet.alarms)}]" if fleet and fleet.alarms else ""
    said = f"{screen.title if screen else 'penstock top'}{alarms} - {where}"
    return Line(paper.padded(said, paper.width - len(clock) - 1, "text") + " " + clock, "title")


def footer(
    paper: Paper, prompt: Prompt | None, trouble: str, said: str, keys: Sequence[str]
) -> Line:
    """A question, else what is wrong, else what came of the last key, else the keys."""
    if prompt is not None:
        asked = f"{prompt.question} {prompt.typed}_"
        return Line(paper.cut(asked, paper.width, middle=True), "warn")
    if trouble:
        return Line(paper.cut(f"! {trouble}", paper.width), "bad")
    if said:
        return Line(paper.cut(said, paper.width), "warn")
    return Line(paper.cut("  ".join(keys), paper.width), "dim")


def keys(
    screen: Screen | None, look: Look, offers: Sequence[Offer], lines: int, room: int
) -> list[str]:
    """What keys do here, the most special first."""
    found = ["? help", *(f"{one.key} {one.label}" for one in offers)]
    if screen and screen.states:
        found.append("left/right state")
    if screen and screen.lists:
        found.append(f"/ {look.order.find or 'filter'}")
    if screen and screen.next is not None:
        found.append("] next page")
    if lines > room:
        found.append(f"lines {look.top + 1}-{min(lines, look.top + room)} of {lines}")
    return [*found, "f latest failure", "1-8 places", "q quit"]
