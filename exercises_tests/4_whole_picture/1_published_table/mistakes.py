"""Known mistakes in the lesson 4_whole_picture/1_published_table, as edits of its solutions."""

from trainlean.exercises.exercise import Mistake

# ---------------------------------------------------------------- ratios

TIME = '(row["seconds"] / row["samples"]) / (vanilla["seconds"] / vanilla["samples"])'
MEMORY = '(row["memory"] - context) / (vanilla["memory"] - context)'
SECONDS = {TIME: 'row["seconds"] / vanilla["seconds"]'}
WITH_CONTEXT = {MEMORY: 'row["memory"] / vanilla["memory"]'}
PAIR = "append((time, memory))"

ratios = (
    Mistake(
        "context left in",
        WITH_CONTEXT,
        why="The context is there before the training, is the same in every row, and pulls every ratio towards 1.",
        hint="How much memory did the device report before any tensor existed?",
    ),
    Mistake(
        "context taken off one side",
        {'(vanilla["memory"] - context)': 'vanilla["memory"]'},
        {'(row["memory"] - context)': 'row["memory"]'},
        why="The context is in one of the two figures and not in the other, so not even vanilla is 1 of itself.",
        hint="What must the memory ratio of the first row be?",
    ),
    Mistake(
        "seconds of unequal work",
        SECONDS,
        why="Rows with more samples take longer because they do more, not because they are slower.",
        hint="How long does one sample take?",
    ),
    Mistake(
        "speed for time",
        {TIME: '(row["samples"] / row["seconds"]) / (vanilla["samples"] / vanilla["seconds"])'},
        why="A slower row must have a ratio above 1: this is how much faster it is, not how much longer it takes.",
        hint="A row takes twice the time of vanilla for a sample: what should its ratio be?",
    ),
    Mistake(
        "the raw figures divided",
        SECONDS | WITH_CONTEXT,
        why="Raw figures are divided by raw figures, as in the columns that the lesson began with: the context is still in the memory, and the times may be for different numbers of samples.",
        hint="What must be taken from each memory, and by what must each time be divided, before two rows are compared?",
    ),
    Mistake(
        "vanilla divided by the row",
        {PAIR: "append((1 / time, 1 / memory))"},
        why="Both ratios are upside down: vanilla is the unit, so it stands below the line.",
        hint="A row takes half of vanilla's memory: what should its ratio be?",
    ),
    Mistake(
        "memory before time",
        {PAIR: "append((memory, time))"},
        why="The ratios are right and stand in the wrong order: the pair is (time, memory).",
        hint="Which of the two comes first in the pair that was asked for?",
    ),
    Mistake(
        "the rows changed",
        {
            "    pairs = []\n": """    for row in rows:
        row["memory"] -= context
        row["seconds"] /= row["samples"]
    pairs = []
""",
            TIME: 'row["seconds"] / vanilla["seconds"]',
            MEMORY: 'row["memory"] / vanilla["memory"]',
        },
        {"vanilla = rows[0]": "vanilla = rows.pop(0)", "pairs = []": "pairs = [(1.0, 1.0)]"},
        why="The list and its rows belong to the caller, who finds them in another order, fewer, or with something else in them when your function has been called.",
        hint="What do the rows hold after your function has been called?",
    ),
    Mistake(
        "rounded",
        {PAIR: "append((round(time, 2), round(memory, 2)))"},
        {PAIR: "append((round(time, 3), round(memory, 3)))"},
        {PAIR: "append((round(time, 1), round(memory, 1)))"},
        why="These are the ratios rounded; a table rounds when it is shown.",
        hint="How many digits of the ratio does your answer keep?",
    ),
    Mistake(
        "vanilla left out",
        {"for row in rows:": "for row in rows[1:]:"},
        why="A pair was asked for each row, and vanilla is one of them: its pair is (1, 1).",
        hint="How many rows are there, and how many pairs do you return?",
    ),
    Mistake(
        "compared with the row before",
        {PAIR: f"{PAIR}\n        vanilla = row"},
        why="Every row is divided by its neighbour above, so the ratios have no common unit.",
        hint="Which row is the unit of all the others?",
    ),
)

# ---------------------------------------------------------------- largest_micro_batch

SIZES = "range(effective_batch, 0, -1)"
DIVIDES = "effective_batch % micro_batch == 0 and "
FITS = "peak(micro_batch) + context <= budget"
STEPS = "effective_batch // micro_batch"
HALVES = "[effective_batch // 2**power for power in range(effective_batch.bit_length())]"

