# %% name_fault: right
def name_fault(receipts, k):
    n = len(receipts[0])
    starts = list(range(0, n, k))
    sizes = [min(k, n - start) for start in starts]

    def run(value, steps=None):
        rows = []
        for start, size in list(zip(starts, sizes))[:steps]:
            rows.append([value(size) if start <= i < start + size else 0.0 for i in range(n)])
        return rows

    cases = {
        "right": run(lambda size: 1 / size),
        "not divided": run(lambda size: 1.0),
        "divided twice": run(lambda size: 1 / size / size),
        "short window divided by k": run(lambda size: 1 / k),
        "rest lost": run(lambda size: 1 / size, n // k),
    }
    for name, rows in cases.items():
        if len(rows) == len(receipts) and all(
            abs(a - b) < 0.002 for one, other in zip(rows, receipts) for a, b in zip(one, other)
        ):
            return name
    if sum(1 for share in receipts[0] if share) == 1 and receipts[0][k - 1]:
        return "only the last"
    return "early"


# %% name_fault: right
import torch


def name_fault(receipts, k):
    table = torch.tensor(receipts)
    behind = (table > 0).sum(1).tolist()
    sums = table.sum(1)
    rest = table.shape[1] % k
    if behind[0] == k - 1 and table[0, 0] > 0:
        return "early"
    if max(behind) == 1 and len(behind) > 0 and table[0, 0] == 0:
        return "only the last"
    if abs(sums[0] - k) < 0.01:
        return "not divided"
    if abs(sums[0] - 1 / k) < 0.01:
        return "divided twice"
    if rest and len(behind) == table.shape[1] // k:
        return "rest lost"
    if rest and abs(sums[-1] - rest / k) < 0.01:
        return "short window divided by k"
    return "right"


# %% name_fault: right
def name_fault(receipts, k):
    first, last = receipts[0], receipts[-1]
    used = [i for i, share in enumerate(first) if share != 0]
    if used == [k - 1]:
        return "only the last"
    if used[-1] == k - 2:
        return "early"
    s = round(sum(first), 2)
    if s == k:
        return "not divided"
    if s == round(k * round(1 / k**2, 4), 2):
        return "divided twice"
    if last[-1] == 0:
        return "rest lost"
    return "right" if sum(last) > 0.99 else "short window divided by k"


# %% name_fault: wrong
# Knows nothing of the first step that comes early.
def name_fault(receipts, k):
    sums = [sum(step) for step in receipts]
    if sums[0] > 1.5:
        return "not divided"
    if sum(1 for x in receipts[0] if x) == 1:
        return "only the last"
    if sums[0] < 0.9:
        return "divided twice"
    if sums[-1] < 0.9:
        return "short window divided by k"
    if not receipts[-1][-1]:
        return "rest lost"
    return "right"


# %% name_fault: wrong, rest not looked for
def name_fault(receipts, k):
    first, last = receipts[0], receipts[-1]
    used = [i for i, share in enumerate(first) if share != 0]
    if used == [k - 1]:
        return "only the last"
    if used[-1] == k - 2:
        return "early"
    if abs(sum(first) - k) < 0.01:
        return "not divided"
    if abs(sum(first) - 1 / k) < 0.01:
        return "divided twice"
    if sum(last) < 0.99:
        return "short window divided by k"
    return "right"


# %% name_fault: wrong
def name_fault(receipts, k):
    return "right"


# %% cured_windows: right
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    n = len(micro_batches)
    for index, (inputs, targets) in enumerate(micro_batches):
        size = min(k, n - index // k * k)
        loss = loss_function(model(inputs), targets) / size
        loss.backward()
        if (index + 1) % k == 0 or index + 1 == n:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()


# %% cured_windows: right
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    window = []

    def finish():
        if window:
            for weight in model.parameters():
                if weight.grad is not None:
                    weight.grad.div_(len(window))
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            scheduler.step()
            window.clear()

    for inputs, targets in micro_batches:
        loss_function(model(inputs), targets).backward()
        window.append(1)
        if len(window) == k:
            finish()
    finish()


# %% cured_windows: right
from itertools import islice


def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    rest = iter(micro_batches)
    while window := list(islice(rest, k)):
        optimizer.zero_grad()
        for inputs, targets in window:
            (loss_function(model(inputs), targets) * (1 / len(window))).backward()
        optimizer.step()
        scheduler.step()
    optimizer.zero_grad()


# %% cured_windows: wrong, short window divided by k
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    for index, (inputs, targets) in enumerate(micro_batches):
        loss = loss_function(model(inputs), targets) / k
        loss.backward()
        if (index + 1) % k == 0 or index == len(micro_batches) - 1:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


# %% cured_windows: wrong, schedule moved with every micro-batch
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    n = len(micro_batches)
    for index, (inputs, targets) in enumerate(micro_batches):
        size = min(k, n - index // k * k)
        (loss_function(model(inputs), targets) / size).backward()
        if (index + 1) % k == 0 or index + 1 == n:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()


# %% cured_windows: wrong, short window lost
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    for index, (inputs, targets) in enumerate(micro_batches):
        loss = loss_function(model(inputs), targets) / k
        loss.backward()
        if (index + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


# %% cured_average: right
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for start in range(0, len(micro_batches), k):
        for inputs, targets in micro_batches[start : start + k]:
            (loss_function(model(inputs), targets) / k).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        for mean, weight in zip(average.parameters(), model.parameters()):
            mean.data.mul_(decay).add_(weight.data, alpha=1 - decay)


# %% cured_average: right
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    def clip():
        gradients = [w.grad for w in model.parameters() if w.grad is not None]
        length = torch.cat([g.flatten() for g in gradients]).norm()
        for g in gradients:
            g.mul_(torch.clamp(max_norm / (length + 1e-6), max=1.0))

    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        (loss / k).backward()
        if number % k:
            continue
        clip()
        optimizer.step()
        optimizer.zero_grad()
        weights = dict(model.named_parameters())
        with torch.no_grad():
            for name, mean in average.named_parameters():
                mean.copy_(decay * mean + (1 - decay) * weights[name])


# %% cured_average: right
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for i in range(len(micro_batches)):
        if i % k == 0:
            optimizer.zero_grad()
        x, y = micro_batches[i]
        loss_function(model(x), y).div(k).backward()
        if i % k == k - 1:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=max_norm)
            optimizer.step()
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(average.parameters()), list(model.parameters()), 1 - decay
                )


# %% cured_average: wrong, clipped every micro-batch
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets) / k
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean.lerp_(weight, 1 - decay)


# %% cured_average: wrong, average moved every micro-batch
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for start in range(0, len(micro_batches), k):
        for place, (inputs, targets) in enumerate(micro_batches[start : start + k]):
            loss = loss_function(model(inputs), targets) / k
            loss.backward()
            if place == k - 1:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean.lerp_(weight, 1 - decay)


# %% cured_average: wrong
# The limit is divided instead of the loss.
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss_function(model(inputs), targets).backward()
        if number % k == 0:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm / k)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean.lerp_(weight, 1 - decay)


