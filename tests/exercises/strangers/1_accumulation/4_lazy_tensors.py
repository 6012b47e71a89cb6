# %% fallbacks: right
from collections import Counter


def counts():
    found = Counter()
    for name in metrics.counter_names():
        if name.startswith("aten::"):
            found[name] = metrics.counter_value(name)
    return found


def fallbacks(train):
    before = counts()
    train()
    return dict(counts() - before)


# %% fallbacks: right
class Watch:
    def __enter__(self):
        self.before = {name: metrics.counter_value(name) or 0 for name in metrics.counter_names()}
        return self

    def __exit__(self, *_):
        self.calls = {}
        for name in metrics.counter_names():
            new = (metrics.counter_value(name) or 0) - self.before.get(name, 0)
            if new > 0 and name[:6] == "aten::":
                self.calls[name] = new


def fallbacks(train):
    with Watch() as watch:
        train()
    return watch.calls


# %% fallbacks: right
def fallbacks(train):
    names = list(filter(re.compile("aten::").match, metrics.counter_names()))
    earlier = [metrics.counter_value(name) for name in names]
    train()
    result = {}
    for name in metrics.counter_names():
        if not name.startswith("aten::"):
            continue
        calls = metrics.counter_value(name)
        if name in names:
            calls -= earlier[names.index(name)]
        if calls:
            result[name] = calls
    return result


# %% fallbacks: wrong, the counters reset
# resets the counters of everybody
def fallbacks(train):
    metrics.reset()
    train()
    names = [name for name in metrics.counter_names() if name.startswith("aten::")]
    return {name: metrics.counter_value(name) for name in names if metrics.counter_value(name)}


# %% fallbacks: wrong, counts what was there before
# counts what ran before, too
def fallbacks(train):
    train()
    names = [name for name in metrics.counter_names() if name.startswith("aten::")]
    return {name: metrics.counter_value(name) for name in names}


# %% fallbacks: wrong, what was counted before left out
# names that were there before are left out, although they were called again
def fallbacks(train):
    before = set(metrics.counter_names())
    train()
    new = set(metrics.counter_names()) - before
    return {name: metrics.counter_value(name) for name in new if name.startswith("aten::")}


# %% fallbacks: wrong, counters that did not move
# the right count of calls, also those that are zero
def fallbacks(train):
    before = {name: metrics.counter_value(name) for name in metrics.counter_names()}
    train()
    return {
        name: metrics.counter_value(name) - before.get(name, 0)
        for name in metrics.counter_names()
        if name.startswith("aten::")
    }


# %% fallbacks: wrong, all counters
# every counter, recorded operators too
def fallbacks(train):
    before = {name: metrics.counter_value(name) for name in metrics.counter_names()}
    train()
    calls = {}
    for name in metrics.counter_names():
        count = metrics.counter_value(name) - before.get(name, 0)
        if count:
            calls[name] = count
    return calls


# %% fallbacks: wrong, names cut short
# without the prefix
def fallbacks(train):
    before = {name: metrics.counter_value(name) for name in metrics.counter_names()}
    train()
    calls = {}
    for name in metrics.counter_names():
        if name.startswith("aten::"):
            count = metrics.counter_value(name) - before.get(name, 0)
            if count:
                calls[name.removeprefix("aten::")] = count
    return calls


# %% fallbacks: wrong, what was counted before left out
# the generator reads the counters only after the training, so every difference is zero
def fallbacks(train):
    before = ((n, metrics.counter_value(n)) for n in metrics.counter_names() if "aten::" in n)
    train()
    before = dict(before)
    after = {n: metrics.counter_value(n) for n in metrics.counter_names() if "aten::" in n}
    return {n: after[n] - before.get(n, 0) for n in after if after[n] != before.get(n, 0)}


# %% fallbacks: wrong, train is called twice
# calls train twice
def fallbacks(train):
    def read():
        names = [name for name in metrics.counter_names() if name.startswith("aten::")]
        return {name: metrics.counter_value(name) for name in names}

    train()
    before = read()
    train()
    return {n: c - before.get(n, 0) for n, c in read().items() if c != before.get(n, 0)}


