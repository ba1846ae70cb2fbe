"""The accounts of a run: from the journals, every thing that was held, made or handed on, and what
is wrong with it.

A thing is in danger of a disturbance that falls into its time and hits who had to do with it. That
is a chance for a promise to be broken.
"""

import bisect
import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.proof import journal, setting
from tests.proof.journal import Line
from tests.proof.schedule import COLUMN

Lines = list[tuple[str, Line]]  # by time, each with its process


@dataclass
class Thing:
    """A permit, a job, a turn: when it was there, whose it was, and what is wrong with it."""

    kind: str
    name: str
    began: float
    ended: float = math.inf
    who: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Hit:
    """A disturbance as it was done."""

    kind: str
    target: str
    began: float
    ended: float


# Whose death or standstill a thing is exposed to, beside its own process.
EXPOSED = {
    "Permit": (), "Job": ("worker",), "Result": ("worker",), "Turn": ("gateway",),
    "Group": ("generator", "gateway", "buffer", "trainer"), "Slot": (), "Batch": ("buffer",),
    "Session sandbox": ("worker", "hub"), "Version": (),
}  # fmt: skip


STARTING = 100.0  # seconds in which a process may not be up, on a machine with much to do
AWAY = ("Redis restarted", "Failover", "Network cut", "Disk full")


