"""The one verdict about a fleet, shared by `status`, `top`, the page, `doctor` and `/metrics`. It
stands on a look at Redis alone: on what those who act have written there.

In one order: what is broken before what only looks wrong, and of each the failures of programs, of
us, and of capacity.
"""

import re
import shlex
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from ground import visible
from penstock.fleet.buffers import bias
from penstock.fleet.model import Alarm, Fleet, Level, Queue, Registry, Server, Task, Worker
from penstock.fleet.why_it_grows import holding

Family = Literal["programs", "us", "capacity"]
FAMILIES: tuple[Family, ...] = ("programs", "us", "capacity")
EXIT_CODES: dict[Level, int] = {"well": 0, "warn": 1, "bad": 1, "unused": 3}

LATELY = 900.0
"""Seconds for which a failed job is news."""
_SILENT_MONITOR = 10.0  # it looks every second
_SILENT_SERVER = 10.0  # a buffer server looks after its tasks every second
_SILENT_GATEWAY = 20.0  # it sweeps every 5 s
_NEWS_OF_SERVERS = 3600.0  # one that is away for longer was taken out of service
_WELL_AGAIN = 16  # programs in a row with an outcome: the sandbox is back
_QUIET = 60.0  # seconds without a masked program, and one with an outcome after it: the same
_OLD_MASKED = 86_400.0
_SKEW = 1.0
_SLOW, _ENOUGH = 3.0, 5  # times as long as the others' jobs, of at least so many
_NEARLY_ALL, _ENOUGH_PROGRAMS = 0.9, 20
_LATE, _AT_LEAST = 3.0, 10.0  # times the usual time between two takes or versions, and seconds
_STALE, _FEW = 0.5, 10  # share of the groups that got too old, of at least so many
_FILLING = 0.9
_SHOWN = 30


class Rule(NamedTuple):
    """The meaning of one verdict, for the operator's page."""

    family: Family
    means: str
    remedy: str


