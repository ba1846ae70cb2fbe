"""Run training and evaluation on one queue, with shares and without, and draw what was counted.

    python -m docs.tools.sharing            about two minutes; kept in kept/sharing.json

Two workers with 16 programs each at once, which take 0.2 s. Training has a backlog when evaluation
comes. Later the weights are turned.
"""

import asyncio
import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from ground import EmbeddedServer
from tests.harness import killing
from tests.worker.concurrent.crew import work_in_process
from tests.worker.scripted_answers import Answer
from tests.worker.scripted_fusion import ScriptedFusion
from worker import CodeQueue, CodeRequest

HERE = Path(__file__).parent
KEPT = HERE / "kept" / "sharing.json"
PICTURE = HERE.parent / "pictures" / "sharing.svg"
TRAINING, EVALUATION = 6_000, 600
COMES, TURNED = 5.0, 12.0  # seconds
_STEP = 1.0
_WEIGHTS, _TURNED = {"training": 3, "evaluation": 1}, {"training": 1, "evaluation": 3}


def main() -> None:
    kept = {"with": _run(shared=True), "without": _run(shared=False)}
    KEPT.write_text(json.dumps(kept) + "\n")
    PICTURE.write_text(drawn())


def _run(*, shared: bool) -> dict[str, Any]:
    with contextlib.ExitStack() as running:
        folder = running.enter_context(tempfile.TemporaryDirectory())
        url = running.enter_context(EmbeddedServer(Path(folder))).url
        fusion = running.enter_context(ScriptedFusion(default=Answer.ok("", seconds=0.2)))
        settings = {"sandbox_fusion_url": fusion.url, "concurrency": 16}
        for _ in range(2):
            worker = killing.Child(work_in_process, url, ["code"], settings)
            running.enter_context(worker)
        return asyncio.run(_train_and_evaluate(url, shared=shared))


async def _train_and_evaluate(url: str, *, shared: bool) -> dict[str, Any]:
    queue = CodeQueue(url, "code")
    await queue.set_weights(_WEIGHTS)
    await queue.run("")  # a worker is there
    began = time.monotonic()
    ended: dict[str, list[float]] = {"training": [], "evaluation": []}

    async def run(name: str, jobs: int) -> None:
        programs = [CodeRequest(code="") for _ in range(jobs)]
        share = name if shared else ""
        handles = await asyncio.gather(*(queue.submit(one, share=share) for one in programs))
        async for _ in queue.as_completed(handles):
            ended[name].append(time.monotonic() - began)

    async def later() -> None:
        await asyncio.sleep(COMES)
        await run("evaluation", EVALUATION)

    async def turn() -> None:
        await asyncio.sleep(TURNED)
        await queue.set_weights(_TURNED)

    await asyncio.gather(run("training", TRAINING), later(), turn())
    return {
        "seconds": round(max(ended["evaluation"]) - COMES, 1),
        "all": round(max(map(max, ended.values())), 1),
        **{name: _rates(times) for name, times in ended.items()},
    }


def _rates(times: list[float]) -> list[float]:
    """Jobs that ended per second, for each second."""
    rates = [0.0] * (int(max(times) / _STEP) + 1)
    for each in times:
        rates[int(each / _STEP)] += 1 / _STEP
    return rates


_WIDTH, _PANEL, _LEFT, _RIGHT, _TOP = 760, 130, 50, 110, 46
_COLOURS = {"training": "#0072b2", "evaluation": "#b25a00"}
_DASHES = {"training": "", "evaluation": "6 4"}


def drawn() -> str:
    """Both runs over one axis of seconds."""
    kept = json.loads(KEPT.read_text())
    seconds = max(run["all"] for run in kept.values())
    most = 1.5 * max(max(run[name]) for run in kept.values() for name in _COLOURS)
    comes, turned = {"evaluation comes": COMES}, {"weights turned": TURNED}
    panels = [
        _panel(kept["with"], "shares, 3 to 1; then 1 to 3", comes | turned, _TOP, seconds, most),
        _panel(kept["without"], "one line for all", comes, _TOP + _PANEL + 44, seconds, most),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} '
        f'{_TOP + 2 * (_PANEL + 44)}" font-family="system-ui, sans-serif" font-size="12" '
        'role="img" aria-label="Jobs per second of training and evaluation, with shares and '
        'without"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT}" y="24" font-size="15" font-weight="600">jobs that end per second'
        f"</text>{''.join(panels)}</svg>\n"
    )


def _panel(
    run: dict[str, Any], title: str, marks: dict[str, float], top: int, seconds: float, most: float
) -> str:
    right, bottom = _WIDTH - _RIGHT, top + _PANEL

    def x(at: float) -> float:
        return _LEFT + (right - _LEFT) * at / seconds

    parts = [
        f'<rect x="{_LEFT}" y="{top}" width="{right - _LEFT}" height="{_PANEL}" fill="#f6f7f9"/>'
        f'<text x="{_LEFT}" y="{top - 5}" font-weight="600">{title}</text>'
        f'<text x="{_LEFT - 8}" y="{top + 12}" text-anchor="end">{most / 1.5:.0f}</text>'
        f'<text x="{_LEFT - 8}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{right}" y="{bottom + 14}" text-anchor="end">{seconds:.0f} s</text>'
    ]
    marks = marks | {f"evaluation has ended: {run['seconds']:.0f} s": COMES + run["seconds"]}
    for row, (what, at) in enumerate(marks.items()):
        anchor = "end" if x(at) > right - 200 else "start"
        parts.append(
            f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{top}" y2="{bottom}" stroke="#b00020" '
            f'stroke-dasharray="1 3"/><text x="{x(at) + (4 if anchor == "start" else -4):.1f}" '
            f'y="{top + 12 + 13 * row}" fill="#b00020" text-anchor="{anchor}">{what}</text>'
        )
    for row, (name, colour) in enumerate(_COLOURS.items()):
        points = " ".join(
            f"{x((n + 0.5) * _STEP):.1f},{bottom - _PANEL * rate / most:.1f}"
            for n, rate in enumerate(run[name])
        )
        stroke = f'stroke="{colour}" stroke-width="2" stroke-dasharray="{_DASHES[name]}"'
        label = top + 16 + row * 18
        parts.append(
            f'<polyline fill="none" {stroke} points="{points}"/>'
            f'<line x1="{right + 8}" x2="{right + 30}" y1="{label - 4}" y2="{label - 4}" {stroke}/>'
            f'<text x="{right + 35}" y="{label}">{name}</text>'
        )
    return "".join(parts)


if __name__ == "__main__":
    main()