@dataclass
class Accounts:
    """What a run came to."""

    folder: Path
    things: list[Thing] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        names = [file.stem for file in self.folder.glob("*-*.jsonl")]
        of_all = [(name, line) for name in names for line in journal.read(self.folder, name)]
        self.lines: Lines = sorted(of_all, key=lambda pair: pair[1]["at"])
        hits = _hits(journal.read(self.folder, "fleet"))
        self.hits = sorted(hits, key=lambda hit: hit.began)
        self._begins = [hit.began for hit in self.hits]
        self._longest = max((hit.ended - hit.began for hit in self.hits), default=0.0)
        self.began, self.ended = self.lines[0][1]["at"], self.lines[-1][1]["at"]
        deaths = [(hit.target, hit.began) for hit in self.hits if hit.kind == "kill"]
        deaths += [(line["name"], line["at"]) for _, line in self.of("failed by itself")]
        self._deaths = defaultdict[str, list[float]](list)
        for name, at in sorted(deaths, key=lambda death: death[1]):
            self._deaths[name].append(at)
        self._births = defaultdict[str, list[float]](list)
        for name, line in self.of("began"):
            self._births[name].append(line["at"])
        for found in (
            self._permits, self._jobs, self._results, self._slots, self._batches, self._sandboxes,
            self._versions, self._groups, self._turns, self._left,
        ):  # fmt: skip
            self.things += found()

    @property
    def faults(self) -> list[Thing]:
        return [thing for thing in self.things if thing.fault]

    def kinds_of(self, thing: Thing) -> list[str]:
        """Of each disturbance that it was in danger of."""
        first = bisect.bisect_left(self._begins, thing.began - self._longest)
        last = bisect.bisect_right(self._begins, thing.ended)
        return [hit.kind for hit in self.hits[first:last] if _meets(hit, thing)]

    def columns_of(self, thing: Thing) -> list[str]:
        """The column of each of them."""
        return [COLUMN[kind] for kind in self.kinds_of(thing)]

    def of(self, *whats: str) -> Iterator[tuple[str, Line]]:
        return ((who, line) for who, line in self.lines if line["what"] in whats)

    def _pairs(
        self, kind: str, key: str, first: str, *last: str
    ) -> Iterator[tuple[Thing, Line, Line | None]]:
        """Each thing with the line that began it, and the one that ended it, if its process lived
        to write it."""
        open_ = dict[tuple[str, str], tuple[Thing, Line]]()
        for who, line in self.of(first, *last):
            name = (who, str(line[key]))
            if line["what"] == first:
                thing = Thing(kind, name[1], line["at"], self._death(who, line["at"]), who)
                open_[name] = thing, line
            elif name in open_:
                thing, begun = open_.pop(name)
                thing.ended = line["at"]
                yield thing, begun, line
        yield from ((thing, begun, None) for thing, begun in open_.values())

    def _death(self, who: str, when: float) -> float:
        """When the life that it had then was ended, or the end of the run. What it took between
        the blow and its end was gone at once."""
        births, deaths = self._births[who], self._deaths[who]
        place = bisect.bisect_right(births, when)
        began = births[place - 1] if place else -math.inf
        place = bisect.bisect_right(deaths, began)
        return max(when, deaths[place]) if place < len(deaths) else self.ended

    def _permits(self) -> Iterator[Thing]:
        """Never above the limit. A process that stands still does not know that it lost its permit,
        and none knows it at once when Redis' clock jumps over its lease. That is documented: until
        it learns it, its permit does not count."""
        fences, limits = [0], [float(setting.LIMIT.start)]  # each limit holds from that fence on
        for _, line in self.of("limit"):
            fences += [line["after"] + 1, line["by"] + 1]
            limits += [max(limits[-1], *line["to"]), line["to"][-1]]
        stops = [
            hit
            for hit in self.hits
            if hit.kind == "freeze" or (hit.kind, hit.target) == ("clock forward", "redis")
        ]
        stops += [Hit("", who, line["since"], line["at"]) for who, line in self.of("stood still")]
        events, things = list[tuple[float, int, int, int]](), dict[int, Thing]()
        for thing, begun, _ in self._pairs(
            "Permit", "fence", "has a permit", "returns a permit", "lost a permit"
        ):
            frozen = [hit.began for hit in stops if _meets(hit, thing)]
            fence = begun["fence"]
            things[fence] = thing
            over = min([thing.ended, *frozen])
            if over > thing.began:
                events.append((thing.began, 1, fence, begun["cost"]))
                events.append((over, 0, fence, begun["cost"]))
        present, most = dict[int, int](), 0
        for _, comes, fence, cost in sorted(events):
            if not comes:
                present.pop(fence, None)
                continue
            present[fence] = cost
            allowed = limits[bisect.bisect_right(fences, max(present)) - 1]
            most = max(most, sum(present.values()))
            if sum(present.values()) > allowed:
                things[fence].fault = f"{sum(present.values())} are held, of {allowed:g}"
        self.notes["most permits at once"] = most
        self.notes["changes of the limit"] = len(limits) // 2
        yield from things.values()

    def _jobs(self) -> Iterator[Thing]:
        for thing, _, end in self._pairs("Job", "job", "submits", "has a result", "has no result"):
            if end is None and thing.ended == self.ended:
                thing.fault = "it has neither a result nor an error"
            elif end and end["what"] == "has no result":
                self.notes[f"jobs that ended with {end['error']}"] += 1
            elif end and not end["ok"]:
                self.notes[f"jobs without an outcome: {end['kind']}"] += 1
                if end["kind"] != "infrastructure":
                    thing.fault = f"its program did not fail, and it is called {end['kind']}"
            elif end and end["value"] != str(sum(thing.name.encode())):
                thing.fault = f"its result is another's: {end['value']}"
            yield thing

    def _results(self) -> Iterator[Thing]:
        made = {line["job"]: line["at"] for _, line in self.of("has a result") if line["ok"]}
        for thing, _, end in self._pairs(
            "Result", "job", "asks again", "has it again", "has none again"
        ):
            thing.began = made.get(thing.name, thing.began)
            if end and end["what"] == "has none again":
                self.notes[f"results asked for again: {end['error']}"] += 1
                if end["error"] in ("ResultExpired", "JobFailed", "JobCancelled"):
                    thing.fault = f"it is gone: {end['error']}"
            elif end and not end["same"]:
                thing.fault = f"it is not the first one: {end['said']}"
            yield thing

    def _slots(self) -> Iterator[Thing]:
        for thing, _, end in self._pairs("Slot", "slot", "has a slot", "made", "gives back"):
            if end and end["what"] == "gives back":
                self.notes[f"groups given back for {end['error']}"] += 1
            yield thing
        for who, line in self.of("took"):
            for (group, _), age in zip(line["groups"], line["ages"], strict=True):
                if age > setting.POLICY.max_age:
                    said = f"its group is {age} versions old"
                    yield Thing("Slot", group, line["at"], line["at"], who, said)
        for who, line in self.of("too many under way"):
            said = f"{line['groups']} groups are under way"
            yield Thing("Slot", "all", line["at"], line["at"], who, said)

    def _batches(self) -> Iterator[Thing]:
        states = {line["receipt"]: line["state"] for _, line in self.of("batch")}
        for thing, _, end in self._pairs(
            "Batch", "receipt", "took", "acknowledged", "lost a batch"
        ):
            if end and end["what"] == "lost a batch":
                self.notes["batches whose lease ended"] += 1
            elif end and states[thing.name] != "consumed":
                thing.fault = f"it was acknowledged, and is {states[thing.name]}"
            yield thing

    def _sandboxes(self) -> Iterator[Thing]:
        wrong = {line["name"]: line for _, line in self.of("wrong sandbox")}
        for thing, _, _ in self._pairs(
            "Session sandbox", "name", "has a sandbox", "leaves a sandbox"
        ):
            if line := wrong.get(thing.name):
                thing.fault = f"it has {line['found']} in place of {line['lines']} lines"
            yield thing

    def _versions(self) -> Iterator[Thing]:
        for thing, _, _ in self._pairs("Version", "version", "publishes", "published"):
            yield thing
        last = -1
        for who, line in self.of("version"):
            if line["version"] < last:
                said = f"version {line['version']} came after {last}"
                yield Thing("Version", str(last), line["at"], line["at"], who, said)
            last = line["version"]

    def _survived(self) -> dict[str, list[tuple[float, str, list[Line]]]]:
        """By group: the takes that count. Those since a checkpoint that a trainer went back to do
        not: their groups came again."""
        states = {line["receipt"]: line for _, line in self.of("batch")}
        begins = [(line["at"], line["version"]) for _, line in self.of("publishes") if line["lead"]]
        begun = [line["at"] for _, line in self.of("published") if line["lead"]]
        found = defaultdict(list)
        for _, line in self.of("took"):
            state = states[line["receipt"]]
            if state["state"] != "consumed":
                continue
            for group, items in line["groups"]:
                undone = False
                for at, version in begins:
                    over = next((end for end in begun if end > at), math.inf)
                    if version <= line["version"] and line["at"] < over:
                        undone |= line["at"] < at or state["groups"][group] != line["receipt"]
                if not undone:
                    found[group].append((line["at"], line["receipt"], items))
        return found

    def _groups(self) -> Iterator[Thing]:
        """Each item that was stored is in one group that was trained on, once."""
        self.taken = self._survived()
        stored, began = defaultdict(set), dict[str, tuple[float, str]]()
        for who, line in self.of("has a slot", "finalized"):
            if line["what"] == "has a slot":
                began.setdefault(line["group"], (line["at"], who))
            elif line["outcome"] in ("stored", "repeated"):
                stored[line["uid"].rsplit("-", 2)[0]].add(line["uid"])
            else:
                self.notes[f"items that were {line['outcome']}"] += 1
        for group, (at, who) in began.items():
            takes = self.taken.get(group, [])
            thing = Thing("Group", group, at, takes[-1][0] if takes else self.ended, who)
            have = [item["uid"] for _, _, items in takes for item in items]
            if len(takes) > 1:
                thing.fault = f"it is trained on {len(takes)} times"
            elif lost := stored[group] - set(have):
                thing.fault = f"items are lost: {sorted(lost)}"
            elif len(set(have)) != len(have):
                thing.fault = f"an item is there twice: {have}"
            elif wrong := [item for _, _, items in takes for item in items if item["wrong"]]:
                thing.fault = f"rows that do not prove themselves: {wrong}"
            self.notes["items"] += len(have)
            yield thing

    def _turns(self) -> Iterator[Thing]:
        """Each answer that an agent had is trained on once, or in the log of a session that its
        agent did not finish."""
        items = {
            item["session"]: item
            for takes in self.taken.values() for _, _, found in takes for item in found
        }  # fmt: skip
        open_ = {line["session"]: line["calls"] for _, line in self.of("session")}
        over = {line["session"] for _, line in self.of("finalizes")}
        heard = set[str]()
        asked = dict[tuple[str, int], float]()
        for who, line in self.of("asks", "has an answer"):
            turn = (line["session"], line["turn"])
            if line["what"] == "asks":
                asked[turn] = line["at"]
                continue
            thing = Thing("Turn", line["id"], asked[turn], line["at"], who)
            call, item = line["id"].rpartition("-")[2], items.get(turn[0])
            if line["id"] in heard:
                thing.fault = "two requests have one answer"
            elif item and item["cause"]:
                thing.fault = f"its session is masked: {item['cause']}"
            elif item and item["trained"].get(call, 0) != 1:
                thing.fault = f"it is trained on {item['trained'].get(call, 0)} times"
            elif not item and turn[0] in open_ and int(call) not in open_[turn[0]]:
                thing.fault = "it is not in the log"
            elif not item and turn[0] not in open_ and turn[0] not in over:
                thing.fault = "its session is unknown"
            heard.add(line["id"])
            yield thing

    def _left(self) -> Iterator[Thing]:
        """Adds up what nobody ended, and which processes failed by themselves. A server that
        starts while Redis is away says so and ends: to start it again is its supervisor's part."""
        for _, line in self.of("leaves out"):
            self.notes[f"left out: {line['kind']}, as {line['why']}"] += 1
        for who, line in self.of("left"):
            said = f"{line['thing']} is left"
            yield Thing(line["kind"], "the end", line["at"], line["at"], who, said)
        for who, line in self.of("never ended"):
            yield Thing("Process", str(line["names"]), line["at"], line["at"], who, line["what"])
        for who, line in self.of("failed by itself"):
            thing = Thing("Process", line["name"], line["at"] - line["age"], line["at"], who)
            if line["age"] < STARTING and any(COLUMN[hit] in AWAY for hit in self.kinds_of(thing)):
                self.notes["starts while Redis was away"] += 1
                continue
            thing.fault = line["what"]
            yield thing


def _hits(lines: list[Line]) -> Iterator[Hit]:
    open_ = dict[tuple[str, str], float]()
    for line in lines:
        if line["what"] == "strikes":
            open_[line["kind"], line["target"]] = line["at"]
        elif line["what"] == "struck":
            began = open_.pop((line["kind"], line["target"]))
            yield Hit(line["kind"], line["target"], began, line["at"])


def _meets(hit: Hit, thing: Thing) -> bool:
    """Whether it fell into the thing's time, and hit Redis or who had to do with the thing."""
    if hit.began > thing.ended or hit.ended < thing.began:
        return False
    role = hit.target.rpartition("-")[0]
    if hit.kind == "hub killed":
        return "hub" in EXPOSED.get(thing.kind, ())
    return hit.target in ("redis", thing.who) or role in EXPOSED.get(thing.kind, ())
