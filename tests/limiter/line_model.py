"""A gate whose waiters have costs, shares, or both, said a second time: exact, and slow."""

from dataclasses import dataclass, field
from fractions import Fraction

from tests.limiter.model import Model, Wish

PASSING, LOOKED = 4, 100
LEAST = -(2**46)  # places of turns do not come below it
Cost = tuple[int, int]  # units, tokens
Entry = tuple[int, str, Wish]
COSTS: list[Cost] = [(1, 1), (3, 1), (1, 5), (2, 2), (9, 1), (1, 1), (1, 40)]
SHARES = ("", "a", "b", "", "c", "a", "b", "a")


@dataclass
class Turns:
    """One lane's shares: when the next of each is due, and how far it has come."""

    due: dict[str, Fraction] = field(default_factory=dict)
    ahead: dict[str, Fraction] = field(default_factory=dict)
    clock: Fraction = Fraction(0)


@dataclass(frozen=True)
class Settlement:
    """What a permit has cost in the end, and the lane in which it waited, if it did."""

    cost: Cost
    lane: int | None


@dataclass
class LineModel(Model):
    """What the line of a gate with costs and shares means. Each wish has a cost and a share."""

    costs: bool = False
    shares: bool = False
    token_rate: int = 0
    token_burst: int = 0
    earned: Fraction = Fraction(0)
    units: dict[str, int] = field(default_factory=dict)  # of the permits
    settled: dict[str, Settlement] = field(default_factory=dict)
    passed: int = 0
    passed_by: str = ""
    sharing: bool = False  # somebody has had a share
    weights: dict[str, Fraction] = field(default_factory=dict)
    turns: dict[int, Turns] = field(default_factory=dict)

    def cost_of(self, id: str) -> Cost:
        return COSTS[int(id[1:]) * 3 % len(COSTS)] if self.costs else (1, 1)

    def share_of(self, id: str) -> str:
        return SHARES[int(id[1:]) * 3 % len(SHARES)] if self.shares else ""

    def lane_of(self, entry: Entry) -> int:
        return entry[0] // self.LANE

    def begin(self, caller: str, now: int) -> None:
        if self.token_rate:
            grown = self.earned + Fraction(now - self.filled, 1_000_000) * self.token_rate
            self.earned = min(Fraction(self.token_burst), grown)
        super().begin(caller, now)

    # Costs

    @property
    def used(self) -> int:
        return sum(self.units[id] for id in self.leases)

    def counted_units(self, cost: Cost) -> int:
        """What it takes of the limit: no more than all of it."""
        return cost[0] if self.limit is None else min(cost[0], self.limit)

    def wanted(self, id: str) -> int:
        return self.counted_units(self.cost_of(id))

    def price(self, cost: Cost) -> Fraction:
        """What a share is charged; with several amounts, by how much slower than a cost of 1."""
        if not self.token_rate:
            return Fraction(self.counted_units(cost))
        return self.seconds(cost) / self.seconds((1, 1))

    def seconds(self, cost: Cost) -> Fraction:
        units, tokens = cost
        in_requests = Fraction(units, self.rate) if self.rate else Fraction(0)
        return max(in_requests, Fraction(tokens, self.token_rate))

    def obstacle(self, id: str) -> str:
        units, tokens = self.cost_of(id)
        if self.limit is not None and self.used + self.wanted(id) > self.limit:
            return "limit"
        if self.rate and self.tokens < min(units, self.burst or 0):
            return "time"
        if self.token_rate and self.earned < min(tokens, self.token_burst):
            return "time"
        return ""

    # Shares

    def weight_of(self, share: str) -> Fraction:
        return self.weights.get(share, self.weights.get("*", Fraction(1)))

    def step_of(self, share: str) -> Fraction:
        return 1 / (self.weight_of(share) or Fraction(1))

    def waiting(self, lane: int, share: str) -> list[Entry]:
        return [
            entry
            for entry in self.line
            if self.lane_of(entry) == lane and self.share_of(entry[1]) == share
        ]

    def enter(self, lane: int, share: str) -> None:
        turns = self.turns.setdefault(lane, Turns())
        if share not in turns.due:
            begins = max(turns.clock, turns.ahead.pop(share, Fraction(0)))
            turns.due[share] = begins + self.step_of(share)

    def leave(self, lane: int, share: str) -> None:
        turns = self.turns[lane]
        came_to = turns.due.pop(share) - self.step_of(share)
        turns.ahead = {one: place for one, place in turns.ahead.items() if place > turns.clock}
        if came_to > turns.clock:
            turns.ahead[share] = came_to
        if not turns.due:
            del self.turns[lane]

    def in_turn(self, lane: int) -> list[str]:
        """Weight 0 is behind all others."""
        due = self.turns[lane].due
        return sorted(due, key=lambda share: (not self.weight_of(share), due[share], share))

    def whose_turn(self) -> Entry | None:
        """The one who is next, whether it fits or not. Shares leave that nobody waits in."""
        for lane in [*self.turns]:
            for share in [share for share in self.turns[lane].due if share]:
                if not self.waiting(lane, share):
                    self.leave(lane, share)
        if not self.line:
            self.turns.clear()
            return None
        plain = [self.lane_of(entry) for entry in self.line if not self.share_of(entry[1])][:1]
        for lane in sorted(lane for lane in self.turns if not plain or lane <= plain[0]):
            if lane in plain:
                self.enter(lane, "")
            # The share '' leaves only when its turn comes: it may wait without a word to others.
            for share in self.in_turn(lane):
                if waiters := self.waiting(lane, share):
                    return waiters[0]
                self.leave(lane, share)
        return self.line[0]

    def pay(self, lane: int, share: str, price: Fraction) -> None:
        if (turns := self.turns.get(lane)) is not None:
            turns.clock = max(turns.clock, turns.due[share])
            turns.due[share] += price * self.step_of(share)

    def weigh(self, weights: dict[str, float | None]) -> None:
        self.sharing = True
        before = {
            (lane, share): (self.weight_of(share), self.step_of(share))
            for lane, turns in self.turns.items()
            for share in turns.due
        }
        for share, weight in weights.items():
            if weight is None:
                self.weights.pop(share, None)
            else:
                self.weights[share] = Fraction(weight)
        for (lane, share), (weight, step) in before.items():
            if weight != self.weight_of(share):
                turns = self.turns[lane]
                came_to = max(turns.due[share] - step, turns.clock)
                turns.due[share] = came_to + self.step_of(share)

    # How the line moves

    def hand_over(self, now: int) -> None:
        self.step(now)
        self.expire(now)
        self.advance(now)
        self.whose_turn()

    def advance(self, now: int) -> None:
        """The first in line go in; small ones pass a big first one for a while."""
        while entry := self.goes_next():
            self.line.remove(entry)
            _, id, wish = entry
            if not self.alive(wish.process):
                self.counted["dropped"] += 1
                continue
            self.pay(self.lane_of(entry), self.share_of(id), self.price(self.cost_of(id)))
            fence = self.let_in(id, wish.process, wish.term, now)
            self.mailed.setdefault(wish.process, []).append((id, fence))

    def goes_next(self) -> Entry | None:
        """Who is let in, or is dead."""
        full = self.paused or (self.limit is not None and self.used >= self.limit)
        if full or (not self.costs and self.rate and self.tokens < 1):
            return None
        first, budget = "", 0
        for entry in self.candidates():
            _, id, wish = entry
            if first and budget <= 0:
                break
            if not self.alive(wish.process):
                return entry
            why = self.obstacle(id)
            if why == "time":
                break
            if not why and (not first or self.wanted(id) <= budget):
                self.passed += self.wanted(id) if first else 0
                return entry
            if not first:
                first = id
                if self.passed_by != id:
                    self.passed, self.passed_by = 0, id
                budget = PASSING * self.wanted(id) - self.passed
        return None

    def candidates(self) -> list[Entry]:
        """Of a gate with shares, those of one lane: who was passed first, then by turns."""
        head = self.whose_turn()
        if head is None or not self.sharing:
            return self.line[:LOOKED]
        lane = self.lane_of(head)
        shares = self.in_turn(lane)[:LOOKED] if lane in self.turns else [""]
        passed = [e for e in self.line if e[1] == self.passed_by and self.lane_of(e) == lane]
        others = [e for share in shares for e in self.waiting(lane, share)[: LOOKED // len(shares)]]
        return passed + [entry for entry in others if entry not in passed]

    def clear_the_head(self) -> None:
        while (head := self.whose_turn()) and not self.alive(head[2].process):
            self.line.remove(head)
            self.counted["dropped"] += 1

    def let_in(self, id: str, process: str, term: int, now: int) -> int:
        fence = super().let_in(id, process, term, now)
        units, tokens = self.cost_of(id)
        self.units[id] = units
        if self.rate:
            self.tokens -= units - 1
        if self.token_rate:
            self.earned -= tokens
        return fence

    def place(self, id: str) -> int:
        """In the line of its share; that of those without one goes through all lanes."""
        mine = next((entry for entry in self.line if entry[1] == id), None)
        if mine is None:
            return 0
        share = self.share_of(id)
        plain = [entry for entry in self.line if not self.share_of(entry[1])]
        line = self.waiting(self.lane_of(mine), share) if share else plain
        return line.index(mine) + 1

    # The commands

    def acquire(
        self,
        process: str,
        wishes: list[Wish],
        given_back: list[tuple[str, int]],
        life: int,
        join: bool,
        now: int,
    ) -> list[int]:
        self.sharing = self.sharing or any(self.share_of(wish.id) for wish in wishes)
        self.begin(process, now)
        self.let_go(given_back)
        self.hand_over(now)
        verdicts = [self.ask(wish, process, join, now) for wish in wishes]
        if min(verdicts) < 0:
            if self.costs:
                self.advance(now)
            self.lives[process] = now + life
        self.clear_the_head()
        return verdicts

    def ask(self, wish: Wish, process: str, join: bool, now: int) -> int:
        new = wish.id not in self.leases and not self.line
        if new and not self.paused and not self.obstacle(wish.id):
            return self.let_in(wish.id, process, wish.term, now)
        return super().ask(wish, process, join, now)

    def open(self) -> bool:
        return False  # `ask` has looked

    def stand_in_line(self, wish: Wish) -> None:
        super().stand_in_line(wish)
        if share := self.share_of(wish.id):
            self.enter(next(self.lane_of(e) for e in self.line if e[1] == wish.id), share)

    def let_go(self, permits: list[tuple[str, int]], word: str = "") -> int:
        for id, fence in permits:
            if self.holds(id, fence) and id in self.settled:
                self.settle(id, self.settled[id])
        return super().let_go(permits, word)

    def settle(self, id: str, settlement: Settlement) -> None:
        """What was charged too much comes back; what was missing is charged."""
        said, was = self.cost_of(id), settlement.cost
        if self.rate:
            self.tokens = min(Fraction(self.burst or 0), self.tokens + said[0] - was[0])
        if self.token_rate:
            self.earned = min(Fraction(self.token_burst), self.earned + said[1] - was[1])
        turns = self.turns.get(settlement.lane) if settlement.lane is not None else None
        if turns is None:  # nobody waits there, and nothing is owed
            return
        share = self.share_of(id)
        more = (self.price(was) - self.price(said)) * self.step_of(share)
        if share in turns.due:
            least = LEAST if self.weight_of(share) else 0
            turns.due[share] = max(turns.due[share] + more, Fraction(least))
        elif share in turns.ahead or more > 0:
            turns.ahead[share] = max(turns.ahead.get(share, Fraction(0)), turns.clock) + more

    def keep(self, wish: Wish, process: str, now: int) -> bool:
        lost = wish.id not in self.leases
        if lost and self.limit is not None and self.used + self.wanted(wish.id) > self.limit:
            self.counted["lost"] += 1
            return False
        limit, self.limit = self.limit, None
        kept = super().keep(wish, process, now)
        self.limit = limit
        if kept:
            self.units[wish.id] = self.cost_of(wish.id)[0]
        return kept
