"""`/run_jupyter`: the cells of one request, in one interpreter that ends with it."""

from dataclasses import asdict
from typing import Any

from jail import Limits, Outcome
from jail import sandbox as provider
from jail.answer import body_of, result_of
from jail.errors import LimitRefused
from jail.jails import Jails
from jail.notebook import Cell, SessionEnded
from jail.serve.requests import BadFile, RunJupyter


async def run(jails: Jails, defaults: Limits, request: RunJupyter) -> dict[str, Any]:
    """The body of the response. Cells after one that ended the interpreter are not there."""
    cells: list[Cell] = []
    total, room = request.total_timeout, defaults.output
    try:
        limits = provider.limits_for(defaults, total, defaults.compile_wall, request.memory)
        files = request.contents()
        async with jails.session(limits, files, request.fetch_files) as session:
            try:
                for code in request.cells:
                    # Without a limit of its own the total ends it, and with it the cells that
                    # follow: at the same limit, the cell might be ended first, and the next begin.
                    seconds = min(request.cell_timeout or 2 * total, 2 * total)
                    cell = await session.run(code, seconds, room)
                    cells.append(cell)
                    room -= cell.size
            except SessionEnded:
                pass  # how it ended is in the outcome
            outcome = await session.end()
    except (BadFile, LimitRefused) as refusal:
        outcome = Outcome("refused", jails.level, error=str(refusal))
    driver = body_of(result_of(outcome))
    ended = f"cell {len(cells) + 1} ended the interpreter"
    cut_short = driver["status"] == "Success" and len(cells) < len(request.cells)
    return {
        "status": "Failed" if cut_short else driver["status"],
        "message": ended if cut_short else driver["message"],
        "driver": driver["run_result"],
        "cells": [_shown(cell) for cell in cells],
        "executor_pod_name": driver["executor_pod_name"],
        "files": driver["files"],
        "isolation": driver["isolation"],
    }


def _shown(cell: Cell) -> dict[str, Any]:
    found = asdict(cell)
    del found["size"]
    return found
