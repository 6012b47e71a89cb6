# %% ratios: right
def ratios(rows, context):
    def cost(row):
        return row["seconds"] / row["samples"], row["memory"] - context

    seconds, memory = cost(rows[0])
    return [(s / seconds, m / memory) for s, m in map(cost, rows)]


# %% ratios: right
def ratios(rows, context):
    frame = pd.DataFrame(rows)
    time = frame["seconds"] / frame["samples"]
    memory = frame["memory"] - context
    return list(zip((time / time[0]).tolist(), (memory / memory[0]).tolist()))


# %% ratios: right
class Table:
    def __init__(self, rows, context):
        self.rows, self.context = rows, context

    def time(self, i):
        return self.rows[i]["seconds"] / self.rows[i]["samples"]

    def memory(self, i):
        return self.rows[i]["memory"] - self.context

    def __getitem__(self, i):
        return self.time(i) / self.time(0), self.memory(i) / self.memory(0)


def ratios(rows, context):
    table = Table(rows, context)
    return [table[i] for i in range(len(rows))]


# %% ratios: right
def ratios(rows, context):
    pairs, i = [], 0
    speed = rows[0]["samples"] / rows[0]["seconds"]
    while i < len(rows):
        row = rows[i]
        pairs += [(speed * row["seconds"] / row["samples"], row["memory"] - context)]
        i += 1
    vanilla = pairs[0][1]
    return [(time, memory / vanilla) for time, memory in pairs]


# %% ratios: wrong, context left in
# the context is still in the memory
def ratios(rows, context):
    first = rows[0]["seconds"] / rows[0]["samples"]
    return [
        (row["seconds"] / row["samples"] / first, row["memory"] / rows[0]["memory"]) for row in rows
    ]


# %% ratios: wrong, seconds of unequal work
# the seconds of the whole run, whatever number of samples
def ratios(rows, context):
    s, m = rows[0]["seconds"], rows[0]["memory"] - context
    return [(row["seconds"] / s, (row["memory"] - context) / m) for row in rows]


# %% ratios: wrong, speed for time
# speed instead of time
def ratios(rows, context):
    speeds = [row["samples"] / row["seconds"] for row in rows]
    memories = [row["memory"] - context for row in rows]
    return [(s / speeds[0], m / memories[0]) for s, m in zip(speeds, memories)]


# %% ratios: wrong, context taken off one side
# the context is taken off the row, not off vanilla
def ratios(rows, context):
    v = rows[0]
    out = []
    for row in rows:
        time = row["seconds"] / row["samples"] / (v["seconds"] / v["samples"])
        out.append((time, (row["memory"] - context) / v["memory"]))
    return out


# %% ratios: wrong, vanilla left out
# vanilla itself is left out
def ratios(rows, context):
    v, *others = rows
    time = v["seconds"] / v["samples"]
    memory = v["memory"] - context
    return [
        (row["seconds"] / row["samples"] / time, (row["memory"] - context) / memory)
        for row in others
    ]


# %% ratios: wrong, compared with the row before
# beside the row before instead of the first
def ratios(rows, context):
    out, before = [], rows[0]
    for row in rows:
        time = (row["seconds"] / row["samples"]) / (before["seconds"] / before["samples"])
        out.append((time, (row["memory"] - context) / (before["memory"] - context)))
        before = row
    return out


# %% ratios: wrong, memory before time
# (memory, time)
def ratios(rows, context):
    time = rows[0]["seconds"] / rows[0]["samples"]
    memory = rows[0]["memory"] - context
    return [
        ((row["memory"] - context) / memory, row["seconds"] / row["samples"] / time) for row in rows
    ]


# %% ratios: wrong
# the context is taken off after dividing
def ratios(rows, context):
    v = rows[0]
    return [
        (
            row["seconds"] / row["samples"] / (v["seconds"] / v["samples"]),
            row["memory"] / v["memory"] - context,
        )
        for row in rows
    ]


# %% ratios: wrong, rounded
# rounded as in the table
def ratios(rows, context):
    time = rows[0]["seconds"] / rows[0]["samples"]
    memory = rows[0]["memory"] - context
    return [
        (
            round(row["seconds"] / row["samples"] / time, 2),
            round((row["memory"] - context) / memory, 2),
        )
        for row in rows
    ]


