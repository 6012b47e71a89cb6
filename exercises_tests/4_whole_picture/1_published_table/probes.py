"""The questions of the lesson 4_whole_picture/1_published_table."""

import numpy as np

from exercises_tests.probing.toys import as_it_was

# ---------------------------------------------------------------- ratios


def draw_rows(seed):
    """A table as a driver would report it: seconds, samples and megabytes with the context in them; the first row is vanilla."""
    random = np.random.default_rng(seed)
    context = int(random.integers(400, 1900))
    own = int(random.integers(6000, 10000))
    memories = [
        own,
        *(int(own * random.uniform(*limits)) for limits in ((0.3, 0.9), (1.1, 1.6))),
        int(context * random.uniform(0.3, 0.8)),  # less than the context itself
    ]  # vanilla is neither the leanest nor the largest
    rows = [
        {
            "name": f"row {number}",
            "seconds": float(random.uniform(20, 90)),
            "samples": int(64 * random.integers(2, 9)),
            "memory": context + memory,
        }
        for number, memory in enumerate(memories)
    ]
    rows[3]["name"] = rows[0]["name"]  # as a table has it that was measured twice
    rows[1]["samples"] = rows[0]["samples"]
    rows[2]["samples"] = rows[0]["samples"] + 64
    return rows, context


def ratios(answer, seed):
    rows, context = draw_rows(seed)
    given = [dict(row) for row in rows]
    got = answer(given, context)
    if not isinstance(got, (list, tuple)):
        raise TypeError(
            f"ratios returned {type(got).__name__}; expected a list with a pair for each row."
        )
    shown = {"the number of pairs": len(got)}
    for number, pair in enumerate(got[: len(rows)]):
        try:
            time, memory = (float(value) for value in pair)
        except (TypeError, ValueError):
            raise TypeError(
                f"ratios has {str(pair)[:60]!r} for row {number}; expected a pair of two numbers."
            ) from None
        memory_ratio, time_ratio = titles(number, rows)
        shown |= {memory_ratio: memory, time_ratio: time}
    return shown | {"whether the rows are as they were": as_it_was(given, rows)}


def titles(number, rows):
    samples = f"{rows[number]['samples']} samples; vanilla has {rows[0]['samples']}"
    return (
        f"the memory ratio of row {number}",
        f"the time ratio of row {number} ({samples})",
    )


# ---------------------------------------------------------------- largest_micro_batch


def draw_peaks(seed):
    """A peak as a prediction gives it, an effective batch and the context."""
    random = np.random.default_rng(seed)
    fixed, each = int(random.integers(3, 7)) * 10**9, int(random.integers(10, 90)) * 10**7
    effective = int(random.choice([24, 36, 48, 60, 64, 96]))
    context = int(random.integers(5, 19)) * 10**8
    return lambda micro_batch: fixed + each * micro_batch, effective, context, fixed, each


