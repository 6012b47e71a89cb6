"""Known mistakes in the lesson 2_checkpointing/4_budgets, as edits of its solution."""

from trainlean.exercises.exercise import Mistake

NO_MORE = "    if not results:\n        return 0\n"
FIRST = "(size, flops), rest = results[0], results[1:]"
NOT_KEPT = "fewest = flops + least_recomputation(rest, budget)"
IF_IT_FITS = "if size <= budget:"
KEPT = "min(fewest, least_recomputation(rest, budget - size))"
RECURSION = f"""{NO_MORE}    {FIRST}
    {NOT_KEPT}  # this result is not kept
    {IF_IT_FITS}
        fewest = {KEPT}
    return fewest
"""
ALL_SUBSETS = """    best = []
    for number in range(2 ** len(results)):
        kept = [result for place, result in enumerate(results) if number >> place & 1]
        if sum(size for size, _ in kept) <= budget:
            best = max(best, kept, key=lambda some: sum(flops for _, flops in some))
"""
TABLE = """    saved, total = [0] * (budget + 1), 0
    for size, flops in results:
        total += flops
        for room in range(budget, size - 1, -1):
            saved[room] = max(saved[room], saved[room - size] + flops)
    return total - saved[budget]
"""
UPWARDS = TABLE.replace("range(budget, size - 1, -1)", "range(size, budget + 1)")
BY_BYTES = """    saved_by = {0: 0}  # bytes kept: FLOPs saved
    for size, flops in results:
        for kept, saved in list(saved_by.items()):
            if kept + size <= budget:
                saved_by[kept + size] = saved + flops
    return sum(flops for _, flops in results) - max(saved_by.values())
"""
PER_BYTE = "-result[1] / (result[0] or 1e-9)"


def kept_by(order: str) -> dict:
    """Keeps one result after the other as long as there is room, those with the least `order` first."""
    return {
        RECURSION: f"""    recomputed = 0
    for size, flops in sorted(results, key=lambda result: {order}):
        if size <= budget:
            budget -= size
        else:
            recomputed += flops
    return recomputed
"""
    }


def taken_out(result: str) -> dict:
    """Takes a result out of the list that was given, and hands copies of what is left to the two calls."""
    return {
        FIRST: f"size, flops = {result}",
        NOT_KEPT: NOT_KEPT.replace("rest", "results[:]"),
        KEPT: KEPT.replace("rest", "results[:]"),
    }


BY_VALUE = f"""{ALL_SUBSETS}    return sum(flops for size, flops in results if (size, flops) not in best)
"""

