"""What must be seen in the lesson 4_whole_picture/1_published_table: every way tried."""

from .probes import cases, draw_rows, questions, titles


def ratios(seed):
    """Time for one sample, and memory that the training itself takes, both in units of the first row's."""
    rows, context = draw_rows(seed)
    shown = {"the number of pairs": len(rows)}
    vanilla = rows[0]
    for number, row in enumerate(rows):
        memory_ratio, time_ratio = titles(number, rows)
        shown[memory_ratio] = (row["memory"] - context) / (vanilla["memory"] - context)
        shown[time_ratio] = (row["seconds"] / row["samples"]) / (
            vanilla["seconds"] / vanilla["samples"]
        )
    return shown | {"whether the rows are as they were": True}


def largest_micro_batch(seed):
    """Tries every way of cutting the effective batch into equal parts, the largest parts first."""
    shown = {}
    for case, peak, effective, budget, context in cases(seed):
        fits = [
            steps
            for steps in range(1, effective + 1)
            if effective % steps == 0 and peak(effective // steps) + context <= budget
        ]
        shown[f"(micro-batch, accumulation steps) {case}"] = str(
            (effective // fits[0], fits[0]) if fits else (0, 0)
        )
    return shown


def choose_row(seed):
    """Walks down the rows by speed until one fits."""
    shown = {}
    for case, rows, budget, context in questions(seed):
        timed = sorted((row for row in rows if row["speed"]), key=lambda row: -row["speed"])
        shown[f"the choice {case}"] = next(
            (row["name"] for row in timed if row["memory"] + context <= budget), None
        )
    return shown | {"whether the rows are as they were": True}