VERDICTS: dict[str, Rule] = {
    "jobs_failed": Rule("programs", "Jobs raised an error within 15 minutes.",
        "Open the latest for its traceback. Then retry or delete them."),
    "out_of_time": Rule("programs", "Nine of ten programs ran out of time in the last minute.",
        "Look at one. Raise its limit, or see whether the sandbox's host is too slow."),
    "job_kills_workers": Rule("programs", "A job was given up, since each worker that ran it died.",
        "Look at its program. Do not retry it."),
    "masked": Rule("us", "Programs have no outcome: the sandbox failed, not they.",
        "Do what the reason says. The next programs show whether it helped."),
    "redis_read_only": Rule("us", "This Redis is a replica, which takes no writes.",
        "Name the primary, or use redis+sentinel://."),
    "redis_full": Rule("us", "Redis uses all the memory it may, and refuses writes.",
        "Raise maxmemory, or make room."),
    "redis_not_saving": Rule("us", "Redis cannot save to its disk, and refuses writes.",
        "Make room on its disk, and read its log."),
    "data_lost": Rule("us", "Redis forgot a worker that lives, within an hour: it lost its data.",
        "Find out why, and send the jobs and rollouts again: docs/guide/back-up.md."),
    "redis_evicts": Rule("us", "This Redis deletes keys if memory is short.",
        "Set maxmemory-policy noeviction."),
    "no_worker": Rule("us", "Jobs wait in a queue, and no worker listens to it.",
        "Start one, or correct the name of the queue."),
    "workers_ending": Rule("us", "Jobs wait, and all workers of their queue are ending.",
        "Start one; those that end finish what they run."),
    "not_scheduled": Rule("us", "Scheduled jobs are due, and no scheduler enqueues them.",
        "Start a worker with --with-scheduler."),
    "worker_silent": Rule("us", "A worker has no heartbeat, and no successor.",
        "Start it again. Others have its jobs by now."),
    "worker_refused": Rule("us", "Redis refuses what a worker asks.",
        "Give its user the commands and keys that it lacks."),
    "sandbox_unreachable": Rule("us", "Workers cannot reach a sandbox, and try again.",
        "Start it, or correct PENSTOCK_SANDBOX_FUSION_URL."),
    "suspended": Rule("us", "`rq suspend` holds all workers.", "rq resume"),
    "breaker_open": Rule("us", "A breaker has paused a queue, or its gate.",
        "Repair the sandbox. It closes by itself."),
    "queue_paused": Rule("us", "A queue with jobs is paused.", "penstock queues resume NAME"),
    "gate_paused": Rule("us", "A gate is paused, and someone waits at it.",
        "penstock limits resume NAME"),
    "gate_held_by_the_dead": Rule("us", "Dead workers hold a gate's permits until the leases end.",
        "Wait, or penstock limits revoke NAME PERMIT."),
    "gate_spoiled": Rule("us", "A key of a gate holds what no gate writes, so it grants nothing.",
        "penstock limits rm NAME --force. Its processes make it again."),
    "gates_mixed": Rule("us", "Some workers of a queue take permits and some do not.",
        "Start all with the same --gate."),
    "releases_mixed": Rule("us", "Workers are of different releases.",
        "Restart the older ones with the newest release."),
    "clock": Rule("us", "A worker's clock differs from that of Redis.",
        "Run NTP on both machines."),
    "worker_slow": Rule("us", "One worker's jobs take much longer than the others'.",
        "Look at its machine."),
    "buffer_unserved": Rule("us", "No buffer server looks after a task that has groups.",
        "penstock buffer serve"),
    "rollout_failed": Rule("us", "A task's generator failed for good.",
        "Read the server's log, and start the rollout again."),
    "quarantined": Rule("us", "A function of yours raised on groups.",
        "Correct it, then penstock groups requeue."),
    "gateway_silent": Rule("us", "A gateway says nothing any more.", "penstock gateway serve"),
    "engine_failing": Rule("us", "An engine does not answer a gateway.",
        "Start the engine. The gateway tries it every 5 s."),
    "not_taken": Rule("us", "Groups are ready, and no trainer takes them.",
        "See whether the trainer lives, and reads this run and task."),
    "not_published": Rule("us", "Agents wait for a version that the trainer does not publish.",
        "See whether the trainer lives. It publishes after each step."),
    "sandboxes_failing": Rule("us", "Session sandboxes could not be ended.",
        "End them at their provider. The reaper tries again."),
    "sandboxes_unwatched": Rule("us", "Session sandboxes have no reaper.", "penstock reap"),
    "monitor_silent": Rule("us", "The monitor looks no more: its page and the alerts stand still.",
        "Start it again: penstock monitor."),
    "biased": Rule("us", "Discarded groups took longer than delivered ones.",
        "Let `when_old` wait or mask, or raise `max_age`."),
    "held_back": Rule("capacity", "A gate is full, or grants at its rate.",
        "Raise its limit, or wait."),
    "connections_short": Rule("capacity", "Redis has nearly as many connections as it may.",
        "Raise its maxclients, or look for who holds them."),
    "redis_filling": Rule("capacity", "Redis uses 90 % of the memory it may.",
        "Slow the producers, or raise maxmemory."),
    "buffer_full": Rule("capacity", "A task holds as much as it may, so writers wait.",
        "Take batches faster, or raise its limit."),
    "stale": Rule("capacity", "Half of the groups are too old when they are ready.",
        "Raise `max_age`, or have fewer groups under way."),
}  # fmt: skip


def judge(fleet: Fleet, workers: Sequence[Worker]) -> Fleet:
    """The look again, now with what is wrong; `workers` are all of them."""
    found = sorted(
        map(_on_one_line, (
            *_of_jobs(fleet), *_of_server(fleet.server), *_of_queues(fleet), *_of_gates(fleet),
            *_of_workers(workers), *_of_tasks(fleet), *_of_sandboxes(fleet), *_of_monitor(fleet),
        )),
        key=lambda one: (one.level != "bad", FAMILIES.index(VERDICTS[one.verdict].family)),
    )  # fmt: skip
    judged = replace(fleet, alarms=tuple(found), notes=tuple(one.said for one in found))
    level, sentence = _first_said(judged)
    return replace(judged, level=level, sentence=sentence)


