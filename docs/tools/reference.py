"""Write the references of settings, HTTP and the metrics, from the code itself.

A test fails where they differ from the code; `make docs` runs this. The pages of the command and
of the Python API are long, and say what `--help` and the sources say: only the site has them.
"""

import asyncio
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import fakeredis
from prometheus_client import Metric

from buffer import Policy, RolloutBuffer, TaskConfig
from buffer import metrics as buffer_metrics
from buffer.http.app import Front, make_app
from buffer.settings import BufferSettings
from docs.tools import python_api, settings_page
from gateway.metrics import Tally
from gateway.server.agents import ROUTES
from gateway.server.app import Gateway
from gateway.settings import GatewaySettings
from ground.openapi import add_shared
from ground.redis.url import RedisTarget
from jail import Limits
from jail.jails import Jails
from jail.serve import App, Line
from limiter import AdaptiveStatus, AmountStatus, GateShare, GateShares, GateStatus
from penstock.cli import command
from penstock.fleet import Fleet, Queue, Registry, Server
from penstock.fleet.figures import families
from penstock.fleet.health import FAMILIES, VERDICTS
from penstock.fleet.model import Alarm, Latency
from penstock.monitor import app as monitor
from penstock.settings import MonitorSettings
from worker.contract import Check, dead_sandbox_contract, provider_contract, sandbox_contract
from worker.lifecycle.registry.records import COUNTERS
from worker.outcomes import LATENCY_STEPS, PROGRAM_OUTCOMES

PAGES = Path(__file__).parents[1] / "reference"


def main() -> None:
    for name, text in documents().items():
        (PAGES / name).write_text(text)


def documents() -> dict[str, str]:
    return {
        "settings.md": settings_page.page(),
        "http.md": _http(),
        "metrics.md": _metrics_page(),
        "provider-contract.md": _contract(),
        "verdicts.md": _verdicts_page(),
    }


def site_documents() -> dict[str, str]:
    return {"command.md": _cli(), "python.md": python_api.page()}


# The command

EXIT_CODES = """\
| Exit code | |
|---|---|
| 0 | Done; `doctor`: ready; `up`, `top` and `worker` ended by Ctrl-C |
| 1 | Bad news: not ready, not healthy, no such name, something needs attention |
| 2 | It could not run: an unknown option, a setting that cannot work, no Redis |
| 124, 125, 137 | `run`: its time ran out; it was not run; it passed another limit |
| 128 + n | `run`: the program was ended by signal n |
| 130 | Ctrl-C |
| 129, 143 | SIGHUP, SIGTERM; `up` and `worker` let running work end first |
| any other | `run`: the program's own |
"""


def _cli() -> str:
    parts = [
        "# The command\n\n`penstock COMMAND --help` says the same.\n\nData goes to stdout, all"
        " messages go to stderr. Every listing has `--json`."
        " Colours are for terminals, unless `NO_COLOR` is set.\n\n"
        + EXIT_CODES
        + "\nShell completion:"
        ' `eval "$(_PENSTOCK_COMPLETE=bash_source penstock)"` in `~/.bashrc`, or `zsh_source`;'
        " for fish, `_PENSTOCK_COMPLETE=fish_source penstock | source`. It offers the names of"
        " gates, queues, tasks, groups and sandboxes in Redis, if Redis answers within a second.\n"
    ]
    for path, found in _commands(command, "penstock"):
        settings = command.context_settings | {"max_content_width": 96, "terminal_width": 96}
        with click.Context(found, info_name=path, **settings) as at:
            parts.append(f"## {path}\n\n```text\n{found.get_help(at).rstrip()}\n```\n")
    return "\n".join(parts)


