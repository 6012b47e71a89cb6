"""The measured and the predicted rows beside the published ones: as tables, and what a picture shows of them."""

from collections.abc import Iterable
from dataclasses import replace

from trainlean.costs.runs import MiB, Run, published_runs
from trainlean.table.measured import Outcome
from trainlean.table.rows import CONTEXT, ROWS, Row, predict_row, published


def memory_of(run: Run) -> int:
    """The memory to compare in a table, in bytes: what the card's allocator handed out at most, else the bytes of the tensors."""
    return run.device_bytes.get("allocator_peak", run.peak_bytes)


def measured_table(outcomes: Iterable[Outcome], predicted: dict[str, Run] | None = None):
    """Time, samples/second and memory (MiB) of each row, with ratios to vanilla beside the published ratios (a DataFrame).

    Published ratios of memory are taken without the CUDA context. `predicted` maps a row's key to its prediction, whose
    distance from the measured memory is then the last column.
    """
    import pandas

    from trainlean.costs.runs import summary

    outcomes, predicted = list(outcomes), predicted or {}
    vanilla = next(
        (outcome.run for outcome in outcomes if outcome.row.key == "vanilla" and outcome.run), None
    )
    known = _published_vanilla()
    lines = []
    for outcome in outcomes:
        run, reported = outcome.run, published(outcome.row)
        line = {"row": _title(outcome.row)}
        if run is None:
            line["time"] = outcome.reason
        else:
            [seen] = summary(run).to_dict("records")
            line |= {
                "time": seen["time"],
                "samples/s": seen["samples/s"],
                "peak MiB": f"{memory_of(run) / MiB:,.1f}",
            }
            for name in ("allocator_reserved", "whole_device"):
                if name in run.device_bytes:
                    line[f"{name.replace('_', ' ')} MiB"] = f"{run.device_bytes[name] / MiB:,.0f}"
            if vanilla:
                line |= {
                    "time/vanilla": f"{_slowdown(run, vanilla):.2f}",
                    "memory/vanilla": f"{memory_of(run) / memory_of(vanilla):.2f}",
                }
        if reported:
            slower = _ratio(reported.median_seconds, known.median_seconds)
            line["published time"] = "–" if slower is None else f"{slower:.2f}"
            line["published memory"] = (
                f"{(reported.peak_bytes - CONTEXT) / (known.peak_bytes - CONTEXT):.2f}"
            )
        if run and outcome.row.key in predicted:
            line["prediction off by"] = _percent(
                memory_of(predicted[outcome.row.key]) / memory_of(run) - 1
            )
        lines.append(line)
    return pandas.DataFrame(lines).fillna("")


def _percent(error):
    return f"{error:+.1%}".replace("-0.0%", "+0.0%")


def _title(row):
    if row.largest or row.setup.micro_batch == 4:
        return row.key
    return f"{row.key} ({row.setup.micro_batch}x{row.setup.accumulation_steps})"


def prediction_table(rows: Iterable[Row] = ROWS, predictions: Iterable[Run] | None = None):
    """BERT-large's rows predicted beside the published ones (a DataFrame): MiB, with the error against the V100 without its context.

    ValueError: more or fewer predictions than rows.
    """
    import pandas

    rows = list(rows)
    lines = []
    for row, run in zip(rows, predictions or map(predict_row, rows), strict=True):
        reported = published(row)
        reserved = run.device_bytes["allocator_reserved"]
        line = {
            "row": _title(replace(row, setup=run.setup or row.setup, largest=False)),
            "tensors": round(run.peak_bytes / MiB),
            "allocator": round(reserved / MiB),
        }
        line |= {"+ context": round((reserved + CONTEXT) / MiB), "published": "–", "error": "–"}
        if reported:
            line |= {
                "published": f"{reported.peak_bytes / MiB:.0f}",
                "error": _percent(reserved / (reported.peak_bytes - CONTEXT) - 1),
            }
        lines.append(line)
    return pandas.DataFrame(lines)


def plot_table(runs: dict[str, Run]):
    """Memory and time of the rows as ratios to vanilla: bars for these runs (by key), squares for the published ones (a Picture).

    KeyError: no run of vanilla among them.
    """
    from trainlean.pictures.ratios import plot_ratios

    rows, vanilla, known = (
        [row for row in ROWS if row.key in runs],
        runs["vanilla"],
        _published_vanilla(),
    )
    own, reported = [runs[row.key] for row in rows], [published(row) for row in rows]
    memory = [
        (
            memory_of(run) / memory_of(vanilla),
            (there.peak_bytes - CONTEXT) / (known.peak_bytes - CONTEXT) if there else None,
        )
        for run, there in zip(own, reported)
    ]
    time = [
        (_slowdown(run, vanilla), _slowdown(there, known) if there else None)
        for run, there in zip(own, reported)
    ]
    return plot_ratios(
        [row.key for row in rows],
        {"memory / vanilla": memory, "time / vanilla": time},
        text=f"ratios to vanilla: {len(rows)} rows beside the published ones",
        legend="bar: measured here    square: published (V100, 2022; without the CUDA context)",
    )


def _slowdown(run: Run, vanilla: Run) -> float | None:
    """How many times as long as `vanilla` a run takes for each sample; None when either is not timed."""
    return _ratio(vanilla.samples_per_second, run.samples_per_second)


def _ratio(number: float | None, usual: float | None) -> float | None:
    return number / usual if number and usual else None


def _published_vanilla() -> Run:
    [vanilla] = [run for run in published_runs() if run.name == ROWS[0].published]
    return vanilla