def _on_one_line(alarm: Alarm) -> Alarm:
    """The alarm as a terminal and a page may show it: errors and names in it are others' text."""
    text, remedy = (visible(said.replace("\n", " ")) for said in (alarm.text, alarm.remedy))
    return replace(alarm, text=text, remedy=remedy)


MEANT = "is it the one that is meant? --run names another run, and `penstock up` starts all of it"


def _first_said(fleet: Fleet) -> tuple[Level, str]:
    """Whether all is well, in one sentence; and if not, what to do first."""
    if fleet.alarms:
        first = fleet.alarms[0]
        return first.level, f"{first.said[:1].upper()}{first.said[1:]}."
    if not fleet.used:
        return "unused", f"Nothing has used this Redis yet in run {fleet.run!r}: {MEANT}."
    return "well", (
        f"All is well{_paused(fleet)}: {_at_work(fleet)}, and no job failed in 15 minutes."
    )


def _paused(fleet: Fleet) -> str:
    """Somebody did that, so it is no alarm while nothing waits there."""
    named = [repr(queue.name) for queue in fleet.queues if queue.paused]
    if not named:
        return ""
    queues, verb = ("queue", "is") if len(named) == 1 else ("queues", "are")
    return f", but {queues} {', '.join(named)[:80]} {verb} paused"


def _at_work(fleet: Fleet) -> str:
    workers = sum(count for state, count in fleet.worker_states.items() if state != "dead")
    running = sum(queue.running for queue in fleet.queues)
    waiting = sum(queue.depth for queue in fleet.queues)
    jobs = f"{running:,} job{'s' * (running != 1)}"
    verb = "runs" if workers == 1 else "run"
    return f"{workers:,} worker{'s' * (workers != 1)} {verb} {jobs}, {waiting:,} wait"


# Programs


def _of_jobs(fleet: Fleet) -> Iterator[Alarm]:
    failed = [job for job in fleet.failed if job.ended >= fleet.at - LATELY]
    deadly = [job for job in failed if "WorkerDied" in job.error]
    if deadly:
        first = deadly[0]
        yield Alarm(
            "bad", f"job {first.id} was given up: {_without_class(first.error)}", "job", first.id,
            "job_kills_workers",
            "look at its program (`f` in penstock top), and delete it there",
        )  # fmt: skip
    others = [job for job in failed if job not in deadly]
    if others:
        many = f"{_many(len(others), 'job', 'jobs')} failed in the last 15 minutes"
        many = f"at least {many}" if len(failed) >= _SHOWN else many
        last = f", the latest: {others[0].error[:120]}" if others[0].error else ""
        yield Alarm(
            "warn", many + last, "job", others[0].id, "jobs_failed",
            "open the latest for its traceback, then retry or delete them",
        )  # fmt: skip


def _without_class(error: str) -> str:
    return re.sub(r"^[\w.]+: ", "", error)[:160]


# Redis


def _of_server(server: Server) -> Iterator[Alarm]:
    for verdict, text in server.trouble:
        yield Alarm("bad", text, "redis", "", verdict, _SERVER[verdict])
    if server.max_memory and not any(name == "redis_full" for name, _ in server.trouble):
        used = server.used_memory / server.max_memory
        if used > _FILLING:
            yield Alarm(
                "warn", f"Redis uses {used:.0%} of its memory", "redis", "", "redis_filling",
                "slow the producers, or raise maxmemory: docs/guide/full-redis.md",
            )  # fmt: skip
    if server.max_clients and server.clients > _FILLING * server.max_clients:
        yield Alarm(
            "warn", f"Redis has {server.clients:,} of {server.max_clients:,} connections",
            "redis", "", "connections_short", "raise its maxclients, or look for who holds them",
        )  # fmt: skip


_SERVER = {
    "redis_read_only": "name the primary in PENSTOCK_REDIS_URL, or use redis+sentinel://",
    "redis_full": "raise its maxmemory, or make room: docs/guide/full-redis.md",
    "redis_not_saving": "make room on its disk, and read its log",
    "redis_evicts": "set maxmemory-policy noeviction",
}