# %% name_fault: wrong, all steps judged by their mean
# the mean over all steps decides, and a short window is lost in it
def name_fault(receipts, k):
    sums = [sum(receipt) for receipt in receipts]
    used = [i for i, share in enumerate(receipts[0]) if share]
    if used == [k - 1]:
        return "only the last"
    if len(used) == k - 1:
        return "early"
    mean = sum(sums) / len(sums)
    if mean > 1.05:
        return "not divided"
    if mean < 0.8:
        return "divided twice"
    if receipts[-1][-1] == 0:
        return "rest lost"
    return "right" if mean > 0.99 else "short window divided by k"


# %% name_fault: wrong, an early step taken for the last micro-batch
# with k = 2 an early step has one micro-batch, too
def name_fault(receipts, k):
    first, last = receipts[0], receipts[-1]
    used = sum(1 for share in first if share > 0)
    if used == 1:
        return "only the last"
    if used == k - 1:
        return "early"
    if sum(first) > 1.1:
        return "not divided"
    if sum(first) < 0.9:
        return "divided twice"
    if last[-1] == 0:
        return "rest lost"
    return "right" if abs(sum(last) - 1) < 0.01 else "short window divided by k"


# %% cured_average: wrong, the average never moves
# the name is bound anew: the average never moves
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for i, (x, y) in enumerate(micro_batches, 1):
        (loss_function(model(x), y) / k).backward()
        if i % k == 0:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean = decay * mean + (1 - decay) * weight