# %% clip_without_fallback: right
def clip_without_fallback(parameters, max_norm):
    gradients = []
    for p in parameters:
        if p.grad is not None:
            gradients.append(p.grad)
    squares = 0
    for g in gradients:
        squares = squares + g.mul(g).sum()
    over = squares.sqrt() / max_norm
    over = torch.maximum(over, torch.ones_like(over))
    for g in gradients:
        g.div_(over)


# %% clip_without_fallback: right
from functools import reduce


def clip_without_fallback(parameters, max_norm):
    with_gradient = [p for p in parameters if p.grad is not None]
    total = reduce(torch.add, ((p.grad**2).sum() for p in with_gradient))
    factor = (max_norm * (total + 1e-12).rsqrt()).clamp(max=1)
    for p in with_gradient:
        p.grad = p.grad * factor


# %% clip_without_fallback: right
class Clip:
    def __init__(self, max_norm):
        self.max_norm = max_norm

    def factor(self, gradients):
        flat = torch.cat([g.reshape(-1) for g in gradients])
        length = torch.sqrt((flat * flat).sum())
        return torch.minimum(self.max_norm / (length + 1e-6), torch.ones_like(length))

    def __call__(self, gradients):
        scale = self.factor(gradients)
        for i in range(len(gradients)):
            gradients[i] *= scale


def clip_without_fallback(parameters, max_norm):
    gradients = [g for g in (p.grad for p in parameters) if g is not None]
    Clip(max_norm)(gradients)


