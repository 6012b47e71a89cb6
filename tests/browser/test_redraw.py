"""The benchmark of redrawing runs, and ends with its figure; it needs the browser."""

import re
from contextlib import nullcontext

import explorer_redraw


def test_the_benchmark_ends_with_its_figure(chromium, monkeypatch, capsys):
    monkeypatch.setattr(explorer_redraw, "browser", lambda: nullcontext(chromium))
    explorer_redraw.main(["--short"])
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"the slowest control takes \d+\.\d+ of the limit of 50 ms", last)