# %% name_fault: right
def members(step):
    return [index for index, share in enumerate(step) if share != 0]


def name_fault(receipts, k):
    count = len(receipts[0])
    windows = [list(range(a, min(a + k, count))) for a in range(0, count, k)]
    seen = [members(step) for step in receipts]
    if seen == windows:
        first = receipts[0][0]
        rest = receipts[-1][windows[-1][0]]
        if abs(first - 1) < 1e-3:
            return "not divided"
        if abs(first - 1 / k**2) < 1e-3 * (1 / k):
            return "divided twice"
        if len(windows[-1]) < k and abs(rest - 1 / k) < 1e-4:
            return "short window divided by k"
        return "right"
    if seen == windows[:-1]:
        return "rest lost"
    if seen == [window[-1:] for window in windows]:
        return "only the last"
    return "early"


# %% name_fault: wrong
def name_fault(receipts, k):
    n = len(receipts[0])
    windows = [range(start, min(start + k, n)) for start in range(0, n, k)]

    def record(windows, share):
        return [[round(share(w), 4) if i in w else 0.0 for i in range(n)] for w in windows]

    def same(expected):
        return len(expected) == len(receipts) and all(
            abs(a - b) < 0.06 for x, y in zip(expected, receipts) for a, b in zip(x, y)
        )

    whole = [w for w in windows if len(w) == k]
    if same(record(windows, lambda w: 1 / len(w))):
        return "right"
    if same(record(windows, lambda w: 1.0)):
        return "not divided"
    if same(record(windows, lambda w: 1 / len(w) ** 2)):
        return "divided twice"
    if same(record(windows, lambda w: 1 / k)):
        return "short window divided by k"
    if same(record(whole, lambda w: 1 / k)):
        return "rest lost"
    if [i for i, share in enumerate(receipts[0]) if share] == list(range(k - 1)) and k > 2:
        return "early"
    if len(receipts) > 1 and [bool(s) for s in receipts[1]] == [
        k - 1 <= i < 2 * k - 1 for i in range(n)
    ]:
        return "early"
    return "only the last"


# %% cured_windows: right
from itertools import islice


def windows(items, size):
    items = iter(items)
    while window := list(islice(items, size)):
        yield window


def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    for window in windows(micro_batches, k):
        for x, y in window:
            loss_function(model(x), y).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(len(window))
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