largest_micro_batch = (
    Mistake(
        "one sample where nothing fits",
        {"return 0, 0": "return 1, effective_batch"},
        why="Where not even one sample fits there is no answer but (0, 0): a micro-batch of 1 runs out of memory, too.",
        hint="What are peak and context together for one sample, and what is the budget?",
    ),
    Mistake(
        "context forgotten",
        {FITS: "peak(micro_batch) <= budget"},
        why="The CUDA context takes its part of the card before the first tensor; this choice runs out of memory.",
        hint="How many bytes of the budget are left when the context is in place?",
    ),
    Mistake(
        "context taken off the peak",
        {FITS: "peak(micro_batch) - context <= budget"},
        why="The peak is without the context, so the context is added to it; taken off, it makes the card larger than it is.",
        hint="Does the context make a training need more of the card, or less?",
    ),
    Mistake(
        "effective batch changed",
        {DIVIDES: ""},
        {DIVIDES: "", STEPS: "-(-effective_batch // micro_batch)"},
        why="Micro-batch times accumulation steps is not the effective batch any more: that is another training.",
        hint="Which micro-batches leave nothing over when the effective batch is cut into them?",
    ),
    Mistake(
        "smallest micro-batch first",
        {SIZES: "range(1, effective_batch + 1)"},
        why="This is the smallest micro-batch that fits; the largest was asked for.",
        hint="Of 4x16 and 1x64, which one gives the device more to do at a time?",
    ),
    Mistake(
        "a line through two peaks",
        {
            FITS: "peak(1) + (micro_batch - 1) * (peak(2) - peak(1)) + context <= budget",
        },
        why="These are the sizes that a straight line through two peaks finds, and memory need not grow in a line. What `peak` says of the size itself decides.",
        hint="For which micro-batches does your function ask `peak`?",
    ),
    Mistake(
        "the whole batch not tried",
        {SIZES: "range(effective_batch - 1, 0, -1)"},
        {SIZES: "range(effective_batch // 2, 0, -1)"},
        why="Where everything fits at once, there is nothing to accumulate: the micro-batch is the effective batch, with one step.",
        hint="With which micro-batch does your search begin?",
    ),
    Mistake(
        "one sample not tried",
        {SIZES: "range(effective_batch, 1, -1)"},
        why="A micro-batch of one sample is the last resort, and it divides every effective batch.",
        hint="With which micro-batch does your search end?",
    ),
    Mistake(
        "steps before micro-batch",
        {f"micro_batch, {STEPS}": f"{STEPS}, micro_batch"},
        why="The two numbers are right and stand in the wrong order: the pair is (micro_batch, accumulation_steps).",
        hint="Which of the two comes first in the pair that was asked for?",
    ),
    Mistake(
        "a whole peak for each sample",
        {FITS: "micro_batch * peak(1) + context <= budget"},
        why="Weights, gradients and optimizer state are there once, however many samples come; only the rest of the peak grows.",
        hint="What does peak(2) say, and is it twice peak(1)?",
    ),
    Mistake(
        "only powers of two",
        {SIZES: "(64, 32, 16, 8, 4, 2, 1)"},
        why="Other divisors of the effective batch are as good, and a larger one of them fits.",
        hint="Into which equal parts can 48 samples be cut?",
    ),
    Mistake(
        "only halves tried",
        {SIZES: HALVES},
        {SIZES: HALVES.replace("]", " if effective_batch % 2**power == 0]")},
        {SIZES: HALVES, DIVIDES: ""},
        why="Besides its half, the half of that and so on, the effective batch may have other divisors, which do as well, and a larger one of them may fit. Half of an odd number, rounded, need not be a divisor at all.",
        hint="Into which equal parts can 48 samples be cut?",
    ),
    Mistake(
        "divisors above the root left out",
        {SIZES: "range(int(effective_batch**0.5), 0, -1)"},
        {SIZES: "[effective_batch, *range(int(effective_batch**0.5), 0, -1)]"},
        why="Each divisor up to the root has a partner above it, and a larger one of those may fit.",
        hint="24 is divided by 4: which other divisor of 24 does that tell?",
    ),
    Mistake(
        "nothing where the largest size that fits leaves a rest",
        {
            DIVIDES: "",
            f"return micro_batch, {STEPS}": f"return (micro_batch, {STEPS}) if effective_batch % micro_batch == 0 else (0, 0)",
        },
        why="The largest size that fits at all need not divide the effective batch; a smaller one does, and fits as well.",
        hint="10 samples fit at a time and 24 are the effective batch: which smaller sizes divide it?",
    ),
    Mistake(
        "a full budget taken for too small",
        {FITS: "peak(micro_batch) + context < budget"},
        why="A peak of exactly the budget fits: at most means that the two may be equal.",
        hint="If peak and context need every byte of the budget, do they fit?",
    ),
)

# ---------------------------------------------------------------- choose_row

TIMED = {'row["speed"] is not None and ': ""}  # no longer asked
WITHIN = 'row["memory"] + context <= budget'
BEST = 'max(fitting, key=lambda row: row["speed"])'

