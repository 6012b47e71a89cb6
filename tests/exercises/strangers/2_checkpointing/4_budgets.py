# %% least_recomputation: right
def least_recomputation(results, budget):
    from itertools import combinations

    total = sum(flops for _, flops in results)
    saved = 0
    for count in range(len(results) + 1):
        for kept in combinations(results, count):
            if sum(size for size, _ in kept) <= budget:
                saved = max(saved, sum(flops for _, flops in kept))
    return total - saved


# %% least_recomputation: right
def least_recomputation(results, budget):
    """All sets of results as the bits of a number."""
    best = None
    mask = 0
    while mask < 1 << len(results):
        size = flops = 0
        for i, (bytes_, cost) in enumerate(results):
            if mask >> i & 1:
                size += bytes_
            else:
                flops += cost
        if size <= budget and (best is None or flops < best):
            best = flops
        mask += 1
    return best


# %% least_recomputation: right
def least_recomputation(results, budget):
    table = {0: 0}  # bytes that are taken: most FLOPs that are spared
    for size, flops in results:
        new = dict(table)
        for taken, spared in table.items():
            if taken + size <= budget:
                new[taken + size] = max(new.get(taken + size, 0), spared + flops)
        table = new
    return sum(pair[1] for pair in results) - max(table.values())


# %% least_recomputation: right
class Knapsack:
    def __init__(self, results):
        self.results = tuple(results)

    def solve(self, i, steps):
        from functools import lru_cache

        @lru_cache(None)
        def go(number, left):
            if number == len(self.results):
                return 0
            size, flops = self.results[number]
            leave = go(number + 1, left) + flops
            if size > left:
                return leave
            return min(leave, go(number + 1, left - size))

        return go(i, steps)


def least_recomputation(results, budget):
    return Knapsack(results).solve(0, budget)


# %% least_recomputation: right
def least_recomputation(results, budget):
    """Row by row, from the fullest budget downwards."""
    best = [0] * (budget + 1)
    for size, flops in results:
        for room in range(budget, size - 1, -1):
            best[room] = max(best[room], best[room - size] + flops)
    return sum(flops for size, flops in results) - best[-1]


# %% least_recomputation: wrong, greedy by FLOPs per byte
# The most FLOPs for a byte first.
def least_recomputation(results, budget):
    again = 0
    for size, flops in sorted(results, key=lambda r: -r[1] / r[0] if r[0] else float("-inf")):
        if size <= budget:
            budget = budget - size
        else:
            again = again + flops
    return again


# %% least_recomputation: wrong, greedy by FLOPs
# The most expensive results first.
def least_recomputation(results, budget):
    again = 0
    for size, flops in sorted(results, key=lambda pair: pair[1], reverse=True):
        if budget >= size:
            budget -= size
            continue
        again += flops
    return again


# %% least_recomputation: wrong, greedy by size
# The smallest results first.
def least_recomputation(results, budget):
    again = 0
    for size, flops in sorted(results):
        if size > budget:
            again += flops
        else:
            budget -= size
    return again


# %% least_recomputation: wrong, kept in the order of the list
# In the order in which they stand.
def least_recomputation(results, budget):
    again = 0
    for size, flops in results:
        if size > budget:
            again += flops
        else:
            budget -= size
    return again


# %% least_recomputation: wrong, one result kept several times
# Filled upwards, so a result may be kept several times.
def least_recomputation(results, budget):
    best = [0] * (budget + 1)
    for size, flops in results:
        for room in range(size, budget + 1):
            best[room] = max(best[room], best[room - size] + flops)
    return sum(flops for size, flops in results) - best[budget]


# %% least_recomputation: wrong, what is kept, not what is recomputed
# The FLOPs that are spared are returned, not those that are left to do.
def least_recomputation(results, budget):
    if not results:
        return 0
    size, flops = results[-1]
    without = least_recomputation(results[:-1], budget)
    if size > budget:
        return without
    return max(without, flops + least_recomputation(results[:-1], budget - size))


# %% least_recomputation: wrong, strictly smaller than the budget
# What fills the budget exactly is taken not to fit.
def least_recomputation(results, budget):
    best = sum(flops for _, flops in results)
    for mask in range(2 ** len(results)):
        kept = [r for i, r in enumerate(results) if mask & (1 << i)]
        left = [r for i, r in enumerate(results) if not mask & (1 << i)]
        if sum(r[0] for r in kept) < budget:
            best = min(best, sum(r[1] for r in left))
    return best