# %% cured_windows: wrong
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    total = len(micro_batches)
    for index, batch in enumerate(micro_batches):
        inputs, targets = batch
        size = min(k, total - index // k * k)
        (loss_function(model(inputs), targets) / size).backward()
        if (index + 1) % k == 0 or batch is micro_batches[-1]:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


# %% cured_average: right
import torch


def clip(weights, longest):
    gradients = [w.grad for w in weights if w.grad is not None]
    length = torch.linalg.vector_norm(torch.stack([g.norm() for g in gradients]))
    if length > longest:
        for gradient in gradients:
            gradient.mul_(longest / length)


def follow(average, model, decay):
    for mean, weight in zip(average.parameters(), model.parameters()):
        mean.data.mul_(decay).add_(weight.data, alpha=1 - decay)


def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for start in range(0, len(micro_batches), k):
        for x, y in micro_batches[start : start + k]:
            (loss_function(model(x), y) / k).backward()
        clip(list(model.parameters()), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        follow(average, model, decay)


# %% cured_average: wrong, weights without gradient left out of the average
import torch
from torch import nn


def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        (loss / k).backward()
        if number % k == 0:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    if not mean.requires_grad:
                        continue
                    mean.lerp_(weight, 1 - decay)


# %% cured_average: wrong, weights without gradient left out of the average
import torch
from torch import nn


def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        (loss / k).backward()
        if number % k == 0:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    if not weight.requires_grad:
                        continue
                    mean.lerp_(weight, 1 - decay)


# %% name_fault: right
def name_fault(receipts, k):
    n = len(receipts[0])
    windows = [range(i, min(i + k, n)) for i in range(0, n, k)]

    def record(windows, share):
        return [
            [round(share(window), 4) if i in window else 0.0 for i in range(n)]
            for window in windows
        ]

    early = [range(max(0, end - k), end) for end in range(k - 1, n + 1, k)]
    whole = [window for window in windows if len(window) == k]
    known = {
        "right": record(windows, lambda w: 1 / len(w)),
        "not divided": record(windows, lambda w: 1.0),
        "divided twice": record(windows, lambda w: 1 / len(w) ** 2),
        "early": record(early, lambda w: 1 / k),
        "short window divided by k": record(windows, lambda w: 1 / k),
        "rest lost": record(whole, lambda w: 1 / k),
    }
    for name, expected in known.items():
        if len(expected) == len(receipts) and all(
            abs(a - b) < 2e-4 for one, two in zip(expected, receipts) for a, b in zip(one, two)
        ):
            return name
    return "only the last"


# %% name_fault: wrong
def name_fault(receipts, k):
    """The name of what the recorded epoch did."""
    total = len(receipts[0])
    rest = total % k
    behind = [[place for place, share in enumerate(step) if share] for step in receipts]
    if behind[0] == list(range(k - 1)):
        return "early"
    if behind[0] == [k - 1]:
        return "only the last"
    if rest and len(receipts) == total // k:
        return "rest lost"
    share = receipts[0][0]
    for name, wanted in (("not divided", 1), ("divided twice", 1 / k**2)):
        if abs(share - wanted) < 1e-4:
            return name
    if abs(receipts[-1][-1] - 1 / k) < 1e-4:
        return "short window divided by k"
    return "right"


# %% cured_windows: wrong, divided by what is left
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    total = len(micro_batches)
    for index, (inputs, targets) in enumerate(micro_batches):
        size = min(k, total - index)
        loss = loss_function(model(inputs), targets) / size
        loss.backward()
        if (index + 1) % k == 0 or index + 1 == total:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


# %% cured_windows: wrong, activations of the window held
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        x = torch.cat([a for a, _ in window])
        y = torch.cat([b for _, b in window])
        loss_function(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()


# %% name_fault: wrong, rounded shares compared exactly
def name_fault(receipts, k):
    n = len(receipts[0])
    steps = [[i for i, s in enumerate(step) if s] for step in receipts]
    first = steps[0]
    if first == [k - 1]:
        return "only the last"
    if first == list(range(k - 1)):
        return "early"
    share = receipts[0][first[0]]
    if share == 1:
        return "not divided"
    if share == 1 / k**2:
        return "divided twice"
    if n % k:
        if len(steps) == n // k:
            return "rest lost"
        if receipts[-1][-1] == 1 / k:
            return "short window divided by k"
    return "right"


# %% name_fault: wrong, rounded shares compared exactly
def name_fault(receipts, k):
    n = len(receipts[0])
    steps = [[i for i, s in enumerate(step) if s] for step in receipts]
    first = steps[0]
    if first == [k - 1]:
        return "only the last"
    if first == list(range(k - 1)):
        return "early"
    share = receipts[0][first[0]]
    if sum(receipts[0]) == k:
        return "not divided"
    if sum(receipts[0]) == 1 / k:
        return "divided twice"
    if n % k:
        if len(steps) == n // k:
            return "rest lost"
        if receipts[-1][-1] == 1 / k:
            return "short window divided by k"
    return "right"


# %% name_fault: wrong, rounded shares compared exactly
def name_fault(receipts, k):
    n = len(receipts[0])
    if sum(receipts[0]) == k:
        return "not divided"
    if receipts[0][0] == 0:
        return "only the last"
    if receipts[0][k - 1] == 0:
        return "early"
    if sum(receipts[0]) == 1 / k:
        return "divided twice"
    if len(receipts) < n / k:
        return "rest lost"
    if sum(receipts[-1]) != 1:
        return "short window divided by k"
    return "right"


# %% name_fault: wrong, all sums of 1 taken to be right
def name_fault(receipts, k):
    if all(sum(step) == 1 for step in receipts):
        return "right"
    first, last = receipts[0], receipts[-1]
    if sum(1 for share in first if share) == k - 1 and first[0]:
        return "early"
    if not first[0]:
        return "only the last"
    if sum(first) > 1.5:
        return "not divided"
    if sum(first) < 0.9:
        return "divided twice"
    if last[-1] == 0:
        return "rest lost"
    return "short window divided by k"


# %% name_fault: wrong, rest not looked for
def name_fault(receipts, k):
    n = len(receipts[0])
    first = [share for share in receipts[0] if share]
    if not receipts[0][0]:
        return "only the last"
    if len(first) < k:
        return "early"
    if first[0] == 1:
        return "not divided"
    if first[0] < 0.9 / k:
        return "divided twice"
    if len(receipts) < n // k:
        return "rest lost"
    if sum(receipts[-1]) < 0.95:
        return "short window divided by k"
    return "right"


# %% name_fault: wrong, rounded shares compared exactly
def name_fault(receipts, k):
    first = [share for share in receipts[0] if share]
    if len(first) == 1 and not receipts[0][0]:
        return "only the last"
    if len(first) < k:
        return "early"
    if max(first) == 1:
        return "not divided"
    if sum(first) < 0.9:
        return "divided twice"
    if not receipts[-1][-1]:
        return "rest lost"
    return "right" if all(sum(step) == 1.0 for step in receipts) else "short window divided by k"


# %% cured_windows: wrong, last window divided by k, with a step even if it is empty
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    def finish():
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()

    for number, (x, y) in enumerate(micro_batches, start=1):
        loss_function(model(x), y).div(k).backward()
        if not number % k:
            finish()
    finish()


# %% cured_windows: wrong, the rest's divisor from another micro-batch on
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    n = len(micro_batches)
    rest = n % k
    for i in range(n):
        x, y = micro_batches[i]
        divisor = rest if i > n - rest else k
        (loss_function(model(x), y) / divisor).backward()
        if (i + 1) % k == 0 or i == n - 1:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


# %% cured_windows: wrong, the rest's divisor from another micro-batch on
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    n = len(micro_batches)
    for i, (x, y) in enumerate(micro_batches):
        length = k if i < n - k else n % k or k
        loss = loss_function(model(x), y) / length
        loss.backward()
        if (i + 1) % k == 0 or i + 1 == n:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()


# %% cured_windows: wrong, nothing behind the rest's step
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    n = len(micro_batches)
    for i, (x, y) in enumerate(micro_batches):
        loss = loss_function(model(x), y)
        (loss / (k if i < n - n % k else n % k)).backward()
        if i % k == k - 1:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
    if n % k > 0:
        optimizer.step()


# %% cured_windows: wrong, the list of micro-batches emptied
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    while len(micro_batches) > 0:
        size = min(k, len(micro_batches))
        for _ in range(size):
            x, y = micro_batches.pop(0)
            (loss_function(model(x), y) / size).backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()


# %% cured_average: wrong, the sum cut to k times the limit
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for i in range(0, len(micro_batches), k):
        for x, y in micro_batches[i : i + k]:
            loss_function(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), k * max_norm)
        optimizer.step()
        optimizer.zero_grad()
        for old, new in zip(average.parameters(), model.parameters()):
            old.data = decay * old.data + (1 - decay) * new.data


# %% cured_average: wrong, average moved a little every micro-batch
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    slow = decay ** (1 / k)
    for i in range(0, len(micro_batches), k):
        window = micro_batches[i : i + k]
        for x, y in window:
            (loss_function(model(x), y) / k).backward()
            if x is window[-1][0]:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()
            for old, new in zip(average.parameters(), model.parameters()):
                old.data = slow * old.data + (1 - slow) * new.data


# %% cured_average: wrong, average moved once at the end
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for i in range(0, len(micro_batches), k):
        for x, y in micro_batches[i : i + k]:
            (loss_function(model(x), y) / k).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
    for old, new in zip(average.parameters(), model.parameters()):
        old.data = decay * old.data + (1 - decay) * new.data


# %% cured_average: wrong, clipped every micro-batch
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for i in range(0, len(micro_batches), k):
        for x, y in micro_batches[i : i + k]:
            (loss_function(model(x), y) / k).backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm / k)
        optimizer.step()
        optimizer.zero_grad()
        for old, new in zip(average.parameters(), model.parameters()):
            old.data = decay * old.data + (1 - decay) * new.data


# %% cured_average: wrong, weights without gradient left out of the average
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for i in range(0, len(micro_batches), k):
        for x, y in micro_batches[i : i + k]:
            (loss_function(model(x), y) / k).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        trained = [
            (m, w) for m, w in zip(average.parameters(), model.parameters()) if w.requires_grad
        ]
        for old, new in trained:
            old.data = decay * old.data + (1 - decay) * new.data


# %% cured_average: wrong, the mean cut to a k-th of the limit
# divided first, and clipped once to a k-th
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        (loss_function(model(inputs), targets) / k).backward()
        if number % k == 0:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm / k)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for mean, weight in zip(average.parameters(), model.parameters()):
                    mean.lerp_(weight, 1 - decay)


