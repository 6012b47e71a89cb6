"""What the exercises of the lesson 4_whole_picture/1_published_table must do, and the mistakes known to be made."""

import numpy as np

from trainlean.exercises.exercise import Exercise, Mistake

# ---------------------------------------------------------------- ratios


def draw_rows(seed):
    """A table as a driver would report it: seconds, samples and megabytes with the context in them; the first row is vanilla."""
    random = np.random.default_rng(seed)
    context = int(random.integers(400, 1900))
    rows = [
        {
            "name": f"row {number}",
            "seconds": float(random.uniform(20, 90)),
            "samples": int(64 * random.integers(2, 9)),
            "memory": context + int(random.integers(3000, 14000)),
        }
        for number in range(4)
    ]
    rows[1]["samples"] = rows[0]["samples"]
    return rows, context


def probe_ratios(answer, seed):
    rows, context = draw_rows(seed)
    got = answer([dict(row) for row in rows], context)
    if not isinstance(got, list):
        return {"the type of the answer": type(got).__name__}
    shown = {"the number of pairs": len(got)}
    for row, pair in zip(rows, got):
        case = f"of {row['name']} ({row['samples']} samples; vanilla has {rows[0]['samples']})"
        try:
            time, memory = (float(value) for value in pair)
        except (TypeError, ValueError):
            return {"the type of the answer": type(got).__name__, f"the pair {case}": repr(pair)[:60]}
        shown |= {f"the memory ratio {case}": memory, f"the time ratio {case}": time}
    return shown


def oracle_ratios(seed):
    """Time for one sample, and memory that the training itself takes, both in units of the first row's."""
    rows, context = draw_rows(seed)
    shown = {"the number of pairs": len(rows)}
    vanilla = rows[0]
    for row in rows:
        case = f"of {row['name']} ({row['samples']} samples; vanilla has {vanilla['samples']})"
        shown[f"the memory ratio {case}"] = (row["memory"] - context) / (vanilla["memory"] - context)
        shown[f"the time ratio {case}"] = (row["seconds"] / row["samples"]) / (vanilla["seconds"] / vanilla["samples"])
    return shown


def ratios_with(memory=lambda row, context: row["memory"] - context, time=lambda row: row["seconds"] / row["samples"], upside_down=False, before=False):
    """The right answer, and with one change each the wrong ones."""

    def answer(rows, context):
        found = []
        for number, row in enumerate(rows):
            base = rows[max(0, number - 1)] if before else rows[0]
            pace = time(base) / time(row) if upside_down else time(row) / time(base)
            found.append((pace, memory(row, context) / memory(base, context)))
        return found

    return answer


def context_off_the_ratio(rows, context):
    first = rows[0]
    return [(row["seconds"] / row["samples"] * first["samples"] / first["seconds"], (row["memory"] - context) / first["memory"]) for row in rows]


def by_rate(rows, context):
    rates = [row["samples"] / row["seconds"] for row in rows]
    return [[rates[0] / rate, (row["memory"] - context) / (rows[0]["memory"] - context)] for rate, row in zip(rates, rows)]