least_recomputation = (
    Mistake(
        "equal results taken for one",
        {RECURSION: BY_VALUE},
        {RECURSION: f"    results = list(dict.fromkeys(results))\n{RECURSION}"},
        why="Two results of the same size and price are two: when one of them is kept, the other must still be computed again.",
        hint="How many results does your function see, or take for kept, in [(50, 50), (50, 50)] when one of them fits?",
    ),
    Mistake(
        "greedy by FLOPs per byte",
        {RECURSION: "    return greedy([result for result in results if result[0] > 0], budget)\n"},
        {
            RECURSION: f"""    recomputed = sum(flops for _, flops in results)
    for size, flops in sorted(results, key=lambda result: {PER_BYTE}):
        if size > budget:
            break
        budget -= size
        recomputed -= flops
    return recomputed
"""
        },
        why="The result with the most FLOPs for a byte may leave room that nothing fills; two others, each a little worse, can together save more.",
        hint="Which results are kept in the example above, and how many bytes of the budget are left unused?",
    ),
    Mistake(
        "greedy by size",
        kept_by("result[0]"),
        kept_by("-result[0]"),
        why="The bytes of a result say nothing about what it costs to compute it again: many small, cheap results can take the room of an expensive one, and one large result that of two.",
        hint="Which of two results with equally many bytes would you rather keep, and does your rule see it?",
    ),
    Mistake(
        "as many results as fit",
        {
            RECURSION: ALL_SUBSETS.replace("sum(flops for", "(len(some), sum(flops for").replace(
                "in some))", "in some)))"
            )
            + "    return sum(flops for _, flops in results) - sum(flops for _, flops in best)\n"
        },
        {
            RECURSION: ALL_SUBSETS.replace("lambda some: sum(flops for _, flops in some)", "len")
            + "    return sum(flops for _, flops in results) - sum(flops for _, flops in best)\n"
        },
        {
            RECURSION: """    best = []
    for number in range(2 ** len(results)):
        kept = [result for place, result in enumerate(results) if number >> place & 1]
        if sum(size for size, _ in kept) <= budget and len(kept) >= len(best):
            best = kept
    return sum(flops for _, flops in results) - sum(flops for _, flops in best)
"""
        },
        why="How many results are kept says nothing about what they cost: one expensive result can be worth more than several cheap ones that fit into the same bytes.",
        hint="In 100 bytes: one result of 95 bytes and 40 FLOPs, or two of 30 bytes and 1 FLOP each?",
    ),
    Mistake(
        "greedy by FLOPs",
        kept_by("-result[1]"),
        why="The most expensive result may fill the budget alone where several others, together more expensive, would fit.",
        hint="In 100 bytes: one result of 60 bytes and 66 FLOPs, or two of 50 bytes and 50 FLOPs each?",
    ),
    Mistake(
        "the better of two rules",
        {
            RECURSION: f"""    def rule(order):
        left, recomputed = budget, 0
        for size, flops in sorted(results, key=order):
            if size <= left:
                left -= size
            else:
                recomputed += flops
        return recomputed

    return min(rule(lambda result: {PER_BYTE}), rule(lambda result: -result[1]))
"""
        },
        why="Each rule keeps what looks best first, and both can miss the best choice on the same results.",
        hint="Which results does each of your two rules keep in the lesson's example, and which are best?",
    ),
    Mistake(
        "kept in the order of the list",
        {KEPT: "least_recomputation(rest, budget - size)"},
        why="Whatever fits is kept at once, without a look at what its bytes could hold instead.",
        hint="Which two numbers must be compared before you know whether the first result is worth its bytes?",
    ),
    Mistake(
        "the budget not reduced",
        {"budget - size": "budget"},
        why="Each result is compared with the whole budget, so everything that fits alone is kept, and together they take more bytes than there are.",
        hint="How many bytes are left for the others when the first result is kept?",
    ),
    Mistake(
        "what is kept, not what is recomputed",
        {
            NOT_KEPT: "fewest = least_recomputation(rest, budget)",
            KEPT: "max(fewest, flops + least_recomputation(rest, budget - size))",
        },
        why="These are the most FLOPs that can be spared. The choice is the right one, but the FLOPs of the other results were asked for.",
        hint="When everything fits, how many FLOPs are computed again?",
    ),
    Mistake(
        "strictly smaller than the budget",
        {IF_IT_FITS: "if size < budget:"},
        why="The results may take as many bytes as the budget has; one that fills it exactly fits.",
        hint="Is it < or <= ?",
    ),
    Mistake(
        "results of no bytes not kept",
        {IF_IT_FITS: "if 0 < size <= budget:"},
        {
            NO_MORE: """    if not results or budget == 0:
        return sum(flops for _, flops in results)
"""
        },
        why="A result of 0 bytes costs nothing to keep, whatever the budget, and spares its FLOPs.",
        hint="What is there to lose when a result of 0 bytes is kept?",
    ),
    Mistake(
        "nothing is kept",
        {"min(fewest": "max(fewest"},
        why="These are the FLOPs of all results, as if none were kept: the most that can be recomputed, not the fewest.",
        hint="What should the answer be when the budget is larger than all results together?",
    ),
    Mistake(
        "the list of results changed",
        {NO_MORE: f"    results.sort()\n{NO_MORE}"},
        {FIRST: "(size, flops), rest = results.pop(0), results"},
        taken_out("results.pop(0)"),
        taken_out("results.pop()"),
        {
            RECURSION: TABLE.replace("for size, flops in results:", "while results:").replace(
                "total +=", "size, flops = results.pop()\n        total +="
            )
        },
        why="A list that a function is given is the caller's own: sort() and pop() change it there, for whoever asks again, and for a second recursive call that is handed the same list.",
        hint="Which of your lines changes the list itself, and which expression would give a new one?",
    ),
    Mistake(
        "the results returned",
        {RECURSION: f"{ALL_SUBSETS}    return best\n"},
        {RECURSION: f"{ALL_SUBSETS}    return sum(flops for _, flops in results), best\n"},
        why="One number was asked for, the FLOPs of what is not kept: two choices may be equally good, so the results themselves tell nothing.",
        hint="Which number would you compare two choices by?",
    ),
    Mistake(
        "FLOPs per byte added up",
        {NOT_KEPT: NOT_KEPT.replace("flops +", "(flops / size if size else flops) +")},
        why="FLOPs per byte order results; what a choice costs is the FLOPs of the results that are not kept, whatever their bytes.",
        hint="What is paid in the backward pass for one result that was not kept?",
    ),
    Mistake(
        "bytes or results counted, not FLOPs",
        {NOT_KEPT: NOT_KEPT.replace("flops +", "size +")},
        {NOT_KEPT: NOT_KEPT.replace("flops +", "1 +")},
        {
            RECURSION: ALL_SUBSETS.replace("flops for _, flops in some", "size for size, _ in some")
            + "    return sum(flops for _, flops in results) - sum(flops for _, flops in best)\n"
        },
        why="The bytes only have to stay within the budget, and the number of results is free; what shall be least are the FLOPs.",
        hint="Which of the two numbers of a result is the limit, and which one the price?",
    ),
    Mistake(
        "divided by 0",
        {RECURSION: "    return greedy(results, budget)\n"},
        why="Bytes, FLOPs, the budget and the number of results may be 0, and nothing can be divided by 0. Whoever only keeps the results in an order, such as that of FLOPs per byte, does not always make the best choice, either.",
        hint="Which of your divisors may be 0? Which results are always kept, and do the others have to be in an order at all?",
    ),
    Mistake(
        "a part of a result kept",
        {
            RECURSION: f"""    recomputed = sum(flops for _, flops in results)
    for size, flops in sorted(results, key=lambda result: {PER_BYTE}):
        part = min(1, budget / size) if size else 1
        recomputed -= part * flops
        budget -= part * size
    return recomputed
"""
        },
        why="A result is kept whole or not at all: a part of it in memory is of no use, and all of it is computed again.",
        hint="Is your answer always a whole number?",
    ),
    Mistake(
        "one result kept several times",
        {RECURSION: UPWARDS},
        {RECURSION: UPWARDS.replace("total - saved[budget]", "max(0, total - saved[budget])")},
        why="A result may be kept more than once here, as in a table that is filled from small budgets to large ones.",
        hint="Can your function save more than all results cost together, and how often may it keep the first one?",
    ),
    Mistake(
        "a later choice preferred to a better one",
        {RECURSION: BY_BYTES},
        {
            RECURSION: TABLE.replace(
                "max(saved[room], saved[room - size] + flops)", "saved[room - size] + flops"
            )
        },
        why="For the same bytes the result that comes later in the list goes before what could be kept in its place, also where that saves more: the two are never compared.",
        hint="Which two numbers must be compared before a result takes its bytes, in a table or without one?",
    ),
    Mistake(
        "bytes and FLOPs exchanged",
        {FIRST: "(flops, size), rest = results[0], results[1:]"},
        why="A result is a pair of bytes and FLOPs, in this order; the other way round FLOPs are compared with a budget of bytes.",
        hint="Which of a result's two numbers comes first?",
    ),
    Mistake(
        "answers remembered for other results",
        {
            "(results, budget):": "(results, budget, known={}):",
            NO_MORE: f"""{NO_MORE}    if (len(results), budget) in known:
        return known[len(results), budget]
""",
            "return fewest": "known[len(results), budget] = fewest\n    return fewest",
        },
        why="A later call is given what an earlier one has remembered for another list: a default value, for instance, is made only once.",
        hint="How long does your dictionary live, and what else must its keys hold?",
    ),
)
