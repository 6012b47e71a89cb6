"""What must be seen in the lesson 2_checkpointing/4_budgets: the best of all choices."""

from itertools import product

from .probes import draw_questions, name_question


def least_recomputation(seed):
    """By trying all subsets of the results."""
    shown = {}
    for results, budget in draw_questions(seed):
        fewest = min(
            sum(flops for (_, flops), kept in zip(results, choice, strict=True) if not kept)
            for choice in product((False, True), repeat=len(results))
            if sum(size for (size, _), kept in zip(results, choice, strict=True) if kept) <= budget
        )
        case = name_question(results, budget)
        shown[f"what is returned ({case})"] = "a number"
        shown[f"the number of FLOPs ({case})"] = fewest
        shown[f"whether the list of results is as it was ({case})"] = True
        shown[f"the number of FLOPs, asked again with the same list ({case})"] = fewest
    return shown