def trouble_of(info: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """The reason why a server takes no writes, or may lose what it has, by what it says of
    itself."""
    found = []
    used = int(info.get("used_memory", 0)) - int(info.get("mem_not_counted_for_evict", 0))
    most, policy = int(info.get("maxmemory", 0)), str(info.get("maxmemory_policy", ""))
    if info.get("role") in ("slave", "replica"):
        found.append(("redis_read_only", "this Redis is a replica, which takes no writes"))
    if most and policy not in ("", "noeviction"):
        text = f"this Redis deletes keys when memory is short: maxmemory-policy {policy}"
        found.append(("redis_evicts", text))
    elif most and used >= most:
        found.append(("redis_full", f"Redis is full: it uses {used:,} of {most:,} bytes"))
    saves = {"rdb_last_bgsave_status": "snapshot", "aof_last_write_status": "append-only file"}
    found += [
        ("redis_not_saving", f"Redis could not write its {what}, and may refuse writes")
        for field, what in saves.items()
        if str(info.get(field, "ok")) != "ok"
    ]
    return tuple(found)


# Queues, gates and workers


def _of_queues(fleet: Fleet) -> Iterator[Alarm]:
    for queue in fleet.queues:
        yield from _masked(queue)
        wait = _many(queue.depth, "job waits", "jobs wait")
        if queue.depth and queue.cause:
            bad = queue.verdict == "no workers" or queue.cause == "breaker_open"
            yield Alarm(
                "bad" if bad else "warn", f"{queue.reason}, and {wait}",
                "queue", queue.name, queue.cause, queue.remedy,
            )  # fmt: skip
        if queue.overdue:
            due = _many(queue.overdue, "scheduled job is", "scheduled jobs are")
            yield Alarm(
                "warn", f"queue {queue.name!r}: {due} due, and no scheduler enqueues "
                f"{'it' if queue.overdue == 1 else 'them'}", "queue", queue.name, "not_scheduled",
                "start a worker with --with-scheduler",
            )  # fmt: skip
    for queue in fleet.queues:
        if queue.ungated:
            text, _, remedy = queue.ungated.rpartition("; ")
            yield Alarm("warn", text, "queue", queue.name, "gates_mixed", remedy)


def _masked(queue: Queue) -> Iterator[Alarm]:
    masked = queue.masked
    if not masked.many or masked.ago > _OLD_MASKED or masked.since >= _WELL_AGAIN:
        return
    if masked.since and masked.ago > _QUIET:
        return
    why = f": {masked.why}" if masked.why else ""
    yield Alarm(
        "bad" if 2 * masked.many >= masked.of else "warn",
        f"queue {queue.name!r}: {masked.many} of the last {masked.of} programs had no outcome, the "
        f"last {_ago(masked.ago)} ago{why}", "queue", queue.name, "masked",
        f"{_cure(masked.why)}; `penstock run` then shows whether it is back",
    )  # fmt: skip


_CURES = (
    (r"Too many open files",
     "raise its worker's limit of open files (ulimit -n, LimitNOFILE), or lower --concurrency"),
    (r"HTTP 40[45]", "no sandbox answers there: correct PENSTOCK_SANDBOX_FUSION_URL"),
    (r"\b40[13]\b|token|nauthorized",
     "give the workers that sandbox's token: PENSTOCK_SANDBOX_TOKEN"),
    (r"no connection|was cut|unreachable",
     "start that sandbox, or correct PENSTOCK_SANDBOX_FUSION_URL"),
    (r"is full|\b(?:429|503|busy)\b",
     "lower the gate's limit, or give the sandbox's host more room"),
    (r"no whole answer", "see whether the sandbox is stuck or overloaded"),
    (r"Resource temporarily|processes|pids|memory|fork",
     "give the sandbox's host more processes and memory, and look for what uses them"),
)  # fmt: skip


def _cure(why: str) -> str:
    found = (cure for pattern, cure in _CURES if re.search(pattern, why))
    return next(found, "look at the sandbox's log and at the workers'")


def _of_gates(fleet: Fleet) -> Iterator[Alarm]:
    """Gates that cannot be read, or at which somebody waits in vain; a queue that one holds back
    has said so."""
    for broken, why in fleet.broken_gates.items():
        text, _, remedy = why.rpartition("; ")
        yield Alarm("bad", text, "gate", broken, "gate_spoiled", remedy)
    told = " ".join(queue.reason for queue in fleet.queues if queue.depth)
    for gate in fleet.gates:
        if not gate.waiting or f"gate {gate.name!r}" in told:  # a queue may have the same name
            continue
        wait = f"{_many(gate.waiting, 'waits', 'wait')} at it"
        name = shlex.quote(gate.name)
        if held := gate.breaker != "closed" and holding(gate):
            text = f"{held.reason}, and {wait}"
            yield Alarm("bad", text, "gate", gate.name, "breaker_open", held.remedy)
        elif gate.paused:
            yield Alarm(
                "warn", f"gate {gate.name!r} is paused, and {wait}", "gate", gate.name,
                "gate_paused", f"penstock limits resume {name}",
            )  # fmt: skip


def _of_workers(workers: Sequence[Worker]) -> Iterator[Alarm]:
    living = [one for one in workers if one.state != "dead"]
    if dead := [one.name for one in workers if one.state == "dead"]:
        many = _many(len(dead), "worker is", "workers are")
        yield Alarm(
            "bad", f"{many} silent: {', '.join(dead)[:80]}", "worker",
            dead[0] if len(dead) == 1 else "", "worker_silent",
            f"start {'it' if len(dead) == 1 else 'them'} again, and see what killed "
            f"{'it' if len(dead) == 1 else 'them'}",
        )  # fmt: skip
    for refused in dict.fromkeys(one.refused for one in living if one.refused):
        named = [one.name for one in living if one.refused == refused]
        many = _many(len(named), "worker", "workers")
        yield Alarm(
            "bad", f"Redis refuses {many}: {refused[:200]}", "worker",
            named[0] if len(named) == 1 else "", "worker_refused",
            "give its user what it lacks: docs/guide/redis.md#give-penstock-a-user",
        )  # fmt: skip
    # A worker that runs nothing has no way to know that a sandbox is back.
    at_work = [one for one in living if one.running]
    for url, count in Counter(url for one in at_work for url in one.unreachable).items():
        yield Alarm(
            "bad", f"{_many(count, 'worker', 'workers')} cannot reach the sandbox {url}", "worker",
            "", "sandbox_unreachable",
            "start that sandbox, or correct PENSTOCK_SANDBOX_FUSION_URL",
        )  # fmt: skip
    jobs, late = sum(one.pace[0] for one in living), sum(one.late for one in living)
    if jobs >= _ENOUGH_PROGRAMS and late >= _NEARLY_ALL * jobs:
        yield Alarm(
            "warn", f"{late} of the {jobs} programs of the last minute ran out of time", "worker",
            "", "out_of_time",
            "look at one: raise its limit, or see whether the sandbox's host is too slow",
        )  # fmt: skip
    if forgotten := [one for one in living if 0 < one.forgotten < _NEWS_OF_SERVERS]:
        last = min(one.forgotten for one in forgotten)
        yield Alarm(
            "warn", f"Redis lost its data {_ago(last)} ago: it knew "
            f"{_many(len(forgotten), 'worker', 'workers')} no longer", "redis", "",
            "data_lost",
            "find out why, and send jobs and rollouts again: docs/guide/back-up.md",
        )  # fmt: skip
    releases = Counter(one.release for one in living if one.release)
    if len(releases) > 1:
        counted = ", ".join(f"{count} of {release}" for release, count in sorted(releases.items()))
        yield Alarm(
            "warn", f"workers are of different releases: {counted}", "worker", "",
            "releases_mixed", "restart the older ones: docs/guide/upgrade.md",
        )  # fmt: skip
    for one in living:
        if abs(one.ahead) > _SKEW:
            way = "ahead of" if one.ahead > 0 else "behind"
            yield Alarm(
                "warn", f"the clock of worker {one.name} on {one.host} is {abs(one.ahead):.1f} s "
                f"{way} that of Redis", "worker", one.name, "clock", "run NTP on both machines",
            )  # fmt: skip
    yield from _slow(living)


def _slow(living: Sequence[Worker]) -> Iterator[Alarm]:
    """Workers of the same queues whose jobs take much longer than those of the others."""
    alike = defaultdict[tuple[str, ...], list[Worker]](list)
    for one in living:
        if one.pace[0] >= _ENOUGH:
            alike[one.queues].append(one)
    for group in alike.values():
        mean = {one.name: one.pace[1] / one.pace[0] for one in group}
        for one in group:
            others = [seconds for name, seconds in mean.items() if name != one.name]
            usual = statistics.median(others) if others else 0.0
            if usual and mean[one.name] > _SLOW * usual:
                yield Alarm(
                    "warn", f"worker {one.name} on {one.host} takes {mean[one.name]:.3g} s per "
                    f"job, and the others {usual:.3g} s", "worker", one.name, "worker_slow",
                    "look at its machine: what else runs there?",
                )  # fmt: skip


# Tasks, gateways, session sandboxes and the monitor


def _of_tasks(fleet: Fleet) -> Iterator[Alarm]:
    for task in fleet.tasks:
        for alarm in (*_of_buffer(task), *_of_trainer(task), *_of_gateways(task)):
            yield replace(alarm, text=f"task {task.name!r}: {alarm.text}", name=task.name)


def _of_task(level: Literal["warn", "bad"], text: str, verdict: str, remedy: str) -> Alarm:
    return Alarm(level, text, "task", "", verdict, remedy)


def _of_buffer(task: Task) -> Iterator[Alarm]:
    pulse, groups = task.pulse, task.groups
    unfinished = sum(groups.get(state, 0) for state in ("open", "ready", "leased"))
    if pulse.served is not None and _SILENT_SERVER < pulse.served < _NEWS_OF_SERVERS and unfinished:
        yield _of_task(
            "bad", f"no buffer server has looked after it for {_ago(pulse.served)}, and its clock "
            "stands still", "buffer_unserved", "start one: penstock buffer serve",
        )  # fmt: skip
    if task.rollout == "failed":
        yield _of_task(
            "bad", "its rollout failed, and brings no more", "rollout_failed",
            "the server's log says why; start it again then",
        )  # fmt: skip
    items = (unfinished + 1) * pulse.group_size
    if pulse.max_bytes and pulse.bytes >= pulse.max_bytes:
        yield _of_task(
            "warn", f"it is full: {pulse.bytes:,} of {pulse.max_bytes:,} bytes, and writers wait",
            "buffer_full", "take batches faster, or raise max_bytes (PENSTOCK_MAX_BUFFER_BYTES)",
        )  # fmt: skip
    elif pulse.max_items and items > pulse.max_items:
        yield _of_task(
            "warn", f"it is full: {unfinished} groups of {pulse.group_size}, and room for "
            f"{pulse.max_items:,} items", "buffer_full",
            "take batches faster, or raise max_buffer_size (PENSTOCK_MAX_BUFFER_SIZE)",
        )  # fmt: skip
    if lost := groups.get("quarantined", 0):
        yield _of_task(
            "warn", f"{_many(lost, 'group', 'groups')} in quarantine", "quarantined",
            "correct the function that raised, then: penstock groups requeue",
        )  # fmt: skip


def _of_trainer(task: Task) -> Iterator[Alarm]:
    pulse, ready = task.pulse, task.groups.get("ready", 0)
    late = max(_LATE * pulse.taken_every, _AT_LEAST) if pulse.taken_every else pulse.group_timeout
    away = task.oldest_ready if pulse.taken is None else min(pulse.taken, task.oldest_ready)
    if ready and not task.groups.get("leased", 0) and away > late:
        last = "no trainer ever took one" if pulse.taken is None else (
            f"the last was taken {_ago(pulse.taken)} ago")  # fmt: skip
        yield _of_task(
            "warn", f"{_many(ready, 'group is', 'groups are')} ready, and {last}", "not_taken",
            "see whether the trainer lives, and reads this run and task",
        )  # fmt: skip
    if (now := task.versions) is not None:
        every = pulse.published_every
        late = max(_LATE * every, _AT_LEAST) if every else pulse.group_timeout
        if now.waiting and pulse.published is not None and pulse.published > late:
            yield _of_task(
                "warn", f"{_many(now.waiting, 'ask waits', 'asks wait')} for the version after "
                f"{now.version}, which was published {_ago(pulse.published)} ago", "not_published",
                "see whether the trainer lives: it publishes after each step",
            )  # fmt: skip
        dropped = sum([*now.dropped_by.values()])
        if dropped >= _FEW and now.dropped_share >= _STALE:
            yield _of_task(
                "warn", f"{now.dropped_share:.0%} of its groups got too old, {dropped:,} of them",
                "stale", "raise max_age, or have fewer groups under way: penstock groups versions",
            )  # fmt: skip
    if said := bias(task.generation_seconds):
        yield _of_task(
            "warn", said, "biased",
            "`penstock groups versions` names the problems; set when_old to wait or mask, or raise "
            "max_age",
        )  # fmt: skip


def _of_gateways(task: Task) -> Iterator[Alarm]:
    known = [one for one in task.gateways if one.silent < _NEWS_OF_SERVERS]
    silent = [one for one in known if one.silent > _SILENT_GATEWAY]
    for one in silent:
        level: Literal["warn", "bad"] = "bad" if len(silent) == len(known) else "warn"
        yield _of_task(
            level, f"gateway {one.name} has been silent for {_ago(one.silent)}", "gateway_silent",
            "start it again: penstock gateway serve",
        )  # fmt: skip
    for one in known:
        for engine, why in () if one in silent else one.failing.items():
            yield _of_task(
                "bad", f"engine {engine} fails gateway {one.name}: {why[:160]}", "engine_failing",
                "start that engine again; the gateway tries it every 5 s",
            )  # fmt: skip


def _of_sandboxes(fleet: Fleet) -> Iterator[Alarm]:
    for registry in fleet.registries:
        yield from _of_registry(registry, fleet)


def _of_registry(registry: Registry, fleet: Fleet) -> Iterator[Alarm]:
    """Alarms for sandboxes that nobody ends: because they cannot be, or because nobody is there
    to."""
    run, boxes = registry.run, [box for box in fleet.sandboxes if box.run == registry.run]
    if registry.failing:
        why = next((box.trouble for box in boxes if box.failing), "")
        many = _many(registry.failing, "sandbox", "sandboxes")
        yield Alarm(
            "bad", f"run {run!r}: {many} could not be ended, and will be tried again: {why[:120]}",
            "run", run, "sandboxes_failing",
            "if that goes on, end them at their provider",
        )  # fmt: skip
    overdue = [box for box in boxes if box.overdue and not box.failing]
    if registry.states and (overdue or not registry.reaper):
        held = sum(registry.states.values())
        text = (
            f"{_many(held, 'sandbox', 'sandboxes')}, and no reaper watches them"
            if not registry.reaper
            else f"{_many(len(overdue), 'sandbox', 'sandboxes')} should have been ended, and "
            f"reaper {registry.reaper} has not come"
        )
        yield Alarm(
            "bad", f"run {run!r}: {text}", "run", run, "sandboxes_unwatched",
            "start one: penstock reap",
        )  # fmt: skip


def _of_monitor(fleet: Fleet) -> Iterable[Alarm]:
    if fleet.monitor is not None and fleet.monitor > _SILENT_MONITOR:
        yield Alarm(
            "warn", f"the monitor of run {fleet.run!r} has not looked for {_ago(fleet.monitor)}: "
            "its page and the alerts stand still", "monitor", "", "monitor_silent",
            "start it again: penstock monitor",
        )  # fmt: skip


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"


def _ago(seconds: float) -> str:
    for longest, unit, one in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < longest:
            return f"{seconds / one:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"
