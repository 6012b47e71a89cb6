"""The exercises of the lesson 4_whole_picture/1_published_table."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import FITS, PAIR, SIZES, TIME

# ---------------------------------------------------------------- other right ways


def largest_of_all(peak, effective_batch, budget, context):
    """All divisors that fit, and the largest of them."""
    sizes = [
        size
        for size in range(1, effective_batch + 1)
        if not effective_batch % size and peak(size) <= budget - context
    ]
    return [max(sizes), effective_batch // max(sizes)] if sizes else [0, 0]


def sorted_rows(rows, budget, context):
    """Down the rows by speed until one fits."""
    for row in sorted(rows, key=lambda row: row["speed"] or 0, reverse=True):
        if row["speed"] and row["memory"] <= budget - context:
            return row["name"]
    return None


# ---------------------------------------------------------------- the exercises

EXERCISES = (
    Exercise(
        name="ratios",
        points=2,
        probe=probes.ratios,
        oracle=oracles.ratios,
        mistakes=mistakes.ratios,
        hints=(
            "What do the rows share that no training caused, and what differs between them that is no speed?",
            "Take the context from both memories before you divide; divide seconds by samples before you compare.",
            "(row seconds / row samples) / (vanilla seconds / vanilla samples), (row memory - context) / (vanilla memory - context).",
        ),
        also_right=(
            {
                TIME: '(vanilla["samples"] / vanilla["seconds"]) / (row["samples"] / row["seconds"])',
                PAIR: "append([time, memory])",
            },
        ),
    ),
    Exercise(
        name="largest_micro_batch",
        points=2,
        probe=probes.largest_micro_batch,
        oracle=oracles.largest_micro_batch,
        truth="the right answer",
        mistakes=mistakes.largest_micro_batch,
        hints=(
            "Which micro-batches are possible at all, if the effective batch must stay what it is?",
            "Go through the divisors of the effective batch from the largest down; stop at the first that fits with the context.",
            "for size in range(effective_batch, 0, -1): if effective_batch % size == 0 and peak(size) + context <= budget: return size, effective_batch // size",
        ),
        also_right=(
            {
                SIZES: "reversed(range(1, 1 + effective_batch))",
                FITS: "peak(micro_batch) <= budget - context",
            },
            largest_of_all,
        ),
    ),
    Exercise(
        name="choose_row",
        points=2,
        probe=probes.choose_row,
        oracle=oracles.choose_row,
        mistakes=mistakes.choose_row,
        hints=(
            "For which two reasons can a row not be chosen at all?",
            "Keep the timed rows whose memory and context are at most the budget; take the one with the highest speed.",
            "max(fitting, key=lambda row: row['speed'])['name'], and None when fitting is empty.",
        ),
        also_right=({'row["speed"] is not None and': 'row["speed"] and'}, sorted_rows),
    ),
)