# %% least_recomputation: wrong, the list of results changed
# The results are taken out of the learner's own list.
def least_recomputation(results, budget):
    if len(results) == 0:
        return 0
    size, flops = results.pop()
    best = flops + least_recomputation(list(results), budget)
    if size <= budget:
        best = min(best, least_recomputation(list(results), budget - size))
    return best


# %% least_recomputation: wrong, the list of results changed
# The list is sorted in place.
def least_recomputation(results, budget):
    results.sort(reverse=True)

    def search(i, left):
        if i == len(results):
            return 0
        again = results[i][1] + search(i + 1, left)
        if results[i][0] <= left:
            again = min(again, search(i + 1, left - results[i][0]))
        return again

    return search(0, budget)


# %% least_recomputation: wrong, a part of a result kept
# Parts of a result are kept where the whole does not fit.
def least_recomputation(results, budget):
    again = 0
    for size, flops in sorted(results, key=lambda r: -r[1] / (r[0] or 1e-9)):
        if size <= budget:
            budget -= size
        else:
            again += flops * (size - budget) / size
            budget = 0
    return again


# %% least_recomputation: wrong, results of no bytes not kept
# With an empty budget everything is recomputed, also what has no bytes.
def least_recomputation(results, budget):
    if not results or budget == 0:
        return sum(flops for _, flops in results)
    (size, flops), *rest = results
    best = flops + least_recomputation(rest, budget)
    if size <= budget:
        best = min(best, least_recomputation(rest, budget - size))
    return best


# %% least_recomputation: wrong, kept in the order of the list
# A result that fits is always kept.
def least_recomputation(results, budget):
    if not results:
        return 0
    (size, flops), *rest = results
    if size <= budget:
        return least_recomputation(rest, budget - size)
    return flops + least_recomputation(rest, budget)


# %% least_recomputation: wrong, bytes or results counted, not FLOPs
# Most bytes are kept, not most FLOPs.
def least_recomputation(results, budget):
    best, answer = -1, 0
    for mask in range(2 ** len(results)):
        size = sum(r[0] for i, r in enumerate(results) if mask >> i & 1)
        if best < size <= budget:
            best = size
            answer = sum(r[1] for i, r in enumerate(results) if not mask >> i & 1)
    return answer


# %% least_recomputation: wrong, bytes and FLOPs exchanged
# Bytes and FLOPs of a pair are taken the wrong way round.
def least_recomputation(results, budget):
    if not results:
        return 0
    (flops, size), *rest = results
    best = flops + least_recomputation(rest, budget)
    if size <= budget:
        best = min(best, least_recomputation(rest, budget - size))
    return best


# %% least_recomputation: wrong
# the better of two greedy orders
def least_recomputation(results, budget):
    def greedy(key):
        room, lost = budget, 0
        for size, flops in sorted(results, key=key, reverse=True):
            if size <= room:
                room -= size
            else:
                lost += flops
        return lost

    return min(
        greedy(lambda r: r[1]),
        greedy(lambda r: r[1] / r[0] if r[0] else float("inf")),
        greedy(lambda r: -r[0]),
    )


# %% least_recomputation: wrong, one result kept several times
# the table is filled upwards, so a result can be kept several times
def least_recomputation(results, budget):
    table = [0] * (budget + 1)
    for size, flops in results:
        if size == 0:
            table = [value + flops for value in table]
            continue
        for room in range(size, budget + 1):
            table[room] = max(table[room], table[room - size] + flops)
    return max(0, sum(flops for _, flops in results) - table[budget])


# %% least_recomputation: right
from itertools import product


def least_recomputation(results, budget):
    def price(kept):
        return sum(flops for (_, flops), keep in zip(results, kept) if not keep)

    def chain(kept):
        return sum(size for (size, _), keep in zip(results, kept) if keep)

    choices = product((True, False), repeat=len(results))
    return min(price(kept) for kept in choices if chain(kept) <= budget)


