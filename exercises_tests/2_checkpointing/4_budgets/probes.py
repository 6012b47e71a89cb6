"""The questions of the lesson 2_checkpointing/4_budgets."""

from numbers import Real

import numpy as np


def draw_questions(seed):
    """(results, budget): small ones on which rules of thumb fail, then all results that a lesson allows, and the edges.

    No list is in the order of its bytes, its FLOPs or its FLOPs per byte, so that one that was sorted looks changed.
    """
    random = np.random.default_rng(seed)
    byte, flop = (int(number) for number in random.integers(2, 10, 2))
    small = [
        [(50, 50), (60, 66), (50, 50)],  # the most FLOPs for a byte leave no room for the rest
        [(40, 45), (100, 60), (50, 50)],  # what is most expensive leaves no room for the rest
        # Two small ones leave no room for what is expensive; who goes through the list from either end keeps a large one.
        [(95, 40), (20, 3), (10, 1), (92, 35)],
        [(60, 50), (70, 20), (60, 50)],  # of two that are equal one is kept and one is not
        # No order finds the best here (the third, fourth and fifth), not even one from which a result is kept beforehand.
        [(12, 17), (47, 60), (13, 54), (46, 44), (41, 56), (35, 22)],
    ]
    for results in small:
        yield [(byte * size, flop * flops) for size, flops in results], 100 * byte
    for count in (12, 11):
        sizes, flops = random.permutation(100)[:count], random.permutation(200)[:count]
        results = [
            (int(size) + 1, int(price) + 1) for size, price in zip(sizes, flops, strict=True)
        ]
        yield results, int(0.4 * sum(size for size, _ in results))
    results = results[:8]
    everything = sum(size for size, _ in results)
    yield results, everything
    yield results, everything + byte
    yield results, 0
    yield [(0, 3 * flop), (7 * byte, 5 * flop), (0, flop)], 0
    yield [(0, 3 * flop), (7 * byte, 5 * flop), (0, flop), (4 * byte, 0)], 7 * byte
    yield [], 0
    yield [], 100 * byte


def name_question(results, budget):
    return f"budget {budget}, results {results}"


def least_recomputation(answer, seed):
    """Each list is asked about twice: who has changed it gets another answer the second time."""
    shown = {}
    for results, budget in draw_questions(seed):
        given, case = list(results), name_question(results, budget)
        got = answer(given, budget)
        as_it_was = given == results
        again = answer(given, budget)
        if not isinstance(got, Real):
            kind = "nothing" if got is None else f"of type {type(got).__name__}"
            shown[f"what is returned ({case})"] = kind
            continue
        shown[f"what is returned ({case})"] = "a number"
        shown[f"the number of FLOPs ({case})"] = got
        shown[f"whether the list of results is as it was ({case})"] = as_it_was
        shown[f"the number of FLOPs, asked again with the same list ({case})"] = again
    return shown