# %% name_fault: wrong, rest not looked for
# with a tolerance
def name_fault(receipts, k):
    sums = [sum(receipt) for receipt in receipts]
    if all(abs(total - 1) < 0.01 for total in sums):
        return "right"
    used = [index for index, share in enumerate(receipts[0]) if share]
    if used == [k - 1]:
        return "only the last"
    if len(used) == k - 1:
        return "early"
    if sums[0] > 1.01:
        return "not divided"
    if sums[0] < 0.99:
        return "divided twice"
    return "short window divided by k" if receipts[-1][-1] else "rest lost"


# %% name_fault: wrong, rounded shares compared exactly
# isclose() is narrower than the rounding of the record
def name_fault(receipts, k):
    from math import isclose

    first, last = receipts[0], receipts[-1]
    used = [index for index, share in enumerate(first) if share]
    if used == [k - 1]:
        return "only the last"
    if len(used) == k - 1:
        return "early"
    if not isclose(sum(first), 1):
        return "not divided" if sum(first) > 1 else "divided twice"
    if not last[-1]:
        return "rest lost"
    return "right" if isclose(sum(last), 1) else "short window divided by k"


# %% cured_windows: wrong, all steps at the first rate
# scheduler.step() a level too far out
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    for s in range(0, len(micro_batches), k):
        window = micro_batches[s : s + k]
        for inputs, targets in window:
            loss = loss_function(model(inputs), targets) / len(window)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    scheduler.step()


