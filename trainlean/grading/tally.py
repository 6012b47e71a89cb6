"""What the class got wrong, and how often: what to teach again."""

from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from trainlean.exercises.exercise import Exercise
from trainlean.exercises.feedback import OUTCOME_COLOURS
from trainlean.exercises.verdicts import OUTCOMES, RIGHT, WRONG
from trainlean.grading.rows import Row
from trainlean.grading.sheets import write_csv

HEADER = ["exercise", "outcome", "mistake", "learners"]  # of the CSV file


def tally(rows: list[Row], exercises: list[Exercise]) -> list[tuple[str, str, str, int]]:
    """(exercise, outcome, mistake, learners): how often each was seen, in course order, the most frequent first."""
    counted = []
    for exercise in exercises:
        seen = Counter(
            (row.verdicts[exercise.name].outcome, row.verdicts[exercise.name].mistake)
            for row in rows
            if exercise.name in row.verdicts
        )
        missing = sum(exercise.name not in row.verdicts for row in rows)
        counted += [
            (exercise.name, outcome, mistake, number)
            for (outcome, mistake), number in sorted(
                seen.items(), key=lambda item: (-item[1], item[0])
            )
        ]
        counted += [(exercise.name, "no notebook", "", missing)] if missing else []
    return counted


def write_tally(path: Path, rows: list[Row], exercises: list[Exercise]) -> None:
    """The tally as a CSV file."""
    write_csv(path, [HEADER, *map(list, tally(rows, exercises))])


def show_class(rows: list[Row], exercises: list[Exercise]) -> None:
    """Print a line for each exercise: how many got it right, and the mistakes that were made most often."""
    counted = tally(rows, exercises)
    outcomes = [outcome for outcome in OUTCOMES if any(line[1] == outcome for line in counted)]
    table = Table("exercise", *outcomes, "most frequent mistakes")
    for exercise in exercises:
        lines = [line for line in counted if line[0] == exercise.name]
        by_outcome: Counter[str] = Counter()
        for _, outcome, _, number in lines:
            by_outcome[outcome] += number
        mistakes = [f"{mistake} ({number})" for _, _, mistake, number in lines if mistake][:3]
        table.add_row(
            exercise.name, *(str(by_outcome[outcome]) for outcome in outcomes), ", ".join(mistakes)
        )
    Console().print(table)


def plot_class(rows: list[Row], exercises: list[Exercise], path: Path) -> None:
    """A picture of the tally: outcomes by exercise, and the mistakes to teach again."""
    from matplotlib.figure import Figure

    lines = tally(rows, exercises)
    mistakes = sorted(
        (
            (number, f"{mistake}  ({name})")
            for name, outcome, mistake, number in lines
            if mistake and outcome == WRONG
        ),
        reverse=True,
    )[:12]
    heights = [max(1, len(exercises)), max(0.1, len(mistakes))]
    figure = Figure(figsize=(9, 1.6 + 0.32 * sum(heights)), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=heights)
    names = [exercise.name for exercise in exercises]
    start = [0] * len(names)
    seen_at_all = {outcome for _, outcome, _, _ in lines}
    for outcome in sorted(
        seen_at_all.intersection(OUTCOMES),
        key=lambda outcome: (outcome != RIGHT, OUTCOMES.index(outcome)),
    ):
        widths = [
            sum(number for name, seen, _, number in lines if name == exercise and seen == outcome)
            for exercise in names
        ]
        above.barh(
            names, widths, left=start, color=OUTCOME_COLOURS.get(outcome, "#9ca3af"), label=outcome
        )
        start = [before + width for before, width in zip(start, widths, strict=True)]
    above.invert_yaxis()
    above.set_title("Outcomes, by exercise", loc="left")
    if seen_at_all:
        above.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.08 - 0.3 / heights[0]),
            ncols=len(OUTCOMES),
            frameon=False,
        )
    below.set_visible(bool(mistakes))
    below.barh(
        [name for _, name in mistakes],
        [number for number, _ in mistakes],
        color=OUTCOME_COLOURS[WRONG],
    )
    below.invert_yaxis()
    below.set_title("The mistakes made most often", loc="left")
    below.set_xlabel("learners")
    for axes in (above, below):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