choose_row = (
    Mistake(
        "first row that fits",
        {BEST: "fitting[0]"},
        why="The rows are in no order of speed; among those that fit the fastest was asked for.",
        hint="Which numbers of the rows that fit does your function compare?",
    ),
    Mistake(
        "the row in place of its name",
        {f'{BEST}["name"]': BEST},
        why="The right row was found, but its name was asked for.",
        hint="Which entry of the row is to be returned?",
    ),
    Mistake(
        "leanest row",
        {BEST: 'min(fitting, key=lambda row: row["memory"])'},
        why="This is the smallest row; the fastest that fits was asked for.",
        hint="What do you gain from memory that stays empty?",
    ),
    Mistake(
        "leanest row, untimed ones too",
        {**TIMED, BEST: 'min(fitting, key=lambda row: row["memory"])'},
        why="It takes the smallest memory, even of a row whose speed nobody has measured.",
        hint="What is the question, speed or memory, once a row fits?",
    ),
    Mistake(
        "fullest row that fits",
        {BEST: 'max(fitting, key=lambda row: row["memory"])'},
        why="The row that fills the budget best need not be the fastest: a row may be both slower and larger than another.",
        hint="Which of the three numbers of a row should be the largest, once it fits?",
    ),
    Mistake(
        "a row where nothing fits",
        {"        return None\n": '        return rows[0]["name"]\n'},
        {"        return None\n": '        return rows[-1]["name"]\n'},
        why="Where no timed row fits, none is to be taken: the row that is returned runs out of memory, or nobody has timed it.",
        hint="What does your function return where no row is left to compare?",
    ),
    Mistake(
        "untimed rows not left out",
        TIMED,
        {**TIMED, BEST: 'sorted(fitting, key=lambda row: row["speed"])[-1]'},
        {**TIMED, BEST: 'sorted(fitting, key=lambda row: row["speed"], reverse=True)[0]'},
        {**TIMED, BEST: 'max(fitting, key=lambda row: row["speed"] or 0)'},
        why="A row whose speed is None has not been timed: it cannot be compared, and it is not to be taken where it alone fits.",
        hint="Which rows must go before the speeds are compared?",
    ),
    Mistake(
        "no answer where nothing fits",
        {"    if not fitting:\n        return None\n": ""},
        why="Where no timed row fits, there is nothing to take the maximum of; the answer is None.",
        hint="What does max do with an empty list?",
    ),
    Mistake(
        "fastest row whether it fits or not",
        {f" and {WITHIN}": ""},
        why="The fastest row of all needs more memory than there is.",
        hint="Which rows are out of memory under this budget?",
    ),
    Mistake(
        "only the fastest row asked",
        {
            f" and {WITHIN}": "",
            f'{BEST}["name"]': f'next((row["name"] for row in [{BEST}] if {WITHIN}), None)',
        },
        why="Where the fastest row of all does not fit, a slower one may: the fastest of those that fit was asked for.",
        hint="Which comes first: to leave out what does not fit, or to look for the fastest?",
    ),
    Mistake(
        "context forgotten",
        {WITHIN: 'row["memory"] <= budget'},
        why="The rows' memory is without the context, and the budget has to hold both.",
        hint="What else lies on the device besides what the row says?",
    ),
    Mistake(
        "context taken off the row's memory",
        {WITHIN: 'row["memory"] - context <= budget'},
        why="The rows' memory is without the context already, so the context is added to it; taken off, it makes the budget larger than it is.",
        hint="Is the context in the row's memory, and which way must it be counted?",
    ),
    Mistake(
        "the rows changed",
        {
            "    if not fitting": """    rows.sort(key=lambda row: row["speed"] or 0)
    if not fitting"""
        },
        {
            "    fitting = [": """    for row in rows:
        row["memory"] += context
    fitting = [""",
            WITHIN: 'row["memory"] <= budget',
        },
        why="The list and its rows belong to the caller, who finds them in another order, fewer, or with something else in them when your function has been called.",
        hint="Which of your lines changes a list or a row, and which expression would give a new one?",
    ),
    Mistake(
        "None as a word",
        {"        return None\n": '        return "None"\n'},
        {"        return None\n": '        return ""\n'},
        why="Where no row is to be taken, the answer is None itself: a text could be the name of a row.",
        hint="What does `answer is None` say of your answer?",
    ),
    Mistake(
        "slowest row that fits",
        {"max(": "min("},
        why="The number is samples per second: more is faster.",
        hint="Is a speed of 18 samples/s better or worse than 6?",
    ),
    Mistake(
        "a full budget taken for too small",
        {WITHIN: 'row["memory"] + context < budget'},
        why="A row that needs exactly the budget fits.",
        hint="If memory and context need every MiB of the budget, do they fit?",
    ),
)
