"""What a gate means, said a second time: slowly, in plain Python, with exact numbers."""

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

from tests.limiter.stepping import Stepping


@dataclass
class Wish:
    """What a caller asks for, and all it knows of it."""

    id: str
    process: str
    lane: int
    term: int
    score: str = ""
    fence: int = 0


@dataclass
class Lease:
    process: str
    fence: int
    ends: int


@dataclass
class Model:
    """All of a gate's state; times are microseconds of one clock."""

    limit: int | None
    rate: int | None
    burst: int | None
    paused: bool = False
    caller: str = ""
    tokens: Fraction = Fraction(0)
    filled: int = 0
    now: int = 0
    fence: int = 0
    ticket: int = 0
    leases: dict[str, Lease] = field(default_factory=dict)
    line: list[tuple[int, str, Wish]] = field(default_factory=list)
    lives: dict[str, int] = field(default_factory=dict)
    counted: Counter[str] = field(default_factory=Counter)
    mailed: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    stepping: Stepping | None = None
    heard: list[tuple[int, str]] = field(default_factory=list)
    revoked: dict[int, int] = field(default_factory=dict)  # fences, and when their leases end

    LANE = 2**43

    def begin(self, caller: str, now: int) -> None:
        """What is true before anybody acts at this moment."""
        self.caller, self.now = caller, now
        if self.rate:
            grown = self.tokens + Fraction(now - self.filled, 1_000_000) * self.rate
            self.tokens = min(Fraction(self.burst or 0), grown)
        self.filled = now
        for process in [p for p, ends in self.lives.items() if ends <= now]:
            del self.lives[process]

    def expire(self, now: int) -> None:
        over = [id for id, lease in self.leases.items() if lease.ends <= now]
        for id in over:
            del self.leases[id]
        self.counted["expired"] += len(over)

    def open(self) -> bool:
        """Whether one more may be let in."""
        if self.paused or (self.stepping and self.stepping.hold_until > self.now):
            return False
        if self.limit is not None and len(self.leases) >= self.limit:
            return False
        return not self.rate or self.tokens >= 1

    def serve(self, now: int) -> None:
        """The line moves: the living get what is free, the dead leave its head."""
        self.hand_over(now)
        self.clear_the_head()

    def step(self, now: int) -> None:
        """What the releases have reported changes the limit before anybody is let in."""
        heard, self.heard = self.heard, []
        if self.stepping is None:
            return
        for n, (fence, word) in enumerate(heard, 1):
            left = len(self.leases) + len(heard) - n
            self.stepping.report(word, fence, left, self.fence, now)
        self.limit = self.stepping.limit

    def hand_over(self, now: int) -> None:
        self.step(now)
        self.expire(now)
        while self.line and self.open():
            self.clear_the_head()
            if self.line:
                _, id, wish = self.line.pop(0)
                fence = self.let_in(id, wish.process, wish.term, now)
                self.mailed.setdefault(wish.process, []).append((id, fence))

    def clear_the_head(self) -> None:
        while self.line and not self.alive(self.line[0][2].process):
            self.line.pop(0)
            self.counted["dropped"] += 1

    def alive(self, process: str) -> bool:
        return process == self.caller or process in self.lives

    def let_in(self, id: str, process: str, term: int, now: int) -> int:
        self.fence = max(self.fence + 1, now)
        self.leases[id] = Lease(process, self.fence, now + term)
        if self.rate:
            self.tokens -= 1
        self.counted["granted"] += 1
        return self.fence

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
        self.begin(process, now)
        self.let_go(given_back)
        self.hand_over(now)
        verdicts = [self.ask(wish, process, join, now) for wish in wishes]
        if min(verdicts) < 0:
            self.lives[process] = now + life
        self.clear_the_head()
        return verdicts

    def ask(self, wish: Wish, process: str, join: bool, now: int) -> int:
        if held := self.leases.get(wish.id):
            held.ends = now + wish.term
            return held.fence
        if self.place(wish.id):
            return -self.place(wish.id)
        if not self.line and self.open():
            return self.let_in(wish.id, process, wish.term, now)
        if not join:
            return 0
        self.stand_in_line(wish)
        return -self.place(wish.id)

    def stand_in_line(self, wish: Wish) -> None:
        if wish.score:
            score = int(wish.score)
            self.ticket = max(self.ticket, score % self.LANE)
        else:
            self.ticket += 1
            score = wish.lane * self.LANE + self.ticket
        self.line.append((score, wish.id, wish))
        self.line.sort(key=lambda entry: entry[:2])

    def release(
        self, process: str, permits: list[tuple[str, int]], now: int, word: str = ""
    ) -> int:
        self.begin(process, now)
        released = self.let_go(permits, word)
        self.serve(now)
        return released

    def let_go(self, permits: list[tuple[str, int]], word: str = "") -> int:
        ours = [id for id, fence in permits if self.holds(id, fence)]
        for id in ours:
            self.heard.append((self.leases.pop(id).fence, word))
        self.counted["released"] += len(ours)
        return len(ours)

    def renew(self, process: str, wishes: list[Wish], life: int, now: int) -> list[bool]:
        self.begin(process, now)
        self.lives[process] = now + life
        self.expire(now)
        kept = [self.keep(wish, process, now) for wish in wishes]
        self.serve(now)
        return kept

    def keep(self, wish: Wish, process: str, now: int) -> bool:
        if self.holds(wish.id, wish.fence):
            self.leases[wish.id].ends = now + wish.term
            return True
        full = self.limit is not None and len(self.leases) >= self.limit
        if wish.id in self.leases or full or wish.fence in self.revoked:
            self.counted["lost"] += 1
            return False
        self.line = [entry for entry in self.line if entry[1] != wish.id]
        self.leases[wish.id] = Lease(process, wish.fence, now + wish.term)
        self.fence = max(self.fence, wish.fence)
        self.counted["readmitted"] += 1
        return True

    def revoke(self, process: str, id: str, now: int) -> bool:
        self.begin(process, now)
        lease = self.leases.get(id)
        held = lease is not None and lease.ends > now
        if lease is not None and held:
            del self.leases[id]
            self.revoked = {f: ends for f, ends in self.revoked.items() if ends > now}
            self.revoked[lease.fence] = lease.ends
            self.counted["expired"] += 1
        self.serve(now)
        return held

    def cancel(self, process: str, ids: list[str], counter: str, now: int) -> list[int]:
        self.begin(process, now)
        places = [self.place(id) for id in ids]
        for id, place in zip(ids, places, strict=True):
            held = self.leases.pop(id, None)
            self.line = [entry for entry in self.line if entry[1] != id]
            self.counted["released"] += held is not None
            self.counted[counter] += held is not None or place > 0
        self.serve(now)
        return places

    def configure(self, process: str, changes: dict[str, str], now: int) -> None:
        self.begin(process, now)
        before = self.rate
        if "limit" in changes:
            self.limit, self.stepping = int(changes["limit"]), None
        if self.stepping:
            self.stepping.min = float(changes.get("min", self.stepping.min))
            self.stepping.max = float(changes.get("max", self.stepping.max))
            self.stepping.set(self.stepping.exact)
            self.limit = self.stepping.limit
        if "paused" in changes:
            self.paused = changes["paused"] == "1"
        if "rate" in changes:
            self.rate = int(float(changes["rate"]))
        if "burst" in changes:
            self.burst = int(changes["burst"])
        if self.rate and not self.burst:
            self.burst = 1
        self.tokens = min(self.tokens, Fraction(self.burst or 0)) if before else Fraction(0)
        self.serve(now)

    def sweep(self, process: str, now: int) -> None:
        self.begin(process, now)
        self.serve(now)

    # What anybody sees

    def place(self, id: str) -> int:
        """From 1; 0 for who is not in the line."""
        return next((n for n, entry in enumerate(self.line, 1) if entry[1] == id), 0)

    def holds(self, id: str, fence: int) -> bool:
        return id in self.leases and self.leases[id].fence == fence
