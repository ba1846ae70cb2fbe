"""Draw docs/pictures/trace.svg: one step of GRPO as its spans, kept from a real run.

    python -m docs.tools.trace            draw what is kept
    python -m docs.tools.trace --play     play the step first, with a worker and a scripted model

Two problems with two rollouts each. The first sample of a problem is drawn whole, of the other
one row. Dashed lines are links: from a group that was taken to the writes of its items.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
KEPT = HERE / "kept" / "trace.json"
PICTURE = HERE.parent / "pictures" / "trace.svg"

Row = dict[str, Any]

WIDTH, LEFT, ROW, TOP = 960, 250, 15, 30
_ASKED = [{"role": "user", "content": "Problem 0"}]
STYLE = """\
svg { --ground: #fff; --ink: #222; --soft: #666; --edge: #ddd; --trainer: #3d6fd1;
      --worker: #d97b29; --link: #8a4fbf }
@media (prefers-color-scheme: dark) {
  svg { --ground: #181a1f; --ink: #e6e6e6; --soft: #a0a6b0; --edge: #333842; --trainer: #7ba2f0;
        --worker: #e8a05c; --link: #c39be8 }
}
.ground { fill: var(--ground) } text { fill: var(--ink) } .soft { fill: var(--soft) }
.trainer { fill: var(--trainer) } .worker { fill: var(--worker) }
.edge { stroke: var(--edge) } .link { stroke: var(--link); stroke-dasharray: 3 3; fill: none }
"""


def main(arguments: list[str]) -> None:
    if arguments == ["--play"]:
        KEPT.write_text("[\n" + ",\n".join(map(json.dumps, played())) + "\n]\n")
    PICTURE.write_text(drawn())


def drawn() -> str:
    rows: list[Row] = json.loads(KEPT.read_text())
    shown = list(_shown(rows, "", 0))
    height = TOP + ROW * len(shown) + 40
    ends = max(row["ended"] for row in rows)
    scale = (WIDTH - LEFT - 70) / ends
    places = {row["id"]: TOP + ROW * n for n, (row, _, _) in enumerate(shown)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' aria-label="The spans of one step of GRPO" font-family="sans-serif" font-size="10">',
        f"<style>\n{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}"/>',
    ]
    for tick in range(0, int(ends) + 1, _step(ends)):
        x = LEFT + tick * scale
        parts.append(
            f'<line class="edge" x1="{x:.1f}" y1="{TOP - 4}" x2="{x:.1f}" y2="{height - 34}"/>'
            f'<text class="soft" x="{x:.1f}" y="{TOP - 10}" text-anchor="middle">{tick} ms</text>'
        )
    for row, depth, hidden in shown:
        y, x = places[row["id"]], LEFT + row["began"] * scale
        width = max((row["ended"] - row["began"]) * scale, 1.0)
        name = row["name"] + (f" (+{hidden} spans)" if hidden else "")
        parts.append(
            f'<text x="{8 + 10 * depth}" y="{y + 10}">{escape(name)}</text>'
            f'<rect class="{row["where"]}" x="{x:.1f}" y="{y + 2}" width="{width:.1f}"'
            f' height="{ROW - 4}" rx="2"/>'
            f'<text class="soft" x="{x + width + 4:.1f}" y="{y + 10}">'
            f"{row['ended'] - row['began']:.1f}</text>"
        )
    parts += list(_links(rows, places, scale))
    y = height - 14
    for x, kind, says in ((8, "trainer", "in the trainer"), (120, "worker", "in the worker")):
        parts.append(
            f'<rect class="{kind}" x="{x}" y="{y - 9}" width="10" height="10" rx="2"/>'
            f'<text x="{x + 15}" y="{y}">{says}</text>'
        )
    parts.append(
        f'<path class="link" d="M232 {y - 4} h24"/><text x="262" y="{y}">a link to another span'
        "</text></svg>\n"
    )
    return "\n".join(parts)


def _step(ends: float) -> int:
    return next(step for step in (10, 20, 50, 100, 200, 500, 1000) if ends / step <= 10)


def _shown(rows: list[Row], parent: str, depth: int) -> Iterator[tuple[Row, int, int]]:
    """Depth first, and how many spans below a row are not drawn."""
    samples = 0
    for row in rows:
        if row["parent"] != parent:
            continue
        samples += row["name"] == "sample"
        folded = row["name"] == "sample" and samples % 2 == 0
        yield row, depth, _below(rows, row) if folded else 0
        if not folded:
            yield from _shown(rows, row["id"], depth + 1)


def _below(rows: list[Row], row: Row) -> int:
    return sum(1 + _below(rows, each) for each in rows if each["parent"] == row["id"])


def _links(rows: list[Row], places: dict[str, int], scale: float) -> Iterator[str]:
    by_id = {row["id"]: row for row in rows}
    for row in rows:
        for link in row["links"]:
            there = by_id[link]
            while there["id"] not in places:
                there = by_id[there["parent"]]
            x, y = LEFT + row["began"] * scale, places[row["id"]] + 7
            x2, y2 = LEFT + there["ended"] * scale, places[there["id"]] + 7
            yield f'<path class="link" d="M{x:.1f} {y} Q{x2:.1f} {y} {x2:.1f} {y2}"/>'


# The step, played


def played() -> list[Row]:
    """The spans of one step: of the trainer by its exporter, of the worker by a collector."""
    from ground import EmbeddedServer
    from tests.harness.traces import Collector, recorded

    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServer(Path(folder)) as server,
        Collector().listening() as collector,
        recorded() as spans,
    ):
        asked = {
            "PENSTOCK_REDIS_URL": server.url, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_BSP_SCHEDULE_DELAY": "50",
        }  # fmt: skip
        worker = subprocess.Popen(
            [sys.executable, "-m", "penstock", "worker", "--sandbox", "local"],
            env=os.environ | asked,
        )
        try:
            collector.until(lambda: collector.named("start worker"))
            asyncio.run(_step_of_grpo(server.url))
        finally:
            worker.terminate()
            worker.wait()
        trainer = [
            _row(
                "trainer", span.name, span.context.span_id, span.parent and span.parent.span_id,
                span.start_time, span.end_time, [link.context.span_id for link in span.links],
            )
            for span in spans.all()
            if span.context.trace_id == spans.one("step").context.trace_id
        ]  # fmt: skip
        trace = spans.one("step").context.trace_id.to_bytes(16)
        workers = [
            _row(
                "worker", span.name, int.from_bytes(span.span_id),
                int.from_bytes(span.parent_span_id), span.start_time_unix_nano,
                span.end_time_unix_nano, [],
            )
            for span in collector.spans
            if span.trace_id == trace
        ]  # fmt: skip
    rows = sorted([*trainer, *workers], key=lambda row: row["began"])
    zero = rows[0]["began"]
    for row in rows:
        row["began"] = round((row["began"] - zero) / 1e6, 2)
        row["ended"] = round((row["ended"] - zero) / 1e6, 2)
    return rows


def _row(
    where: str, name: str, id: int, parent: int | None, began: Any, ended: Any, links: list[int]
) -> Row:
    return {
        "name": name, "where": where, "id": f"{id:016x}", "parent": f"{parent:016x}" if parent else
        "", "began": began, "ended": ended, "links": [f"{link:016x}" for link in links],
    }  # fmt: skip


async def _step_of_grpo(url: str) -> None:
    from openai import AsyncOpenAI

    from buffer import RolloutBuffer, TaskConfig
    from ground import tracing
    from tests.harness.scripted_model import called, said, scripted_model
    from worker.rollout import Rollout
    from worker.tool import SandboxFusionTool

    def answer(asked: dict[str, Any], number: int) -> Any:
        if asked["messages"][-1]["role"] == "tool":
            return said(f"#### {asked['messages'][-1]['content']}")
        program = json.dumps({"code": "print(sum(n * n for n in range(100_000)))"})
        return called(("code_interpreter", program))

    buffer = RolloutBuffer(url, "math", TaskConfig(group_size=2))
    with scripted_model(answer) as model:
        client = AsyncOpenAI(base_url=model.url, api_key="none")
        rollout = Rollout(client, "policy", [SandboxFusionTool({"redis_url": url})])
        await rollout.run(rollout.request(_ASKED))  # imports and connects

        async def play(problem: int, sample: int) -> None:
            question = [_ASKED[0] | {"content": f"Problem {problem}"}]
            with tracing.span("sample"):
                trajectory = await rollout.run(rollout.request(question))
                await buffer.write(
                    {"instance_id": problem, "uid": f"{problem}-{sample}",
                     "messages": trajectory.messages, "reward": sample}
                )  # fmt: skip

        asked = [(problem, sample) for problem in (1, 2) for sample in (0, 1)]
        with tracing.span("step"):
            await asyncio.gather(*(play(*each) for each in asked))
            batch = await buffer.take(2)
            assert batch is not None
            await buffer.ack(batch)
    await client.close()
    await buffer.aclose()


if __name__ == "__main__":
    main(sys.argv[1:])