# %% ratios: wrong, seconds of unequal work
# every row is divided by vanilla's samples
def ratios(rows, context):
    n = rows[0]["samples"]
    time = rows[0]["seconds"] / n
    memory = rows[0]["memory"] - context
    return [(row["seconds"] / n / time, (row["memory"] - context) / memory) for row in rows]


# %% ratios: wrong
# two lists instead of pairs
def ratios(rows, context):
    times = [row["seconds"] / row["samples"] for row in rows]
    memories = [row["memory"] - context for row in rows]
    return [t / times[0] for t in times], [m / memories[0] for m in memories]


# %% largest_micro_batch: right
def largest_micro_batch(peak, effective_batch, budget, context):
    choices = [(m, effective_batch // m) for m in range(1, effective_batch + 1)]
    fitting = [(m, k) for m, k in choices if m * k == effective_batch]
    fitting = [pair for pair in fitting if peak(pair[0]) <= budget - context]
    return max(fitting, default=(0, 0))


# %% largest_micro_batch: right
def largest_micro_batch(peak, effective_batch, budget, context):
    steps = 1
    while steps <= effective_batch:
        size, rest = divmod(effective_batch, steps)
        if not rest and context + peak(size) <= budget:
            return size, steps
        steps += 1
    return 0, 0


# %% largest_micro_batch: right
from bisect import bisect_right


def largest_micro_batch(peak, effective_batch, budget, context):
    divisors = [m for m in range(1, effective_batch + 1) if not effective_batch % m]
    found = bisect_right(divisors, budget - context, key=peak)
    if found == 0:
        return (0, 0)
    return divisors[found - 1], effective_batch // divisors[found - 1]


# %% largest_micro_batch: right
class Search:
    def __init__(self, fits, total):
        self.fits, self.total = fits, total

    def down(self, m):
        if m == 0:
            return (0, 0)
        if self.total % m == 0 and self.fits(m):
            return (m, self.total // m)
        return self.down(m - 1)


def largest_micro_batch(peak, effective_batch, budget, context):
    return Search(lambda m: peak(m) + context <= budget, effective_batch).down(effective_batch)


# %% largest_micro_batch: wrong, a full budget taken for too small
# less than the budget, not at most
def largest_micro_batch(peak, effective_batch, budget, context):
    for m in reversed(range(1, effective_batch + 1)):
        if not effective_batch % m and peak(m) + context < budget:
            return m, effective_batch // m
    return 0, 0


# %% largest_micro_batch: wrong, context forgotten
# the context is forgotten
def largest_micro_batch(peak, effective_batch, budget, context):
    best = 0, 0
    for m in range(1, effective_batch + 1):
        if effective_batch % m == 0 and peak(m) <= budget:
            best = m, effective_batch // m
    return best


# %% largest_micro_batch: wrong, effective batch changed
# any size, so the product is too small
def largest_micro_batch(peak, effective_batch, budget, context):
    m = 0
    while m < effective_batch and peak(m + 1) + context <= budget:
        m += 1
    return (m, effective_batch // m) if m else (0, 0)


# %% largest_micro_batch: wrong, effective batch changed
# any size, and the steps are rounded up: the product is too large
def largest_micro_batch(peak, effective_batch, budget, context):
    fitting = [m for m in range(1, effective_batch + 1) if peak(m) + context <= budget]
    if not fitting:
        return 0, 0
    return fitting[-1], -(-effective_batch // fitting[-1])


# %% largest_micro_batch: wrong, only powers of two
# powers of two only
def largest_micro_batch(peak, effective_batch, budget, context):
    m, best = 1, (0, 0)
    while m <= effective_batch:
        if effective_batch % m == 0 and peak(m) + context <= budget:
            best = (m, effective_batch // m)
        m *= 2
    return best


# %% largest_micro_batch: wrong
# halves the batch until it fits, so odd divisors are passed over
def largest_micro_batch(peak, effective_batch, budget, context):
    m, steps = effective_batch, 1
    while m >= 1:
        if peak(m) + context <= budget:
            return m, steps
        m, steps = m // 2, steps * 2
    return 0, 0


# %% largest_micro_batch: wrong, the whole batch not tried
# the whole batch at once is never tried
def largest_micro_batch(peak, effective_batch, budget, context):
    for m in range(effective_batch - 1, 0, -1):
        if effective_batch % m == 0 and peak(m) + context <= budget:
            return m, effective_batch // m
    return 0, 0


# %% largest_micro_batch: wrong, smallest micro-batch first
# the smallest that fits
def largest_micro_batch(peak, effective_batch, budget, context):
    for m in range(1, effective_batch + 1):
        if effective_batch % m == 0 and peak(m) + context <= budget:
            return m, effective_batch // m
    return 0, 0


# %% largest_micro_batch: wrong, one sample not tried
# micro-batches of one are never tried
def largest_micro_batch(peak, effective_batch, budget, context):
    for m in range(effective_batch, 1, -1):
        if effective_batch % m == 0 and peak(m) + context <= budget:
            return m, effective_batch // m
    return 0, 0


# %% largest_micro_batch: wrong
# None where nothing fits
def largest_micro_batch(peak, effective_batch, budget, context):
    for m in range(effective_batch, 0, -1):
        if effective_batch % m == 0 and peak(m) + context <= budget:
            return m, effective_batch // m


# %% largest_micro_batch: wrong, steps before micro-batch
# (steps, size)
def largest_micro_batch(peak, effective_batch, budget, context):
    for steps in range(1, effective_batch + 1):
        if effective_batch % steps == 0 and peak(effective_batch // steps) + context <= budget:
            return steps, effective_batch // steps
    return 0, 0


# %% largest_micro_batch: wrong
# the steps are a float
def largest_micro_batch(peak, effective_batch, budget, context):
    for m in range(effective_batch, 0, -1):
        if effective_batch % m == 0 and peak(m) + context <= budget:
            return m, effective_batch / m
    return 0, 0


# %% choose_row: right
def choose_row(rows, budget, context):
    best = None
    for row in rows:
        if row["speed"] is None or row["memory"] + context > budget:
            continue
        if best is None or row["speed"] > best["speed"]:
            best = row
    return best and best["name"]


# %% choose_row: right
def choose_row(rows, budget, context):
    speeds = {
        row["name"]: row["speed"]
        for row in rows
        if row["memory"] <= budget - context and row["speed"] is not None
    }
    return max(speeds, key=speeds.get, default=None)


# %% choose_row: right
def choose_row(rows, budget, context):
    frame = pd.DataFrame(rows, columns=["name", "speed", "memory"])
    frame["speed"] = frame["speed"].astype(float)
    frame = frame[(frame["memory"] + context <= budget) & frame["speed"].notna()]
    return None if frame.empty else frame.loc[frame["speed"].idxmax(), "name"]


# %% choose_row: right
class Chooser:
    def __init__(self, room):
        self.room = room

    def accepts(self, row):
        return isinstance(row["speed"], (int, float)) and row["memory"] <= self.room

    def __call__(self, rows):
        ranked = sorted(filter(self.accepts, rows), key=lambda row: -row["speed"])
        return next((row["name"] for row in ranked), None)


def choose_row(rows, budget, context):
    return Chooser(budget - context)(rows)


# %% choose_row: wrong, context forgotten
# the context is forgotten
def choose_row(rows, budget, context):
    fits = [row for row in rows if row["speed"] is not None and row["memory"] <= budget]
    return max(fits, key=lambda row: row["speed"])["name"] if fits else None


# %% choose_row: wrong, context taken off the row's memory
# the context is taken off the memory, in which it is not
def choose_row(rows, budget, context):
    fits = [row for row in rows if row["speed"] is not None and row["memory"] - context <= budget]
    return max(fits, key=lambda row: row["speed"])["name"] if fits else None


# %% choose_row: wrong, untimed rows not left out
# an untimed row is taken as speed 0, and so chosen where nothing else fits
def choose_row(rows, budget, context):
    fits = [row for row in rows if row["memory"] + context <= budget]
    return max(fits, key=lambda row: row["speed"] or 0)["name"] if fits else None


# %% choose_row: wrong, untimed rows not left out
# untimed rows are compared, too: TypeError
def choose_row(rows, budget, context):
    fits = [(row["speed"], row["name"]) for row in rows if row["memory"] + context <= budget]
    return max(fits)[1] if fits else None


# %% choose_row: wrong, leanest row
# the leanest, not the fastest
def choose_row(rows, budget, context):
    fits = [row for row in rows if row["speed"] is not None and row["memory"] + context <= budget]
    return min(fits, key=lambda row: row["memory"])["name"] if fits else None


# %% choose_row: wrong, slowest row that fits
# the slowest: sorted upwards and the first taken
def choose_row(rows, budget, context):
    for row in sorted((r for r in rows if r["speed"] is not None), key=lambda r: r["speed"]):
        if row["memory"] + context <= budget:
            return row["name"]
    return None


# %% choose_row: wrong, a full budget taken for too small
# less than the budget: an exact fit is refused
def choose_row(rows, budget, context):
    fits = [row for row in rows if row["speed"] is not None and row["memory"] + context < budget]
    return max(fits, key=lambda row: row["speed"])["name"] if fits else None


# %% choose_row: wrong, first row that fits
# the first row that fits
def choose_row(rows, budget, context):
    for row in rows:
        if row["speed"] is not None and row["memory"] + context <= budget:
            return row["name"]


# %% choose_row: wrong, no answer where nothing fits
# fails where nothing fits
def choose_row(rows, budget, context):
    fits = [row for row in rows if row["speed"] is not None and row["memory"] + context <= budget]
    return max(fits, key=lambda row: row["speed"])["name"]


# %% choose_row: wrong, only the fastest row asked
# looks only at the fastest row of all
def choose_row(rows, budget, context):
    best = max((row for row in rows if row["speed"] is not None), key=lambda row: row["speed"])
    return best["name"] if best["memory"] + context <= budget else None


# %% choose_row: wrong, the row in place of its name
# gives the row itself
def choose_row(rows, budget, context):
    fits = [row for row in rows if row["speed"] is not None and row["memory"] + context <= budget]
    return max(fits, key=lambda row: row["speed"], default=None)


# %% choose_row: wrong
# removes rows from the list while it goes through it, so every second unfit one stays
def choose_row(rows, budget, context):
    for row in rows:
        if row["speed"] is None or row["memory"] + context > budget:
            rows.remove(row)
    if not rows:
        return None
    return max(rows, key=lambda row: row["speed"] or 0)["name"]


# %% ratios: right
from operator import itemgetter


def ratios(rows, context):
    needed = itemgetter("seconds", "samples", "memory")
    seconds, samples, memory = np.array([needed(row) for row in rows], dtype=float).T
    speed = samples / seconds
    memory = memory - context
    return list(zip((speed[0] / speed).tolist(), (memory / memory[0]).tolist()))


# %% ratios: wrong, context taken off one side
# the context is taken out below the line only
def ratios(rows, context):
    vanilla = rows[0]
    base = vanilla["memory"] - context
    return [
        (
            row["seconds"] * vanilla["samples"] / row["samples"] / vanilla["seconds"],
            row["memory"] / base,
        )
        for row in rows
    ]


# %% largest_micro_batch: right
from bisect import bisect_right


def largest_micro_batch(peak, effective_batch, budget, context):
    sizes = sorted({n for n in range(1, effective_batch + 1) if effective_batch % n == 0})
    number = bisect_right(sizes, budget - context, key=peak)
    if number == 0:
        return (0, 0)
    return (sizes[number - 1], effective_batch // sizes[number - 1])


# %% largest_micro_batch: wrong, only halves tried
# only halves are tried
def largest_micro_batch(peak, effective_batch, budget, context):
    steps = 1
    while effective_batch // steps >= 1:
        if effective_batch % steps == 0 and peak(effective_batch // steps) + context <= budget:
            return effective_batch // steps, steps
        steps *= 2
    return 0, 0


# %% choose_row: right
def choose_row(rows, budget, context):
    best = None
    for row in rows:
        match row:
            case {"speed": None}:
                continue
            case {"speed": speed, "memory": memory} if memory <= budget - context:
                if best is None or speed > best["speed"]:
                    best = row
    return best and best["name"]


# %% largest_micro_batch: wrong
# extrapolates a line from peak(1) and peak(2)
def largest_micro_batch(peak, effective_batch, budget, context):
    base, each = peak(1), peak(2) - peak(1)
    if base + context > budget:
        return 0, 0
    most = 1 + int((budget - context - base) // each)
    for size in range(min(most, effective_batch), 0, -1):
        if effective_batch % size == 0:
            return size, effective_batch // size
    return 0, 0


# %% choose_row: wrong
# speed 0.5 is cast to int
def choose_row(rows, budget, context):
    fitting = [r for r in rows if r["speed"] and r["memory"] + context <= budget]
    return max(fitting, key=lambda r: int(r["speed"]))["name"] if fitting else None


# %% largest_micro_batch: wrong, a line through two peaks
def largest_micro_batch(peak, effective_batch, budget, context):
    one, two = peak(1), peak(2)
    for steps in range(1, effective_batch + 1):
        size, left = divmod(effective_batch, steps)
        if not left and context + one + (two - one) * (size - 1) <= budget:
            return size, steps
    return 0, 0


# %% choose_row: wrong
def choose_row(rows, budget, context):
    # samples for each byte, not samples
    fits = [row for row in rows if row["speed"] is not None and row["memory"] + context <= budget]
    return max(fits, key=lambda row: row["speed"] / row["memory"])["name"] if fits else None


# %% choose_row: wrong
def choose_row(rows, budget, context):
    # a row must be five per cent faster to be taken
    best = None
    for row in rows:
        if row["speed"] is not None and row["memory"] + context <= budget:
            if best is None or row["speed"] > 1.05 * best["speed"]:
                best = row
    return best and best["name"]


# %% ratios: right
def ratios(rows, context):
    pairs, vanilla = [], None
    for row in rows:
        numbers = row["seconds"] / row["samples"], row["memory"] - context
        vanilla = vanilla or numbers
        pairs.append(tuple(mine / base for mine, base in zip(numbers, vanilla)))
    return pairs


# %% ratios: wrong
def ratios(rows, context):
    first = rows[0]
    found = {
        row["name"]: (
            row["seconds"] / row["samples"] / (first["seconds"] / first["samples"]),
            (row["memory"] - context) / (first["memory"] - context),
        )
        for row in rows
    }
    return list(found.values())


# %% ratios: wrong
def ratios(rows, context):
    first = rows[0]
    return [(1.0, 1.0)] + [
        (
            row["seconds"] / row["samples"] / (first["seconds"] / first["samples"]),
            (row["memory"] - context) / (first["memory"] - context),
        )
        for row in rows[1:]
        if row["name"] != first["name"]
    ]


# %% largest_micro_batch: right
def largest_micro_batch(peak, effective_batch, budget, context):
    fitting = [
        (size, effective_batch // size)
        for size in range(1, effective_batch + 1)
        if effective_batch % size == 0 and peak(size) <= budget - context
    ]
    return max(fitting, default=(0, 0))


# %% largest_micro_batch: wrong
from functools import cache

largest = {}


def largest_micro_batch(peak, effective_batch, budget, context):
    key = effective_batch, budget, context
    if key not in largest:
        sizes = [
            n
            for n in range(1, effective_batch + 1)
            if effective_batch % n == 0 and peak(n) + context <= budget
        ]
        largest[key] = (sizes[-1], effective_batch // sizes[-1]) if sizes else (0, 0)
    return largest[key]


# %% largest_micro_batch: wrong
def largest_micro_batch(peak, effective_batch, budget, context):
    for micro_batch in range(effective_batch, 0, -1):
        if (
            effective_batch % micro_batch == 0
            and peak(micro_batch) + (context if micro_batch > 1 else 0) <= budget
        ):
            return micro_batch, effective_batch // micro_batch
    return 0, 0


# %% choose_row: right
def choose_row(rows, budget, context):
    timed = sorted((row for row in rows if row["speed"]), key=lambda row: -row["speed"])
    return next((row["name"] for row in timed if row["memory"] + context <= budget), None)


# %% choose_row: wrong
def choose_row(rows, budget, context):
    best = 1
    fitting = [
        row for row in rows if (row["speed"] or 0) >= 1 and row["memory"] + context <= budget
    ]
    if not fitting:
        return None
    return max(fitting, key=lambda row: row["speed"])["name"]


# %% ratios: wrong
def ratios(rows, context):
    def own(row):
        return max(row["memory"] - context, context)

    def each(row):
        return row["seconds"] / row["samples"]

    return [(each(row) / each(rows[0]), own(row) / own(rows[0])) for row in rows]


# %% choose_row: wrong, a row where nothing fits
def choose_row(rows, budget, context):
    ok = [r for r in rows if r["speed"] is not None and r["memory"] + context <= budget]
    return max(ok, key=lambda r: r["speed"])["name"] if ok else rows[0]["name"]


# %% choose_row: wrong, untimed rows not left out
def choose_row(rows, budget, context):
    best = None
    for row in rows:
        if row["memory"] + context > budget:
            continue
        if best is None or (row["speed"] or 0.0) > (best["speed"] or 0.0):
            best = row
    return best and best["name"]