def cases(seed):
    """What a question is about, and the question: peak, effective batch, budget and context."""
    for number, part in enumerate((0.45, 0.30, 0.13, 0.07)):
        peak, effective, context, fixed, each = draw_peaks(seed + number)
        case = f"for {effective} samples where {int(part * effective)} fit at a time"
        yield case, peak, effective, int(fixed + context + part * effective * each), context

    def heavier(micro_batch):
        return peak(micro_batch) + each * micro_batch

    case = "as before, of a model that needs twice as much for each sample"
    yield case, heavier, effective, int(fixed + context + part * effective * each), context
    many = int(np.random.default_rng(seed).choice([720, 960, 1200]))
    case = f"for {many} samples where {many // 3} fit at a time"
    yield case, peak, many, peak(many // 3) + context, context
    half = max(size for size in range(1, effective) if effective % size == 0)
    for case, budget in {
        f"where all {effective} samples fit at a time": peak(effective) + context,
        "where only one sample fits at a time": peak(1) + context,
        "where the budget is needed to the byte": peak(half) + context,
        "where the context alone makes it too large": peak(half) + context - 1,
        "where one sample would fit without the context": peak(1) + context - 1,
        "where one sample is a byte too large without the context": peak(1) - 1,
        "where nothing fits": peak(1) // 2,
    }.items():
        yield case, peak, effective, budget, context

    def curved(micro_batch):  # the score of each token for each other one: a line misses it
        return peak(micro_batch) + each * micro_batch**2 // 8

    case = f"for {effective} samples, the more of them the more memory for each,"
    for what, size in {"the half fits": half, "all of them fit": effective}.items():
        yield f"{case} where {what} at a time", curved, effective, curved(size) + context, context
    blocks = 4  # samples that share a block of memory

    def stepped(micro_batch):
        return fixed + each * blocks * -(-micro_batch // blocks)

    case = f"where {blocks} samples take a block of memory, and one block fits"
    yield case, stepped, effective, stepped(1) + context, context


def as_pair(value):
    return (
        tuple(int(number) for number in value)
        if isinstance(value, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in value)
        else repr(value)[:60]
    )


def largest_micro_batch(answer, seed):
    return {
        f"(micro-batch, accumulation steps) {case}": str(as_pair(answer(*question)))
        for case, *question in cases(seed)
    }


# ---------------------------------------------------------------- choose_row


def draw_choice(seed):
    """Rows with speed and memory (without the context), some of them not timed, and a budget between them."""
    random = np.random.default_rng(seed)
    context = int(random.integers(800, 1900))
    speeds = np.sort(random.uniform(4, 20, 6))
    sizes = np.sort(random.integers(3000, 14000, 6))
    sizes += np.arange(6)  # no two are equal
    names = random.permutation(list("abcdef"))  # a name tells nothing about the speed
    # The leanest is not the slowest, and of those that fit the fullest is not the fastest.
    rows = [
        {"name": str(name), "speed": float(speed), "memory": int(size)}
        for name, speed, size in zip(names, speeds, sizes[[1, 0, 3, 2, 4, 5]])
    ]
    rows.append({"name": "untimed", "speed": None, "memory": int(sizes[0] - 100)})
    random.shuffle(rows)
    return rows, int(sizes[3] + context + (sizes[4] - sizes[3]) * 0.5), context


def draw_near(seed):
    """Four timed rows, the larger the faster: one fits, one without the context, one is too large by less than it, one by more."""
    rows, budget, context = draw_choice(seed)
    rows = sorted((row for row in rows if row["speed"]), key=lambda row: row["speed"])[:4]
    for row, contexts in zip(rows, (-1.5, -0.5, 0.5, 1.5), strict=True):
        row["memory"] = budget + int(contexts * context)
    return rows[::-1], budget, context


def questions(seed):
    for number in range(3):
        rows, budget, context = draw_choice(seed + number)
        yield f"within {budget:,} (table {number + 1})", rows, budget, context
    tightest = min(row["memory"] for row in rows if row["speed"])
    yield "where one row needs the budget to the last MiB", rows, tightest + context, context
    timed, others = ([row for row in rows if bool(row["speed"]) is so] for so in (True, False))
    inside = [
        *timed[:3],
        *others,
        *timed[3:],
    ]  # whoever takes the first or the last takes a timed one
    yield "where nothing that was timed fits", inside, tightest + context - 1, context
    rows, budget, context = draw_near(seed)
    yield "where a row is above the budget by less than the context", rows, budget, context
    near, nearer = (
        dict(row, name=name, speed=int(row["speed"]) + part)
        for row, name, part in zip(rows[-1:] * 2, "ab", (0.2, 0.22), strict=True)
    )
    yield (
        "where two speeds differ by a fiftieth of a sample per second",
        [near, nearer],
        budget,
        context,
    )
    slow = [dict(row, speed=row["speed"] / 100) for row in rows]
    yield "where no row does a sample in a second", slow, budget, context
    large = dict(near, speed=1.2 * near["speed"])
    small = dict(nearer, speed=near["speed"], memory=near["memory"] // 2)
    yield "where the fastest has fewer samples for each byte", [large, small], budget, context


def choose_row(answer, seed):
    shown, untouched = {}, True
    for case, rows, budget, context in questions(seed):
        given = [dict(row) for row in rows]
        shown[f"the choice {case}"] = answer(given, budget, context)
        untouched &= as_it_was(given, rows)
    return shown | {"whether the rows are as they were": untouched}
