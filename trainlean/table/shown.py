"""The measured and the predicted rows beside the published ones: as tables and as a picture."""

from collections.abc import Iterable
from dataclasses import replace

from trainlean.costs.runs import MiB, Run
from trainlean.table.measured import Outcome
from trainlean.table.rows import CONTEXT, ROWS, Row, predict_row, published


def memory_of(run: Run) -> int:
    """The memory to compare in a table: what the card's allocator handed out at most, else the bytes of the tensors."""
    return run.device_bytes.get("allocator_peak", run.peak_bytes)


def measured_table(outcomes: Iterable[Outcome], predicted: dict[str, Run] | None = None):
    """Time, samples/second and memory of each row, with ratios to vanilla beside the published ratios (a DataFrame).

    Published ratios of memory are taken without the CUDA context. `predicted` maps a row's key to its prediction, whose
    distance from the measured memory is then the last column.
    """
    import pandas

    from trainlean.costs.runs import summary

    outcomes, predicted = list(outcomes), predicted or {}
    vanilla = next(
        (outcome.run for outcome in outcomes if outcome.row.key == "vanilla" and outcome.run), None
    )
    known = published(ROWS[0])
    lines = []
    for outcome in outcomes:
        run, told = outcome.run, published(outcome.row)
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
                pace = vanilla.samples_per_second / run.samples_per_second
                line |= {
                    "time/vanilla": f"{pace:.2f}",
                    "memory/vanilla": f"{memory_of(run) / memory_of(vanilla):.2f}",
                }
        if told:
            line["published time"] = (
                f"{told.median_seconds / known.median_seconds:.2f}" if told.seconds else "–"
            )
            line["published memory"] = (
                f"{(told.peak_bytes - CONTEXT) / (known.peak_bytes - CONTEXT):.2f}"
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
    """BERT-large's rows predicted beside the published ones (a DataFrame): MiB, with the error against the V100 without its context."""
    import pandas

    rows = list(rows)
    lines = []
    for row, run in zip(rows, predictions or map(predict_row, rows), strict=True):
        told = published(row)
        reserved = run.device_bytes["allocator_reserved"]
        line = {
            "row": _title(replace(row, setup=run.setup, largest=False)),
            "tensors": round(run.peak_bytes / MiB),
            "allocator": round(reserved / MiB),
        }
        line |= {"+ context": round((reserved + CONTEXT) / MiB), "published": "–", "error": "–"}
        if told:
            line |= {
                "published": f"{told.peak_bytes / MiB:.0f}",
                "error": _percent(reserved / (told.peak_bytes - CONTEXT) - 1),
            }
        lines.append(line)
    return pandas.DataFrame(lines)


def plot_table(runs: dict[str, Run]):
    """Memory and time of the rows as ratios to vanilla: bars for these runs (by key), squares for the published ones."""
    from trainlean.pictures.style import INK, LINES, Picture, course_style

    keys = [row.key for row in ROWS if row.key in runs]
    rows, vanilla, known = {row.key: row for row in ROWS}, runs["vanilla"], published(ROWS[0])
    with course_style():
        picture = Picture(
            8.4,
            1.05 + 0.3 * len(keys),
            f"ratios to vanilla: {len(keys)} rows beside the published ones",
        )
        height = picture.get_figheight()
        left, right = picture.subplots(1, 2, sharey=True)
        picture.subplots_adjust(
            left=0.19, right=0.98, bottom=0.5 / height, top=1 - 0.4 / height, wspace=0.08
        )
        panels = (
            (
                left,
                "memory / vanilla",
                LINES[1],
                lambda run: memory_of(run) / memory_of(vanilla),
                lambda told: (told.peak_bytes - CONTEXT) / (known.peak_bytes - CONTEXT),
            ),
            (right, "time / vanilla", LINES[3], _pace(vanilla), _pace(known)),
        )
        for axes, title, colour, ours, theirs in panels:
            for place, key in enumerate(keys):
                if (ratio := ours(runs[key])) is not None:
                    axes.barh(place, ratio, height=0.62, color=colour)
                told = published(rows[key])
                if told and theirs(told) is not None:
                    axes.plot(theirs(told), place, "s", ms=6, mfc="white", mec=INK, clip_on=False)
            axes.axvline(1, color=INK, lw=0.8, ls=":")
            axes.set_title(title)
            axes.set_xlim(left=0)
        left.set_yticks(range(len(keys)), keys)
        left.set_ylim(len(keys) - 0.4, -0.6)
        for axes in (left, right):
            axes.tick_params(axis="y", length=0, labelcolor=INK)
        picture.text(
            0.19,
            0.1 / height,
            "bar: measured here    square: published (V100, 2022; without the CUDA context)",
            size=8.5,
        )
    return picture


def _pace(vanilla):
    """A function: how many times as long as `vanilla` a run takes for each sample; None when either is not timed."""
    return lambda run: (
        vanilla.samples_per_second / run.samples_per_second
        if vanilla.samples_per_second and run.samples_per_second
        else None
    )
