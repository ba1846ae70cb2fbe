"""The tool suite: Penstock, put through what verl's pool is put through."""

import pytest

from bench import tool


def test_what_is_measured_is_what_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "QUICK", "0.5")
    suite = tool.measure(quick=True)
    try:
        measured = {name: suite.contenders[name]() for name in (tool.PENSTOCK, tool.POOL)}
    finally:
        suite.clean_up()
    compared = {ratio.metric for ratio in suite.ratios}
    for metrics in measured.values():
        assert compared <= metrics.keys()
        assert all(figure > 0 for figure in metrics.values())
    named = {ratio.name for ratio in suite.ratios}
    assert {target.what for target in suite.targets} <= named