ratios = Exercise(
    name="ratios",
    points=2,
    probe=probe_ratios,
    oracle=oracle_ratios,
    truth="the right one",
    mistakes=(
        Mistake("context left in", ratios_with(memory=lambda row, context: row["memory"]),
                why="The context is there before the training, is the same in every row, and pulls every ratio towards 1.",
                hint="How much memory did the device report before any tensor existed?"),
        Mistake("context taken off one side", context_off_the_ratio,
                why="The training's own bytes are divided by bytes with the context in them, so not even vanilla is 1 of itself.",
                hint="What must the memory ratio of the first row be?"),
        Mistake("seconds of unequal work", ratios_with(time=lambda row: row["seconds"]),
                why="Rows with more samples take longer because they do more, not because they are slower.",
                hint="How long does one sample take?"),
        Mistake("speed for time", ratios_with(upside_down=True),
                why="A slower row must have a ratio above 1: this is how much faster it is, not how much longer it takes.",
                hint="A row takes twice the time of vanilla for a sample: what should its ratio be?"),
        Mistake("compared with the row before", ratios_with(before=True),
                why="Every row is divided by its neighbour above, so the ratios have no common unit.",
                hint="Which row is the unit of all the others?"),
    ),
    hints=(
        "What do the rows share that no training caused, and what differs between them that is no speed?",
        "Take the context from both memories before you divide; divide seconds by samples before you compare.",
        "(row seconds / row samples) / (vanilla seconds / vanilla samples), (row memory - context) / (vanilla memory - context).",
    ),
    also_right=(by_rate, ratios_with()),
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
    for number in range(4):
        peak, effective, context, fixed, each = draw_peaks(seed + number)
        room = (0.45, 0.30, 0.13, 0.07)[number] * effective
        yield f"for {effective} samples, case {number + 1}", peak, effective, int(fixed + context + room * each), context
    sizes = [size for size in range(1, effective) if effective % size == 0]
    yield "where the budget is needed to the byte", peak, effective, peak(sizes[-1]) + context, context
    yield "where the context alone makes it too large", peak, effective, peak(sizes[-1]) + context - 1, context
    yield "where nothing fits", peak, effective, peak(1) // 2, context


def as_pair(value):
    return [int(number) for number in value] if isinstance(value, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in value) else repr(value)[:60]


def probe_micro_batch(answer, seed):
    return {f"(micro-batch, accumulation steps) {case}": str(as_pair(answer(*question))) for case, *question in cases(seed)}


def oracle_micro_batch(seed):
    """Tries every way of cutting the effective batch into equal parts, the largest parts first."""
    shown = {}
    for case, peak, effective, budget, context in cases(seed):
        fits = [steps for steps in range(1, effective + 1) if effective % steps == 0 and peak(effective // steps) + context <= budget]
        shown[f"(micro-batch, accumulation steps) {case}"] = str([effective // fits[0], fits[0]] if fits else [0, 0])
    return shown


def micro_batch_with(fits=lambda peak, size, budget, context: peak(size) + context <= budget, divides=True, smallest=False):
    """The right answer, and with one change each the wrong ones."""

    def answer(peak, effective_batch, budget, context):
        sizes = range(1, effective_batch + 1) if smallest else range(effective_batch, 0, -1)
        for size in sizes:
            if (effective_batch % size == 0 or not divides) and fits(peak, size, budget, context):
                return size, effective_batch // size
        return 0, 0

    return answer


def powers_of_two(peak, effective_batch, budget, context):
    size = 1
    while size * 2 <= effective_batch and effective_batch % (size * 2) == 0 and peak(size * 2) + context <= budget:
        size *= 2
    return (size, effective_batch // size) if peak(size) + context <= budget else (0, 0)


def largest_of_all(peak, effective_batch, budget, context):
    sizes = [size for size in range(1, effective_batch + 1) if not effective_batch % size and peak(size) <= budget - context]
    return [max(sizes), effective_batch // max(sizes)] if sizes else [0, 0]


largest_micro_batch = Exercise(
    name="largest_micro_batch",
    points=2,
    probe=probe_micro_batch,
    oracle=oracle_micro_batch,
    truth="the right answer",
    mistakes=(
        Mistake("context forgotten", micro_batch_with(fits=lambda peak, size, budget, context: peak(size) <= budget),
                why="The CUDA context takes its part of the card before the first tensor; this choice runs out of memory.",
                hint="How many bytes of the budget are left when the context is in place?"),
        Mistake("effective batch changed", micro_batch_with(divides=False),
                why="Micro-batch times accumulation steps is not the effective batch any more: that is another training.",
                hint="Which micro-batches leave nothing over when the effective batch is cut into them?"),
        Mistake("smallest micro-batch first", micro_batch_with(smallest=True),
                why="It fits and does the same training, but in many small steps that leave the device idle.",
                hint="Of 4x16 and 1x64, which one gives the device more to do at a time?"),
        Mistake("only powers of two", powers_of_two,
                why="Other divisors of the effective batch are as good, and a larger one of them fits.",
                hint="Into which equal parts can 48 samples be cut?"),
        Mistake("a full budget taken for too small", micro_batch_with(fits=lambda peak, size, budget, context: peak(size) + context < budget),
                why="A peak of exactly the budget fits: at most means that the two may be equal.",
                hint="If peak and context need every byte of the budget, do they fit?"),
    ),
    hints=(
        "Which micro-batches are possible at all, if the effective batch must stay what it is?",
        "Go through the divisors of the effective batch from the largest down; stop at the first that fits with the context.",
        "for size in range(effective_batch, 0, -1): if effective_batch % size == 0 and peak(size) + context <= budget: return size, effective_batch // size",
    ),
    also_right=(micro_batch_with(), largest_of_all),
)

# ---------------------------------------------------------------- choose_row


def draw_choice(seed):
    """Rows with speed and memory (without the context), some of them not timed, and a budget between them."""
    random = np.random.default_rng(seed)
    context = int(random.integers(800, 1900))
    speeds = np.sort(random.uniform(4, 20, 6))
    sizes = np.sort(random.integers(3000, 14000, 6))
    rows = [{"name": name, "speed": float(speed), "memory": int(size)} for name, speed, size in zip("abcdef", speeds, sizes)]
    rows[0]["memory"], rows[1]["memory"] = rows[1]["memory"], rows[0]["memory"]  # the leanest is not the slowest
    rows.append({"name": "untimed", "speed": None, "memory": int(sizes[0] - 100)})
    random.shuffle(rows)
    return rows, int(sizes[3] + context + (sizes[4] - sizes[3]) * 0.5), context


def questions(seed):
    for number in range(3):
        rows, budget, context = draw_choice(seed + number)
        yield f"within {budget:,} (table {number + 1})", rows, budget, context
    lean = [row for row in rows if row["speed"]]
    tightest = min(row["memory"] for row in lean)
    yield "where one row needs the budget to the last MiB", rows, tightest + context, context
    yield "where nothing that was timed fits", rows, tightest + context - 1, context


def probe_choice(answer, seed):
    return {f"the choice {case}": str(answer([dict(row) for row in rows], budget, context)) for case, rows, budget, context in questions(seed)}


def oracle_choice(seed):
    """Walks down the rows by speed until one fits."""
    shown = {}
    for case, rows, budget, context in questions(seed):
        timed = sorted((row for row in rows if row["speed"]), key=lambda row: -row["speed"])
        shown[f"the choice {case}"] = next((row["name"] for row in timed if row["memory"] + context <= budget), "None")
    return shown


def choice_with(fits=lambda row, budget, context: row["memory"] + context <= budget, best=lambda row: row["speed"]):
    """The right answer, and with one change each the wrong ones."""

    def answer(rows, budget, context):
        fitting = [row for row in rows if row["speed"] is not None and fits(row, budget, context)]
        return max(fitting, key=best)["name"] if fitting else None

    return answer


def leanest_of_all(rows, budget, context):
    row = min(rows, key=lambda row: row["memory"])
    return row["name"] if row["memory"] + context <= budget else None


def sorted_rows(rows, budget, context):
    for row in sorted(rows, key=lambda row: row["speed"] or 0, reverse=True):
        if row["speed"] and row["memory"] <= budget - context:
            return row["name"]


choose_row = Exercise(
    name="choose_row",
    points=2,
    probe=probe_choice,
    oracle=oracle_choice,
    truth="the right one",
    mistakes=(
        Mistake("leanest row", choice_with(best=lambda row: -row["memory"]),
                why="Memory below the budget is worth nothing; the budget asks for the fastest row that fits.",
                hint="What do you gain from memory that stays empty?"),
        Mistake("leanest row, untimed ones too", leanest_of_all,
                why="It takes the smallest memory, even of a row whose speed nobody has measured.",
                hint="What is the question, speed or memory, once a row fits?"),
        Mistake("fastest row whether it fits or not", choice_with(fits=lambda row, budget, context: True),
                why="The fastest row of all needs more memory than there is.",
                hint="Which rows are out of memory under this budget?"),
        Mistake("context forgotten", choice_with(fits=lambda row, budget, context: row["memory"] <= budget),
                why="The rows' memory is without the context, and the budget has to hold both.",
                hint="What else lies on the device besides what the row says?"),
        Mistake("slowest row that fits", choice_with(best=lambda row: -row["speed"]),
                why="The number is samples per second: more is faster.",
                hint="Is a speed of 18 samples/s better or worse than 6?"),
        Mistake("a full budget taken for too small", choice_with(fits=lambda row, budget, context: row["memory"] + context < budget),
                why="A row that needs exactly the budget fits.",
                hint="If memory and context need every MiB of the budget, do they fit?"),
    ),
    hints=(
        "For which two reasons can a row not be chosen at all?",
        "Keep the timed rows whose memory and context are at most the budget; take the one with the highest speed.",
        "max(fitting, key=lambda row: row['speed'])['name'], and None when fitting is empty.",
    ),
    also_right=(choice_with(), sorted_rows),
)

EXERCISES = (ratios, largest_micro_batch, choose_row)
