"""The exercise of the lesson 2_checkpointing/4_budgets."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import ALL_SUBSETS, RECURSION, TABLE

EXERCISES = (
    Exercise(
        name="least_recomputation",
        points=3,
        probe=probes.least_recomputation,
        oracle=oracles.least_recomputation,
        truth="the right one",
        mistakes=mistakes.least_recomputation,
        hints=(
            "The first result is kept or it is not: what is left to choose in each of the two cases, and in how many bytes?",
            "Not kept: flops + least_recomputation(rest, budget). Kept, which needs size <= budget: least_recomputation(rest, budget - size).",
            "The answer is the smaller of these two numbers, and 0 when there are no results left. Take rest = results[1:], which leaves the list as it is.",
        ),
        also_right=(
            {
                RECURSION: f"{ALL_SUBSETS}    return sum(flops for _, flops in results) - sum(flops for _, flops in best)\n"
            },
            {RECURSION: TABLE},
            {
                RECURSION: """    choices = {0: 0}  # bytes kept: FLOPs recomputed
    for size, flops in results:
        without = {kept: price + flops for kept, price in choices.items()}
        for kept, price in choices.items():
            if kept + size <= budget:
                without[kept + size] = min(price, without.get(kept + size, float("inf")))
        choices = without
    return min(choices.values())
"""
            },
        ),
    ),
)