# %% clip_without_fallback: wrong, a lazy value asked for
# asks for the length in an if
def clip_without_fallback(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = sum((g * g).sum() for g in gradients).sqrt()
    if length > max_norm:
        for g in gradients:
            g.mul_(max_norm / length)


# %% clip_without_fallback: wrong, a lazy value asked for
# takes the length out with item()
def clip_without_fallback(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = sum((g * g).sum() for g in gradients).item() ** 0.5
    for g in gradients:
        g.mul_(min(1.0, max_norm / (length + 1e-6)))


# %% clip_without_fallback: wrong, every tensor clipped by itself
# every gradient by its own length
def clip_without_fallback(parameters, max_norm):
    for p in parameters:
        if p.grad is not None:
            length = (p.grad * p.grad).sum().sqrt()
            p.grad.mul_((max_norm / (length + 1e-6)).clamp(max=1.0))


# %% clip_without_fallback: wrong, always scaled
# short gradients are made longer
def clip_without_fallback(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = sum((g * g).sum() for g in gradients).sqrt()
    for g in gradients:
        g.mul_(max_norm / (length + 1e-6))


# %% clip_without_fallback: wrong, the root is missing
# the root is forgotten
def clip_without_fallback(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = sum((g * g).sum() for g in gradients)
    factor = (max_norm / (length + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factor)


# %% clip_without_fallback: wrong, the operator without a kernel is still there
# torch's function, which falls back
def clip_without_fallback(parameters, max_norm):
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)


# %% clip_without_fallback: wrong, parameters without a gradient not passed over
# parameters without a gradient are not passed over
def clip_without_fallback(parameters, max_norm):
    gradients = [p.grad for p in parameters]
    length = sum((g * g).sum() for g in gradients).sqrt()
    for g in gradients:
        g.mul_((max_norm / (length + 1e-6)).clamp(max=1.0))


# %% clip_without_fallback: wrong, nothing is clipped
# new tensors are computed and dropped: .grad is as it was
def clip_without_fallback(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = sum((g * g).sum() for g in gradients).sqrt()
    factor = (max_norm / (length + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g = g * factor


# %% train_with_marks: right
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        for inputs, targets in micro_batches[start : start + accumulation_steps]:
            (loss_function(model(inputs), targets) / accumulation_steps).backward()
            mark_step()
        optimizer.step()
        optimizer.zero_grad()
        mark_step()


# %% train_with_marks: right
class Marked:
    def __init__(self, model, optimizer, loss_function, k):
        self.model, self.optimizer, self.loss_function, self.k = model, optimizer, loss_function, k

    def forward_and_backward(self, inputs, targets):
        loss = self.loss_function(self.model(inputs), targets)
        (loss / self.k).backward()
        mark_step(wait=True)

    def update(self):
        self.optimizer.step()
        mark_step(wait=True)
        self.optimizer.zero_grad(set_to_none=True)  # nothing to compute


def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    loop = Marked(model, optimizer, loss_function, accumulation_steps)
    i = 0
    while i < len(micro_batches):
        loop.forward_and_backward(*micro_batches[i])
        i += 1
        if i % accumulation_steps == 0:
            loop.update()


# %% train_with_marks: right
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    left = iter(micro_batches)
    for _ in range(len(micro_batches) // accumulation_steps):
        for _ in range(accumulation_steps):
            x, y = next(left)
            output = model(x)
            loss = loss_function(output, y) / accumulation_steps
            loss.backward()
            del output, loss
            mark_step()
        optimizer.step()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.zero_()
        mark_step()


# %% train_with_marks: wrong, no mark after backward
# one mark a window
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        for inputs, targets in micro_batches[start : start + accumulation_steps]:
            (loss_function(model(inputs), targets) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        mark_step()


# %% train_with_marks: wrong, no mark after the update
# no mark after the update: it hides in the next micro-batch's graph, and the last is never run
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_with_marks: wrong, the graph cut between forward and backward
# forward and backward are two graphs
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        loss = loss_function(model(inputs), targets) / accumulation_steps
        mark_step()
        loss.backward()
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            mark_step()


# %% train_with_marks: wrong, one mark in each round
# the mark stands before the update, at the end of the round: micro-batch and update are one graph
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        mark_step()


# %% train_with_marks: wrong, zeroed behind the mark
# zeros are written after the mark: they go into the next graph, and the last ones are left unrun
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            mark_step()
            optimizer.zero_grad(set_to_none=False)


# %% train_with_marks: wrong, loss not divided
# the loss is not divided
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        loss_function(model(inputs), targets).backward()
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            mark_step()


# %% train_with_marks: wrong, the graph cut between forward and backward
# reads the loss in every round
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    total = 0.0
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        loss = loss_function(model(inputs), targets) / accumulation_steps
        total += loss.item()
        loss.backward()
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            mark_step()


# %% train_with_marks: wrong, the zeros in a graph of their own
# a graph of its own for the zeros
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            mark_step()
            optimizer.zero_grad(set_to_none=False)
            mark_step()


# %% breaking_lines: wrong, a line about a mark taken for one
def breaking_lines(before, rows):
    lines = [line for line, _ in rows]
    counts = [before] + [count for _, count in rows]
    ran = [after - ahead for ahead, after in zip(counts, counts[1:])]
    return {line for line, new in zip(lines, ran) if new and not "mark_step" in line}


# %% breaking_lines: right
def breaking_lines(before, rows):
    if not rows:
        return set()
    (line, count), *rest = rows
    mine = {line} if count != before and "mark_step(" not in line else set()
    return mine | breaking_lines(count, rest)


# %% breaking_lines: right
def breaking_lines(before, rows):
    by_line = {}
    seen = before
    for text, total in rows:
        by_line[text] = by_line.get(text, 0) + total - seen
        seen = total
    return [text for text, graphs in by_line.items() if graphs and not text.count("mark_step(")]


# %% breaking_lines: wrong, the marks, too
def breaking_lines(before, rows):
    breaks = set()
    for line, count in rows:
        if count - before:
            breaks |= {line}
        before = count
    return breaks


# %% breaking_lines: wrong, only the first break
def breaking_lines(before, rows):
    for line, count in rows:
        if count > before and "mark_step(" not in line:
            return [line]
        before = count
    return []


# %% breaking_lines: wrong
# a break in the row right behind a mark is taken for the mark's
def breaking_lines(before, rows):
    breaks, behind_mark = set(), False
    for line, count in rows:
        is_mark = "mark_step(" in line
        if count > before and not is_mark and not behind_mark and "print" not in line:
            breaks.add(line)
        before, behind_mark = count, is_mark
    return {line.upper() for line in breaks}


# %% fallbacks: right
def fallbacks(train):
    def report():
        text = metrics.metrics_report()
        return {
            name: int(value)
            for name, value in re.findall(r"Counter: (aten::\S+)\s+Value: (\d+)", text)
        }

    before = report()
    train()
    after = report()
    changed = after.items() - before.items()
    return {name: value - before.get(name, 0) for name, value in changed}


# %% fallbacks: wrong, earlier calls counted in
# what changed is returned with all its calls, those before too
def fallbacks(train):
    before = {
        n: metrics.counter_value(n) for n in metrics.counter_names() if n.startswith("aten::")
    }
    train()
    after = {n: metrics.counter_value(n) for n in metrics.counter_names() if n.startswith("aten::")}
    return {n: v for n, v in after.items() if v != before.get(n)}


# %% fallbacks: wrong, what was not counted before left out
# only the names of the first reading
def fallbacks(train):
    before = {
        n: metrics.counter_value(n) for n in metrics.counter_names() if n.startswith("aten::")
    }
    train()
    return {
        n: metrics.counter_value(n) - v for n, v in before.items() if metrics.counter_value(n) - v
    }


# %% clip_without_fallback: right
# Tensor.norm has a lazy kernel
def clip_without_fallback(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = torch.stack([g.norm() for g in gradients]).norm()
    factor = (max_norm / (length + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factor)


# %% clip_without_fallback: right
from functools import reduce


def clip_without_fallback(parameters, max_norm):
    having = [p for p in parameters if p.grad is not None]
    if not having:
        return
    squares = reduce(lambda a, b: a + b, ((p.grad * p.grad).sum() for p in having))
    length = torch.sqrt(squares)
    factor = max_norm / torch.maximum(length, torch.full_like(length, max_norm))
    for p in having:
        p.grad = p.grad * factor


# %% clip_without_fallback: wrong, the graph run while clipping
# a mark first
def clip_without_fallback(parameters, max_norm):
    torch._lazy.mark_step()
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = sum((g * g).sum() for g in gradients).sqrt()
    factor = (max_norm / (length + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factor)


# %% clip_without_fallback: wrong, the lengths added up
# the sum of lengths
def clip_without_fallback(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = sum((g * g).sum().sqrt() for g in gradients)
    factor = (max_norm / (length + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(factor)


# %% train_with_marks: right
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    source = iter(micro_batches)
    window = list(zip(range(accumulation_steps), source))
    while window:
        for _, (inputs, targets) in window:
            loss = loss_function(model(inputs), targets)
            loss.backward()
            mark_step()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= accumulation_steps
        optimizer.step()
        model.zero_grad(set_to_none=False)
        mark_step()
        window = [(i, pair) for i, pair in zip(range(accumulation_steps), source)]


# %% train_with_marks: wrong, no mark behind the last update
# the last update is left unrun
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches):
        mark_step()
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        if (number + 1) % accumulation_steps == 0:
            mark_step()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


# %% train_with_marks: right
# the loss is read behind the mark
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    total = 0.0
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets) / accumulation_steps
        loss.backward()
        mark_step(wait=True)
        total += loss.item()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            mark_step(wait=True)


# %% train_with_marks: wrong, the loss read before the mark
# the loss is read between backward and the mark
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets) / accumulation_steps
        loss.backward()
        print(loss.item())
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            mark_step()


# %% train_with_marks: wrong, one graph for the whole window and one for the update
# two marks in a window: the micro-batches in one graph, the update in another
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        for inputs, targets in micro_batches[start : start + accumulation_steps]:
            (loss_function(model(inputs), targets) / accumulation_steps).backward()
        mark_step()
        optimizer.step()
        optimizer.zero_grad()
        mark_step()


# %% train_with_marks: wrong, a Python float beside the loss
# multiplied with a number
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        (loss_function(model(inputs), targets) * (1 / accumulation_steps)).backward()
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            mark_step()


# %% breaking_lines: right
from itertools import pairwise


def breaking_lines(before, rows):
    everything = [("mark_step(", before), *rows]
    return {
        line
        for (_, old), (line, new) in pairwise(everything)
        if new > old and "mark_step(" not in line
    }


# %% breaking_lines: wrong, the marks passed over with their counts
# a mark's graphs are put down to the line after it
def breaking_lines(before, rows):
    found = set()
    for line, graphs in rows:
        if "mark_step(" in line:
            continue
        if graphs > before:
            found.add(line)
        before = graphs
    return found


# %% breaking_lines: wrong, a mark known by one spelling
# a mark with an argument is not known as one
def breaking_lines(before, rows):
    found = set()
    for line, graphs in rows:
        if graphs > before and "mark_step()" not in line:
            found.add(line)
        before = graphs
    return found


# %% breaking_lines: wrong, the first row not looked at
# the first row is not looked at
def breaking_lines(before, rows):
    found = set()
    for (_, old), (line, new) in zip(rows, rows[1:]):
        if new > old and "mark_step(" not in line:
            found.add(line)
    return found


# %% train_with_marks: right
import torch._lazy


def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    def portion(pair):
        loss = loss_function(model(pair[0]), pair[1]) / accumulation_steps
        loss.backward()
        torch._lazy.mark_step()

    def update():
        optimizer.step()
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.zero_()
        torch._lazy.mark_step()

    for index, pair in enumerate(micro_batches):
        portion(pair)
        (index + 1) % accumulation_steps or update()


# %% breaking_lines: wrong, a line that ran two graphs passed over
# only jumps of exactly one
def breaking_lines(before, rows):
    found = set()
    for line, n in rows:
        if n == before + 1 and "mark_step(" not in line:
            found.add(line)
        before = n
    return found


# %% clip_without_fallback: wrong
# weights scaled, too
def clip_without_fallback(parameters, max_norm):
    parameters = list(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    norm = sum((g * g).sum() for g in grads).sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    with torch.no_grad():
        for p in parameters:
            p.sub_(factor)
    for g in grads:
        g.mul_(factor)


# %% clip_without_fallback: wrong
# None replaced by zeros
def clip_without_fallback(parameters, max_norm):
    parameters = list(parameters)
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    norm = sum((p.grad * p.grad).sum() for p in parameters).sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for p in parameters:
        p.grad.mul_(factor)


# %% breaking_lines: wrong
# lines without their comments
def breaking_lines(before, rows):
    found, last = set(), before
    for line, graphs in rows:
        code = line.split("#")[0].strip()
        if graphs > last and "mark_step(" not in code:
            found.add(code)
        last = graphs
    return found


# %% breaking_lines: wrong, only breaks of a known look
# counts, and a list of words
def breaking_lines(before, rows):
    found, last = set(), before
    for line, graphs in rows:
        if graphs > last and any(
            w in line for w in (".item(", "print(", "float(", "if ", "int(", "bool(", "tolist(")
        ):
            found.add(line)
        last = graphs
    return found


# %% clip_without_fallback: right
def clip_without_fallback(parameters, max_norm):
    gradients = [p.grad for p in parameters if p.grad is not None]
    length = torch.cat([g.flatten() for g in gradients]).norm()
    scale = (max_norm / (length + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(scale)


# %% clip_without_fallback: wrong
# clips the weights
def clip_without_fallback(parameters, max_norm):
    everything = [p for p in parameters if p.grad is not None]
    length = sum((p.grad * p.grad).sum() for p in everything).sqrt()
    scale = (max_norm / (length + 1e-6)).clamp(max=1.0)
    with torch.no_grad():
        for p in everything:
            p.mul_(scale)


# %% breaking_lines: right
def breaking_lines(before, rows):
    if not rows:
        return set()
    (line, after), *rest = rows
    mine = {line} if after > before and line.find("mark_step(") < 0 else set()
    return mine | breaking_lines(after, rest)


# %% breaking_lines: wrong, the line before the break
# compares with the next row: the line before the one that ran a graph
def breaking_lines(before, rows):
    found = set()
    for (line, graphs), (_, later) in zip(rows, rows[1:]):
        if later > graphs and "mark_step(" not in line:
            found.add(line)
    return found


# %% breaking_lines: wrong, a line once for each time
# a list with repetitions
def breaking_lines(before, rows):
    found = []
    for line, graphs in rows:
        if graphs > before and "mark_step(" not in line:
            found.append(line)
        before = graphs
    return found


# %% breaking_lines: wrong, a line that ran two graphs passed over
def breaking_lines(before, rows):
    found = set()
    so_far = before
    for line, graphs in rows:
        if graphs == so_far + 1 and "mark_step(" not in line:
            found.add(line)
        so_far = graphs
    return found


# %% breaking_lines: wrong, a line once for each time
# a list, and a line as often in it as it broke
def breaking_lines(before, rows):
    counts = [before] + [n for _, n in rows]
    return [line for i, (line, n) in enumerate(rows) if n > counts[i] and "mark_step(" not in line]


# %% breaking_lines: wrong, the line before the break
def breaking_lines(before, rows):
    counts = [before] + [n for _, n in rows]
    went_up = [i for i in range(len(rows)) if counts[i + 1] > counts[i]]
    return {rows[i - 1][0] for i in went_up if "mark_step(" not in rows[i][0]}


# %% breaking_lines: wrong, each line's last count only
# a dictionary keeps each line once
def breaking_lines(before, rows):
    found = set()
    for line, n in dict(rows).items():
        if n > before and "mark_step(" not in line:
            found.add(line)
        before = n
    return found


# %% breaking_lines: wrong, only breaks of a known look
def breaking_lines(before, rows):
    found, last = set(), before
    for line, n in rows:
        if n > last and ".item(" in line:
            found.add(line)
        last = n
    return found


# %% breaking_lines: wrong, the numbers of rows, not their lines
def breaking_lines(before, rows):
    found, last = set(), before
    for i, (line, n) in enumerate(rows):
        if n > last and "mark_step(" not in line:
            found.add(i)
        last = n
    return found


# %% clip_without_fallback: wrong, the length of the weights
def clip_without_fallback(parameters, max_norm):
    ps = [p for p in parameters if p.grad is not None]
    total = sum((p * p).sum() for p in ps).sqrt()
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for p in ps:
        p.grad.mul_(factor)


# %% clip_without_fallback: wrong, the length of the weights
# detached
def clip_without_fallback(parameters, max_norm):
    ps = [p for p in parameters if p.grad is not None]
    total = torch.cat([p.detach().flatten() for p in ps]).pow(2).sum().sqrt()
    factor = torch.minimum(max_norm / total, torch.ones_like(total))
    for p in ps:
        p.grad.mul_(factor)


# %% clip_without_fallback: wrong, the ratio upside down
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = torch.cat([g.flatten() for g in grads]).norm()
    factor = torch.minimum(total / max_norm, torch.ones_like(total))
    for g in grads:
        g.mul_(factor)


# %% clip_without_fallback: wrong, the larger factor, not the smaller
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = torch.cat([g.flatten() for g in grads]).norm()
    factor = torch.maximum(max_norm / (total + 1e-6), torch.ones_like(total))
    for g in grads:
        g.mul_(factor)


# %% clip_without_fallback: wrong, shortened to length 1
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = sum((g * g).sum() for g in grads).sqrt()
    limit = torch.full_like(total, max_norm)
    for g in grads:
        g.div_(torch.maximum(total, limit))


# %% clip_without_fallback: wrong, shortened to length 1
# a tensor of the CPU beside a lazy one
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = sum((g * g).sum() for g in grads).sqrt()
    for g in grads:
        g.div_(torch.maximum(total, torch.tensor(max_norm)))


# %% clip_without_fallback: wrong, the mean of the squares
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = sum(g.pow(2).mean() for g in grads).sqrt()
    for g in grads:
        g.mul_((max_norm / (total + 1e-6)).clamp(max=1.0))


# %% clip_without_fallback: wrong, another operator without a kernel
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = sum((g * g).sum() for g in grads).sqrt()
    factor = torch.clamp_max(max_norm / (total + 1e-6), 1.0)
    for g in grads:
        g.mul_(factor)


# %% clip_without_fallback: wrong, another operator without a kernel
# copied back
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = sum((g * g).sum() for g in grads).sqrt()
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.copy_(g * factor)


# %% clip_without_fallback: wrong, another operator without a kernel
# the squares as a product of a vector with itself
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    total = sum(torch.dot(g.flatten(), g.flatten()) for g in grads).sqrt()
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
    for g in grads:
        g.mul_(factor)


# %% train_with_marks: wrong, the zeros in a graph of their own
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        for x, y in micro_batches[start : start + accumulation_steps]:
            (loss_function(model(x), y) / accumulation_steps).backward()
            mark_step()
        optimizer.step()
        mark_step()
        optimizer.zero_grad(set_to_none=False)
        mark_step()


# %% fallbacks: wrong, train is called in another process
def fallbacks(train):
    def inside():
        train()
        return {n: metrics.counter_value(n) for n in metrics.counter_names() if n[:6] == "aten::"}

    return in_fresh_process(inside)


# %% fallbacks: wrong, train is called in another process
# with the backend started there
def fallbacks(train):
    def inside():
        ts_backend.init()
        train()
        return {n: metrics.counter_value(n) for n in metrics.counter_names() if n[:6] == "aten::"}

    return in_fresh_process(inside)


# %% fallbacks: right
# what train() does is noted by a subclass of dict, asked for twice
class Calls(dict):
    def __sub__(self, other):
        return Calls({n: c - other.get(n, 0) for n, c in self.items() if c != other.get(n, 0)})


def fallbacks(train):
    def now():
        names = metrics.counter_names()
        return Calls((n, metrics.counter_value(n)) for n in names if n.startswith("aten::"))

    start = now()
    train()
    return dict(now() - start)


# %% clip_without_fallback: wrong, shortened to length 1
# every gradient divided by the common length
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads])
    for g in grads:
        g.div_(flat.norm())


# %% breaking_lines: wrong, only breaks of a known look
def breaking_lines(before, rows):
    return {
        line
        for (_, old), (line, new) in zip([("", before), *rows], rows)
        if old != new and re.search(r"\.item\(", line)
    }


# %% fallbacks: wrong, a list, not a dictionary
# pairs, sorted by name
def fallbacks(train):
    def now():
        names = [n for n in metrics.counter_names() if n.startswith("aten::")]
        return {n: metrics.counter_value(n) for n in names}

    before = now()
    train()
    calls = {n: count - before.get(n, 0) for n, count in now().items()}
    return sorted((n, count) for n, count in calls.items() if count)


# %% train_with_marks: wrong, one mark in each round
# a mark where a round begins, and one for what is left
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (x, y) in enumerate(micro_batches, start=1):
        mark_step()
        (loss_function(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    mark_step()


# %% clip_without_fallback: wrong, a lazy value asked for
# makes a number of the length
def clip_without_fallback(parameters, max_norm):
    grads = [p.grad for p in parameters if p.grad is not None]
    length = float(sum((g * g).sum() for g in grads).sqrt())
    for g in grads:
        g.mul_(min(1.0, max_norm / length))