# %% least_recomputation: wrong, as many results as fit
# as many as fit, and of these choices the best
def least_recomputation(results, budget):
    import itertools

    for n in range(len(results), -1, -1):
        fits = [c for c in itertools.combinations(results, n) if sum(s for s, _ in c) <= budget]
        if fits:
            return sum(f for _, f in results) - max(sum(f for _, f in c) for c in fits)


# %% least_recomputation: wrong, as many results as fit
# the last of the choices with the most results
def least_recomputation(results, budget):
    most, answer = -1, 0
    for mask in range(1 << len(results)):
        kept = [i for i in range(len(results)) if mask >> i & 1]
        if sum(results[i][0] for i in kept) <= budget and len(kept) >= most:
            most = len(kept)
            answer = sum(f for i, (_, f) in enumerate(results) if i not in kept)
    return answer


# %% least_recomputation: wrong, greedy by size
# the most results, and of these the fewest bytes
def least_recomputation(results, budget):
    from itertools import combinations

    fitting = [
        c
        for n in range(len(results) + 1)
        for c in combinations(results, n)
        if sum(s for s, _ in c) <= budget
    ]
    kept = max(fitting, key=lambda c: (len(c), -sum(s for s, _ in c)))
    return sum(f for _, f in results) - sum(f for _, f in kept)


# %% least_recomputation: wrong, equal results taken for one
def least_recomputation(results, budget):
    best = sum(f for _, f in results)
    for r in range(len(results) + 1):
        for kept in combinations(results, r):
            if sum(s for s, _ in kept) <= budget:
                best = min(best, sum(x[1] for x in results if x not in kept))
    return best


from itertools import combinations


# %% least_recomputation: right
def least_recomputation(results, budget):
    front = {0: 0}
    for size, flops in results:
        step = dict(front)
        for used, saved in front.items():
            if used + size <= budget:
                step[used + size] = max(step.get(used + size, 0), saved + flops)
        front = step
    return sum(flops for _, flops in results) - max(front.values())


# %% least_recomputation: right
def least_recomputation(results, budget):
    results = [r for r in results if r[0] > 0]
    best = sum(f for _, f in results)
    for mask in range(2 ** len(results)):
        size = sum(s for i, (s, _) in enumerate(results) if mask >> i & 1)
        if 0 < size <= budget:
            best = min(best, sum(f for i, (_, f) in enumerate(results) if not mask >> i & 1))
    return best


# %% least_recomputation: wrong
# all or none of the best single result: only one is kept
def least_recomputation(results, budget):
    total = sum(f for _, f in results)
    return total - max((f for s, f in results if s <= budget), default=0)


# %% least_recomputation: wrong, a later choice preferred to a better one
# the least price for so many bytes is replaced by whatever comes last
def least_recomputation(results, budget):
    prices = {0: sum(flops for _, flops in results)}
    for size, flops in results:
        for used, price in tuple(prices.items()):
            if used + size <= budget:
                prices[used + size] = price - flops
    return min(prices.values())


# %% least_recomputation: wrong, a later choice preferred to a better one
# from the last result on, each that fits is kept
def least_recomputation(results, budget):
    if not results:
        return 0
    *rest, (size, flops) = results
    if size <= budget:
        return least_recomputation(rest, budget - size)
    return flops + least_recomputation(rest, budget)


# %% least_recomputation: wrong, kept in the order of the list
# from the first result on, each that fits is kept
def least_recomputation(results, budget):
    if not results:
        return 0
    (size, flops), *rest = results
    if size <= budget:
        return least_recomputation(rest, budget - size)
    return flops + least_recomputation(rest, budget)


# %% least_recomputation: wrong, divided by 0
# bytes per FLOP
def least_recomputation(results, budget):
    lost = 0
    for size, flops in sorted(results, key=lambda result: result[0] / result[1]):
        if size <= budget:
            budget -= size
        else:
            lost += flops
    return lost


# %% least_recomputation: wrong, divided by 0
# the share of a budget that may be 0
def least_recomputation(results, budget):
    total = sum(f for _, f in results)
    return total - sum(f for s, f in results if s / budget <= 1)


# %% least_recomputation: wrong, divided by 0
# the mean of an empty list
def least_recomputation(results, budget):
    mean = sum(f for _, f in results) / len(results)
    lost = 0
    for size, flops in results:
        if size <= budget and flops >= mean:
            budget -= size
        else:
            lost += flops
    return lost