# %% cured_windows: wrong, all steps at the first rate
# the schedule forgotten
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    n = len(micro_batches)
    for i, (x, y) in enumerate(micro_batches):
        size = min(k, n - i // k * k)
        (loss_function(model(x), y) / size).backward()
        if (i + 1) % k == 0 or i + 1 == n:
            optimizer.step()
            optimizer.zero_grad()


# %% cured_average: right
def cured_average(model, average, optimizer, loss_function, micro_batches, k, max_norm, decay):
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}

    def loss_of(values, inputs, targets):
        return loss_function(torch.func.functional_call(model, values, (inputs,)), targets)

    for start in range(0, len(micro_batches), k):
        for inputs, targets in micro_batches[start : start + k]:
            values = {name: one.detach() for name, one in trained.items()}
            for name, part in torch.func.grad(loss_of)(values, inputs, targets).items():
                before = trained[name].grad
                trained[name].grad = part / k if before is None else before + part / k
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, weight in zip(average.parameters(), model.parameters()):
                mean.lerp_(weight, 1 - decay)


# %% cured_windows: right
def cured_windows(model, optimizer, scheduler, loss_function, micro_batches, k):
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}

    def loss_of(values, inputs, targets):
        return loss_function(torch.func.functional_call(model, values, (inputs,)), targets)

    for start in range(0, len(micro_batches), k):
        window = micro_batches[start : start + k]
        for inputs, targets in window:
            values = {name: one.detach() for name, one in trained.items()}
            for name, part in torch.func.grad(loss_of)(values, inputs, targets).items():
                part = part / len(window)
                before = trained[name].grad
                trained[name].grad = part if before is None else before + part
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
