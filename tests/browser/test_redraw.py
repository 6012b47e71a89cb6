"""The benchmark of redrawing runs, and ends with its figure; it needs the browser."""

from contextlib import nullcontext

import explorer_redraw
from test_benchmarks import FIGURES, says


def test_the_benchmark_ends_with_its_figure(chromium, monkeypatch, capsys):
    monkeypatch.setattr(explorer_redraw, "browser", lambda: nullcontext(chromium))
    explorer_redraw.main(["--short"])
    assert says(capsys.readouterr().out.splitlines()[-1], FIGURES["explorer_redraw"])