def _commands(found: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, found
    if isinstance(found, click.Group):
        context = click.Context(found)
        for name in found.list_commands(context):
            if (inner := found.get_command(context, name)) is not None:
                yield from _commands(inner, f"{path} {name}")


# HTTP


def _http() -> str:
    out = io.StringIO()
    out.write(
        "# HTTP\n\n`make docs` writes this page from the code. Every service:\n\n"
        "- listens on loopback unless you set another address\n"
        "- answers `GET /livez` to everyone: 200 while its own process runs, whatever Redis does\n"
        "- answers `GET /healthz` to everyone: 200 if it can also serve, or 503 with the reason\n"
        "- has `GET /metrics` for Prometheus, and its bodies and answers in `/openapi.json`\n"
        "- if a token is set, answers 401 without it. Send `Authorization: Bearer …`, or use a URL"
        " with the token: `http://any:TOKEN@host`. The two above need none\n"
        "- refuses requests for another host (421), from another site's page (403), and changes"
        " that are not JSON (415): [Secure a deployment](../guide/secure.md)\n"
    )
    target = RedisTarget("fake", (("fake", 0),), options={"server": fakeredis.FakeServer()})
    front = make_app(target, "default", BufferSettings()).app
    if not isinstance(front, Front):
        raise TypeError("what stands behind the buffer's guard is known to have the routes")
    rows = _rows_of(front.app.openapi())
    about = "`penstock buffer serve`, `PENSTOCK_BUFFER_TOKEN`."
    _table(out, "The buffer server", about, rows)
    shown = _rows_of(monitor.make_app(target, "default", MonitorSettings()).app.openapi())
    about = (
        "`penstock monitor`, `PENSTOCK_MONITOR_TOKEN`. Without a token every POST is refused with"
        " 403. `/api/events` is a stream of server-sent events: `history` once, then `fleet` every"
        " second, or `trouble`."
    )
    _table(out, "The monitor", about, shown)
    app = App(Jails(), Limits(), Line(1, 1, 1.0))
    served = [
        (method, path, _first_line(handle.__doc__))
        for path, methods in app._routes.items()
        for method, handle in methods.items()
    ]
    about = (
        "`penstock sandbox serve`, `PENSTOCK_SANDBOX_TOKEN`. With `--e2b` a second port speaks"
        " E2B's protocol, with `PENSTOCK_E2B_API_KEY`. It answers `/livez` and `/healthz`"
        " too. The bodies are Sandbox Fusion's: see"
        " [the differences](sandbox-fusion.md)."
    )
    _table(out, "The sandbox", about, [*served, *_watched()])
    gateway = Gateway(target, "default", GatewaySettings())
    agents = [
        (method, path, _first_line(handle.__doc__)) for path, (method, handle) in ROUTES.items()
    ]
    about = (
        "`penstock gateway serve`, `PENSTOCK_GATEWAY_TOKEN`. That token opens and finalizes"
        " sessions. Under `/v1/` an agent sends its session's key instead, in `Authorization:"
        " Bearer KEY` or `x-api-key`, or asks below `/s/KEY/v1/`: [Train an agent on exact"
        " tokens](../guide/train-an-agent.md)."
    )
    rows = [*_rows_of(gateway.control.openapi()), *agents, *_watched()]
    _table(out, "The gateway", about, rows)
    return out.getvalue()


def _watched() -> list[tuple[str, str, str]]:
    """The paths that every service's guard answers itself."""
    document: dict[str, Any] = {"paths": {}, "components": {"schemas": {}}}
    add_shared(document, refusals={})
    return _rows_of(document)


def _rows_of(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [
        (method.upper(), path, _first_line(operation.get("description") or operation["summary"]))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def _table(out: io.StringIO, title: str, about: str, rows: list[tuple[str, str, str]]) -> None:
    out.write(f"\n## {title}\n\n{about}\n\n| Method | Path | |\n|---|---|---|\n")
    for method, path, what in rows:
        out.write(f"| {method} | `{path}` | {what} |\n")


# Metrics


def metrics() -> list[tuple[str, str, str, str]]:
    """Name, kind, labels, help of every figure of Penstock, as a scrape names it."""
    found = {}
    for family in asyncio.run(_families()):
        suffix = "_total" if family.type == "counter" else ""
        labels = ", ".join(f"`{name}`" for name in sorted(family.samples[0].labels))
        name = family.name + suffix
        found[name] = (name, family.type, labels, family.documentation)
    return [found[name] for name in sorted(found)]


def _metrics_page() -> str:
    lines = [
        "# Metrics\n\n`make docs` writes this page from the code.\n\n"
        "- The monitor exports everything that is counted in Redis, read at each scrape. One"
        " monitor is enough for a fleet.\n"
        "- Buffer servers also export their run's groups, and the sandbox what runs in it.\n"
        "- A worker with `--metrics-port` exports its own `penstock_worker_running` and"
        " `penstock_worker_started_total` (label `worker`).\n"
        "- A gateway exports what it has counted since its start.\n"
        "- Each process adds its own `process_*` and `python_info`.\n"
        "- Labels hold names that people gave, never ids of jobs or groups.\n\n"
        "| Name | Kind | Labels | Meaning |\n|---|---|---|---|"
    ]
    lines += [
        f"| `{name}` | {kind} | {labels} | {help} |" for name, kind, labels, help in metrics()
    ]
    return "\n".join(lines) + "\n"


def _verdicts_page() -> str:
    lines = [
        "# Verdicts\n\n`make docs` writes this page from the code.\n\n"
        "`penstock status` and all that follow it name what is wrong with these words. What is"
        " broken comes before\nwhat only looks wrong. Of each, failures of programs come first,"
        " then those of us, then of capacity.\n\n"
        "| Verdict | Of | Meaning | Remedy |\n|---|---|---|---|"
    ]
    order = sorted(VERDICTS.items(), key=lambda one: FAMILIES.index(one[1].family))
    lines += [
        f"| `{name}` | {rule.family} | {rule.means} | {rule.remedy} |" for name, rule in order
    ]
    return "\n".join(lines) + "\n"


async def _families() -> list[Metric]:
    steps = AdaptiveStatus("limit", 1, 1, 1, 1.0, 1.0, 0.0, 0, 0, None, 0, 0, 0, 0, 0.0)
    gate = GateStatus(
        "code", 1, 1.0, 1, False, 0, 0, 0.0, 1.0, *([0] * 8), leases=(),  # type: ignore[misc]
        adaptive=steps, amounts={"tokens": AmountStatus(1.0, 1, 1.0)},
        shares=GateShares(1.0, 1, (GateShare("training", 1, 1.0, True),)),
    )  # fmt: skip
    none = Latency((0,) * len(LATENCY_STEPS), 0.0)
    ends = dict.fromkeys((*PROGRAM_OUTCOMES, "unknown"), 0)
    queue = Queue("code", 0, 0.0, 0, 0, 0, 0, {}, ends, none, none)
    fleet = Fleet(
        at=0.0, run="default", server=Server("", "", 0, 0, 0, 0), suspended=False, queues=(queue,),
        workers=(), worker_states={}, gates=(gate,), tasks=(), groups=(), quarantine=(), recent=(),
        failed=(), done=0, registries=(Registry("default", {}, 0, dict.fromkeys(COUNTERS, 0), ""),),
        alarms=(Alarm("bad", "", "queue", "code", "no_worker", ""),),
    )  # fmt: skip
    target = RedisTarget("fake", (("fake", 0),), options={"server": fakeredis.FakeServer()})
    buffer = RolloutBuffer(target, "math", TaskConfig(group_size=1))
    await buffer.set_policy(Policy(groups_per_version=1, max_age=1))
    await buffer.publish(1)
    async with buffer.slot():
        await buffer.write({"instance_id": "a", "uid": "0", "messages": [], "reward": 0.0})
        figures = await buffer_metrics.families([buffer])
    sandbox: Any = App(Jails(), Limits(), Line(1, 1, 1.0))
    tally = Tally()
    tally.ended("chat", "done")
    made = [*families(fleet), *figures, *await sandbox.figures(), *tally.families()]
    await buffer.aclose()
    return made


# The contract of sandboxes


def _contract() -> str:
    return "\n".join(
        (
            "# The contract of sandboxes\n",
            "Written from `worker.contract` by `make docs`. [Write a sandbox"
            " provider](../guide/provider.md) and [Write a session"
            " provider](../guide/session-provider.md) say how to run it on yours.\n",
            "| Which of Penstock's | Where it is run | Exceptions |",
            "|---|---|---|",
            "| the embedded sandbox, one for each worker and one for a machine |"
            " `tests/jail/test_contract.py` | none |",
            "| `penstock sandbox serve`, and a Sandbox Fusion without isolation |"
            " `tests/jail/test_contract.py` | none |",
            "| programs in session sandboxes, `worker.lifecycle.code.sessions` |"
            " `tests/jail/test_contract.py` | `memory_has_a_limit`: the sandbox's"
            " `memory_mb` is the limit, for all programs of a session |",
            "| session sandboxes of one machine, `local`, at the levels `ns` and `landlock` |"
            " `tests/worker/lifecycle/test_contract.py` | none |",
            "| `modal`: Modal's client, with a stand-in for Modal's servers |"
            " `tests/worker/lifecycle/test_contract.py` | none |",
            "| `e2b`: E2B's SDK, with `penstock sandbox serve --e2b` |"
            " `tests/worker/lifecycle/clouds/test_e2b.py` | none |",
            "| `daytona`: Daytona's SDK, with a stand-in for its servers |"
            " `tests/worker/lifecycle/clouds/test_daytona.py` | none |",
            "| `agent-sandbox`: its client, with a stand-in for API server and router |"
            " `tests/worker/lifecycle/clouds/test_agent_sandbox.py` | none |\n",
            "Each check has a test that it can fail: `tests/worker/contract/test_checks.py`.\n",
            *_checks("A one-shot sandbox", "sandbox_contract", sandbox_contract()),
            *_checks("Its back end is down", "dead_sandbox_contract", dead_sandbox_contract()),
            *_checks("A session provider", "provider_contract", provider_contract()),
        )
    )


def _checks(title: str, function: str, checks: list[Check[Any]]) -> Iterator[str]:
    yield f"## {title}\n\n`worker.contract.{function}()`\n\n| Check | Why |\n|---|---|"
    for check in checks:
        yield f"| `{check.name}` | {check.why} |"
    yield ""


if __name__ == "__main__":
    main()
