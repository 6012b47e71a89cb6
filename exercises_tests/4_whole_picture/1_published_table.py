"""What the exercises of the lesson 4_whole_picture/1_published_table must do, and the mistakes known to be made."""

import numpy as np

from trainlean.exercises.exercise import Exercise, Mistake

# ---------------------------------------------------------------- ratios


def draw_rows(seed):
    """A table as a driver would report it: seconds, samples and megabytes with the context in them; the first row is vanilla."""
    random = np.random.default_rng(seed)
    context = int(random.integers(400, 1900))
    own = int(random.integers(6000, 10000))
    memories = [
        own,
        *(int(own * random.uniform(*limits)) for limits in ((0.3, 0.9), (1.1, 1.6), (0.3, 1.6))),
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
    rows[1]["samples"] = rows[0]["samples"]
    rows[2]["samples"] = rows[0]["samples"] + 64
    return rows, context


def probe_ratios(answer, seed):
    rows, context = draw_rows(seed)
    got = answer([dict(row) for row in rows], context)
    if not isinstance(got, (list, tuple)):
        raise TypeError(
            f"ratios returned {type(got).__name__}; expected a list with a pair for each row."
        )
    shown = {"the number of pairs": len(got)}
    for row, pair in zip(rows, got):
        try:
            time, memory = (float(value) for value in pair)
        except (TypeError, ValueError):
            raise TypeError(
                f"ratios has {str(pair)[:60]!r} for {row['name']}; expected a pair of two numbers."
            ) from None
        memory_ratio, time_ratio = titles(row, rows[0])
        shown |= {memory_ratio: memory, time_ratio: time}
    return shown


def titles(row, vanilla):
    return (
        f"the memory ratio of {row['name']}",
        f"the time ratio of {row['name']} ({row['samples']} samples; vanilla has {vanilla['samples']})",
    )


def oracle_ratios(seed):
    """Time for one sample, and memory that the training itself takes, both in units of the first row's."""
    rows, context = draw_rows(seed)
    shown = {"the number of pairs": len(rows)}
    vanilla = rows[0]
    for row in rows:
        memory_ratio, time_ratio = titles(row, vanilla)
        shown[memory_ratio] = (row["memory"] - context) / (vanilla["memory"] - context)
        shown[time_ratio] = (row["seconds"] / row["samples"]) / (
            vanilla["seconds"] / vanilla["samples"]
        )
    return shown


def ratios_with(
    memory=lambda row, context: row["memory"] - context,
    time=lambda row: row["seconds"] / row["samples"],
    upside_down=False,
    before=False,
):
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
    return [
        (
            row["seconds"] / row["samples"] * first["samples"] / first["seconds"],
            (row["memory"] - context) / first["memory"],
        )
        for row in rows
    ]


def changed(change):
    """The right pairs, changed once more."""
    return lambda rows, context: [change(*pair) for pair in ratios_with()(rows, context)]


def by_rate(rows, context):
    rates = [row["samples"] / row["seconds"] for row in rows]
    return [
        [rates[0] / rate, (row["memory"] - context) / (rows[0]["memory"] - context)]
        for rate, row in zip(rates, rows)
    ]


ratios = Exercise(
    name="ratios",
    points=2,
    probe=probe_ratios,
    oracle=oracle_ratios,
    truth="the right one",
    mistakes=(
        Mistake(
            "context left in",
            ratios_with(memory=lambda row, context: row["memory"]),
            why="The context is there before the training, is the same in every row, and pulls every ratio towards 1.",
            hint="How much memory did the device report before any tensor existed?",
        ),
        Mistake(
            "context taken off one side",
            context_off_the_ratio,
            why="The training's own bytes are divided by bytes with the context in them, so not even vanilla is 1 of itself.",
            hint="What must the memory ratio of the first row be?",
        ),
        Mistake(
            "seconds of unequal work",
            ratios_with(time=lambda row: row["seconds"]),
            why="Rows with more samples take longer because they do more, not because they are slower.",
            hint="How long does one sample take?",
        ),
        Mistake(
            "speed for time",
            ratios_with(upside_down=True),
            why="A slower row must have a ratio above 1: this is how much faster it is, not how much longer it takes.",
            hint="A row takes twice the time of vanilla for a sample: what should its ratio be?",
        ),
        Mistake(
            "the raw figures divided",
            ratios_with(memory=lambda row, context: row["memory"], time=lambda row: row["seconds"]),
            why="These are the columns that the lesson began with: the context is in the memory, and the times are for different numbers of samples.",
            hint="What must be taken from each memory, and by what must each time be divided, before two rows are compared?",
        ),
        Mistake(
            "vanilla divided by the row",
            changed(lambda time, memory: (1 / time, 1 / memory)),
            why="Both ratios are upside down: vanilla is the unit, so it stands below the line.",
            hint="A row takes half of vanilla's memory: what should its ratio be?",
        ),
        Mistake(
            "memory before time",
            changed(lambda time, memory: (memory, time)),
            why="The ratios are right and stand in the wrong order: the pair is (time, memory).",
            hint="Which of the two comes first in the pair that was asked for?",
        ),
        Mistake(
            "rounded",
            *(
                changed(
                    lambda time, memory, digits=digits: (round(time, digits), round(memory, digits))
                )
                for digits in (2, 3, 1)
            ),
            why="A ratio that goes into further calculations is not rounded; a table rounds when it is shown.",
            hint="How many digits of the ratio does your answer keep?",
        ),
        Mistake(
            "compared with the row before",
            ratios_with(before=True),
            why="Every row is divided by its neighbour above, so the ratios have no common unit.",
            hint="Which row is the unit of all the others?",
        ),
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
        yield (
            f"for {effective} samples where {int(room)} fit at a time",
            peak,
            effective,
            int(fixed + context + room * each),
            context,
        )
    sizes = [size for size in range(1, effective) if effective % size == 0]
    yield (
        f"where all {effective} samples fit at a time",
        peak,
        effective,
        peak(effective) + context,
        context,
    )
    yield "where only one sample fits at a time", peak, effective, peak(1) + context, context
    yield (
        "where the budget is needed to the byte",
        peak,
        effective,
        peak(sizes[-1]) + context,
        context,
    )
    yield (
        "where the context alone makes it too large",
        peak,
        effective,
        peak(sizes[-1]) + context - 1,
        context,
    )
    yield "where nothing fits", peak, effective, peak(1) // 2, context


def as_pair(value):
    return (
        tuple(int(number) for number in value)
        if isinstance(value, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in value)
        else repr(value)[:60]
    )


def probe_micro_batch(answer, seed):
    return {
        f"(micro-batch, accumulation steps) {case}": str(as_pair(answer(*question)))
        for case, *question in cases(seed)
    }


def oracle_micro_batch(seed):
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


def micro_batch_with(
    fits=lambda peak, size, budget, context: peak(size) + context <= budget,
    divides=True,
    smallest=False,
):
    """The right answer, and with one change each the wrong ones."""

    def answer(peak, effective_batch, budget, context):
        sizes = range(1, effective_batch + 1) if smallest else range(effective_batch, 0, -1)
        for size in sizes:
            if (effective_batch % size == 0 or not divides) and fits(peak, size, budget, context):
                return size, effective_batch // size
        return 0, 0

    return answer


def first_that_fits(sizes, pair=lambda size, effective: (size, effective // size)):
    """The first of these divisors that fits; `sizes` and `pair` make the wrong answers."""

    def answer(peak, effective_batch, budget, context):
        fitting = [
            size
            for size in sizes(effective_batch)
            if effective_batch % size == 0 and peak(size) + context <= budget
        ]
        return pair(fitting[0], effective_batch) if fitting else (0, 0)

    return answer


def rounded_up(peak, effective_batch, budget, context):
    size, _ = micro_batch_with(divides=False)(peak, effective_batch, budget, context)
    return (size, -(-effective_batch // size)) if size else (0, 0)


def one_peak_for_each(peak, effective_batch, budget, context):
    room = (budget - context) // peak(1)
    fitting = [
        size
        for size in range(1, effective_batch + 1)
        if effective_batch % size == 0 and size <= room
    ]
    return (fitting[-1], effective_batch // fitting[-1]) if fitting else (0, 0)


def powers_of_two(peak, effective_batch, budget, context):
    size = 1
    while (
        size * 2 <= effective_batch
        and effective_batch % (size * 2) == 0
        and peak(size * 2) + context <= budget
    ):
        size *= 2
    return (size, effective_batch // size) if peak(size) + context <= budget else (0, 0)


def largest_of_all(peak, effective_batch, budget, context):
    sizes = [
        size
        for size in range(1, effective_batch + 1)
        if not effective_batch % size and peak(size) <= budget - context
    ]
    return [max(sizes), effective_batch // max(sizes)] if sizes else [0, 0]


largest_micro_batch = Exercise(
    name="largest_micro_batch",
    points=2,
    probe=probe_micro_batch,
    oracle=oracle_micro_batch,
    truth="the right answer",
    mistakes=(
        Mistake(
            "context forgotten",
            micro_batch_with(fits=lambda peak, size, budget, context: peak(size) <= budget),
            micro_batch_with(
                fits=lambda peak, size, budget, context: peak(size) - context <= budget
            ),
            why="The CUDA context takes its part of the card before the first tensor; this choice runs out of memory.",
            hint="How many bytes of the budget are left when the context is in place?",
        ),
        Mistake(
            "effective batch changed",
            micro_batch_with(divides=False),
            rounded_up,
            why="Micro-batch times accumulation steps is not the effective batch any more: that is another training.",
            hint="Which micro-batches leave nothing over when the effective batch is cut into them?",
        ),
        Mistake(
            "smallest micro-batch first",
            micro_batch_with(smallest=True),
            why="It fits and does the same training, but in many small steps that leave the device idle.",
            hint="Of 4x16 and 1x64, which one gives the device more to do at a time?",
        ),
        Mistake(
            "the whole batch not tried",
            first_that_fits(lambda effective: range(effective - 1, 0, -1)),
            first_that_fits(lambda effective: range(effective // 2, 0, -1)),
            why="Where everything fits at once, there is nothing to accumulate: the micro-batch is the effective batch, with one step.",
            hint="With which micro-batch does your search begin?",
        ),
        Mistake(
            "one sample not tried",
            first_that_fits(lambda effective: range(effective, 1, -1)),
            why="A micro-batch of one sample is the last resort, and it divides every effective batch.",
            hint="With which micro-batch does your search end?",
        ),
        Mistake(
            "steps before micro-batch",
            first_that_fits(
                lambda effective: range(effective, 0, -1),
                lambda size, effective: (effective // size, size),
            ),
            why="The two numbers are right and stand in the wrong order: the pair is (micro_batch, accumulation_steps).",
            hint="Which of the two comes first in the pair that was asked for?",
        ),
        Mistake(
            "a whole peak for each sample",
            one_peak_for_each,
            why="Weights, gradients and optimizer state are there once, however many samples come; only the rest of the peak grows.",
            hint="What does peak(2) say, and is it twice peak(1)?",
        ),
        Mistake(
            "only powers of two",
            powers_of_two,
            why="Other divisors of the effective batch are as good, and a larger one of them fits.",
            hint="Into which equal parts can 48 samples be cut?",
        ),
        Mistake(
            "a full budget taken for too small",
            micro_batch_with(
                fits=lambda peak, size, budget, context: peak(size) + context < budget
            ),
            why="A peak of exactly the budget fits: at most means that the two may be equal.",
            hint="If peak and context need every byte of the budget, do they fit?",
        ),
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


def questions(seed):
    for number in range(3):
        rows, budget, context = draw_choice(seed + number)
        yield f"within {budget:,} (table {number + 1})", rows, budget, context
    lean = [row for row in rows if row["speed"]]
    tightest = min(row["memory"] for row in lean)
    yield "where one row needs the budget to the last MiB", rows, tightest + context, context
    yield "where nothing that was timed fits", rows, tightest + context - 1, context


def probe_choice(answer, seed):
    return {
        f"the choice {case}": str(answer([dict(row) for row in rows], budget, context))
        for case, rows, budget, context in questions(seed)
    }


def oracle_choice(seed):
    """Walks down the rows by speed until one fits."""
    shown = {}
    for case, rows, budget, context in questions(seed):
        timed = sorted((row for row in rows if row["speed"]), key=lambda row: -row["speed"])
        shown[f"the choice {case}"] = next(
            (row["name"] for row in timed if row["memory"] + context <= budget), "None"
        )
    return shown


def choice_with(
    fits=lambda row, budget, context: row["memory"] + context <= budget,
    best=lambda row: row["speed"],
):
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


def untimed_ones_too(best, empty=None):
    """Whether a row was timed is not asked."""

    def answer(rows, budget, context):
        fitting = [row for row in rows if row["memory"] + context <= budget]
        return best(fitting) if fitting else empty

    return answer


def fastest_or_error(rows, budget, context):
    return max(
        (row for row in rows if row["speed"] is not None and row["memory"] + context <= budget),
        key=lambda row: row["speed"],
    )["name"]


choose_row = Exercise(
    name="choose_row",
    points=2,
    probe=probe_choice,
    oracle=oracle_choice,
    truth="the right one",
    mistakes=(
        Mistake(
            "leanest row",
            choice_with(best=lambda row: -row["memory"]),
            why="Memory below the budget is worth nothing; the budget asks for the fastest row that fits.",
            hint="What do you gain from memory that stays empty?",
        ),
        Mistake(
            "leanest row, untimed ones too",
            leanest_of_all,
            why="It takes the smallest memory, even of a row whose speed nobody has measured.",
            hint="What is the question, speed or memory, once a row fits?",
        ),
        Mistake(
            "fullest row that fits",
            choice_with(best=lambda row: row["memory"]),
            why="The row that fills the budget best need not be the fastest: a saving that costs speed takes room, too.",
            hint="Which of the three numbers of a row should be the largest, once it fits?",
        ),
        Mistake(
            "untimed rows not left out",
            untimed_ones_too(lambda rows: max(rows, key=lambda row: row["speed"])["name"]),
            untimed_ones_too(lambda rows: sorted(rows, key=lambda row: row["speed"])[-1]["name"]),
            untimed_ones_too(
                lambda rows: sorted(rows, key=lambda row: row["speed"], reverse=True)[0]["name"]
            ),
            untimed_ones_too(lambda rows: max(rows, key=lambda row: row["speed"] or 0)["name"]),
            why="A row whose speed is None has not been timed: it cannot be compared, and it is not to be taken where it alone fits.",
            hint="Which rows must go before the speeds are compared?",
        ),
        Mistake(
            "no answer where nothing fits",
            fastest_or_error,
            why="Where no timed row fits, there is nothing to take the maximum of; the answer is None.",
            hint="What does max do with an empty list?",
        ),
        Mistake(
            "fastest row whether it fits or not",
            choice_with(fits=lambda row, budget, context: True),
            why="The fastest row of all needs more memory than there is.",
            hint="Which rows are out of memory under this budget?",
        ),
        Mistake(
            "context forgotten",
            choice_with(fits=lambda row, budget, context: row["memory"] <= budget),
            choice_with(fits=lambda row, budget, context: row["memory"] - context <= budget),
            why="The rows' memory is without the context, and the budget has to hold both.",
            hint="What else lies on the device besides what the row says?",
        ),
        Mistake(
            "slowest row that fits",
            choice_with(best=lambda row: -row["speed"]),
            why="The number is samples per second: more is faster.",
            hint="Is a speed of 18 samples/s better or worse than 6?",
        ),
        Mistake(
            "a full budget taken for too small",
            choice_with(fits=lambda row, budget, context: row["memory"] + context < budget),
            why="A row that needs exactly the budget fits.",
            hint="If memory and context need every MiB of the budget, do they fit?",
        ),
    ),
    hints=(
        "For which two reasons can a row not be chosen at all?",
        "Keep the timed rows whose memory and context are at most the budget; take the one with the highest speed.",
        "max(fitting, key=lambda row: row['speed'])['name'], and None when fitting is empty.",
    ),
    also_right=(choice_with(), sorted_rows),
)

EXERCISES = (ratios, largest_micro_batch, choose_row)
