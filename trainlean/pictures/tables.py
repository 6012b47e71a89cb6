"""How a notebook shows a table: the unit in the head, no numbers of rows that say nothing; as text it stays what pandas writes."""

import re
from html import escape

# The fixed forms of `trainlean.costs.runs.summary`: what differs from run to run. The classes are what nbval passes over.
TIME = re.compile(r"\s*(\d+\.\d{3}) s \(\s*(\d+\.\d{3})\u2013\s*(\d+\.\d{3})\)")
RATE = re.compile(r"\s*(\d+\.\d) samples/s")
SMALL = 60  # rows, and columns, of a table that is shown whole


def table_html(frame) -> str:
    """A pandas DataFrame as HTML; a large one, or one with several heads, as pandas shows it."""
    import pandas

    heads = (frame.index, frame.columns)
    if max(frame.shape) > SMALL or any(isinstance(head, pandas.MultiIndex) for head in heads):
        return frame._repr_html_()
    columns = (frame.iloc[:, place] for place in range(frame.shape[1]))
    timed = [any(TIME.fullmatch(str(cell)) for cell in column) for column in columns]
    shown = frame.map(lambda cell: _cell(cell) if isinstance(cell, str) else cell)
    shown.columns = [
        escape(f"{name}, s (fastest–slowest)" if with_times else str(name))
        for name, with_times in zip(frame.columns, timed, strict=True)
    ]
    numbered = isinstance(frame.index, pandas.RangeIndex) and frame.index.name is None
    if not numbered:
        shown.index = [escape(str(name)) for name in frame.index]
    return shown.to_html(index=not numbered, escape=False, max_rows=None)


def _cell(text: str) -> str:
    if time := TIME.fullmatch(text):
        return f'<span class="time">{time[1]} ({time[2]}\u2013{time[3]})</span>'
    if rate := RATE.fullmatch(text):
        return f'<span class="rate">{rate[1]}</span>'
    return escape(" ".join(text.split()))
