# %% train_accumulated: right
from itertools import islice


def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    rest = iter(micro_batches)
    while window := list(islice(rest, accumulation_steps)):
        optimizer.zero_grad()
        for x, y in window:
            loss_function(model(x), y).div(len(window)).backward()
        optimizer.step()


# %% train_accumulated: right
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    i = 0
    while i < len(micro_batches):
        data, target = micro_batches[i]
        out = model(data)
        loss = loss_function(out, target)
        loss /= accumulation_steps
        loss.backward()
        i += 1
        if i % accumulation_steps:
            continue
        optimizer.step()
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = None


# %% train_accumulated: right
class Accumulator:
    def __init__(self, optimizer, size):
        self.optimizer, self.size, self.seen = optimizer, size, 0

    def add(self, loss):
        loss.backward(torch.full_like(loss, 1 / self.size))
        self.seen += 1
        if self.seen == self.size:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=False)
            self.seen = 0


def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    window = Accumulator(optimizer, accumulation_steps)
    for pair in micro_batches:
        window.add(loss_function(model(pair[0]), pair[1]))


# %% train_accumulated: right
def collected(model, k):
    for p in model.parameters():
        if p.grad is not None:
            p.grad.div_(k)


def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    # the mean is taken once, of the gradient
    losses = []
    for index in range(len(micro_batches)):
        loss = loss_function(model(micro_batches[index][0]), micro_batches[index][1])
        loss.backward()
        losses.append(loss.item())
        if index % accumulation_steps == accumulation_steps - 1:
            collected(model, accumulation_steps)
            optimizer.step()
            optimizer.zero_grad()
    return losses


# %% train_accumulated: right
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    if not micro_batches:
        return
    window, rest = micro_batches[:accumulation_steps], micro_batches[accumulation_steps:]
    trained = [p for p in model.parameters() if p.requires_grad]
    mean = [torch.zeros_like(p) for p in trained]
    for inputs, targets in window:
        loss = loss_function(model(inputs), targets)
        for total, g in zip(mean, torch.autograd.grad(loss, trained)):
            total += g / accumulation_steps
    for p, g in zip(trained, mean):
        p.grad = g
    optimizer.step()
    optimizer.zero_grad()
    train_accumulated(model, optimizer, loss_function, rest, accumulation_steps)


# %% train_accumulated: wrong, keeps the whole window
# adds up the losses and calls backward once: all activations of the window are held
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    total = 0
    for i, (x, y) in enumerate(micro_batches):
        total = total + loss_function(model(x), y) / accumulation_steps
        if (i + 1) % accumulation_steps == 0:
            total.backward()
            optimizer.step()
            optimizer.zero_grad()
            total = 0


# %% train_accumulated: wrong, keeps the whole window
# makes the large batch itself
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        xs, ys = zip(*micro_batches[start : start + accumulation_steps])
        optimizer.zero_grad()
        loss_function(model(torch.cat(xs)), torch.cat(ys)).backward()
        optimizer.step()


# %% train_accumulated: wrong, keeps the whole window
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}

    def loss_of(values, inputs, targets):
        return loss_function(torch.func.functional_call(model, values, (inputs,)), targets)

    for start in range(0, len(micro_batches), accumulation_steps):
        inputs, targets = zip(*micro_batches[start : start + accumulation_steps])
        values = {name: one.detach() for name, one in trained.items()}
        of_window = torch.func.grad(loss_of)(values, torch.cat(inputs), torch.cat(targets))
        for name, gradient in of_window.items():
            trained[name].grad = gradient
        optimizer.step()
        optimizer.zero_grad()


# %% train_accumulated: wrong, loss not divided
# the loss is not divided
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    pairs = iter(micro_batches)
    for _ in range(len(micro_batches) // accumulation_steps):
        for _ in range(accumulation_steps):
            x, y = next(pairs)
            loss_function(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_accumulated: wrong, steps on the first micro-batch
# counts from 0, so the first step comes after one micro-batch
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for i, batch in enumerate(micro_batches):
        loss = loss_function(model(batch[0]), batch[1]) / accumulation_steps
        loss.backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated: wrong, only the last micro-batch is left
# clears the gradients before every micro-batch, so only the last one is left
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    count = 0
    for x, y in micro_batches:
        optimizer.zero_grad()
        (loss_function(model(x), y) / accumulation_steps).backward()
        count += 1
        if count == accumulation_steps:
            optimizer.step()
            count = 0


# %% train_accumulated: wrong, never zeroed
# never clears the gradients
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    count = 0
    for x, y in micro_batches:
        (loss_function(model(x), y) / accumulation_steps).backward()
        count += 1
        if count == accumulation_steps:
            optimizer.step()
            count = 0


# %% train_accumulated: wrong, divided by the number of all micro-batches
# divides by the number of all micro-batches
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    n = len(micro_batches)
    for i in range(n):
        (loss_function(model(micro_batches[i][0]), micro_batches[i][1]) / n).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated: wrong, steps on every micro-batch
# steps after every micro-batch
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for start in range(0, len(micro_batches), accumulation_steps):
        for x, y in micro_batches[start : start + accumulation_steps]:
            loss = loss_function(model(x), y) / accumulation_steps
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()


# %% train_accumulated: wrong
# the graph is kept, so the last micro-batch is still there in the next forward pass
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets) / accumulation_steps
        loss.backward(retain_graph=True)
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated: wrong, divided by the number of samples
# divides by the number of samples in the window
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets) / (len(inputs) * accumulation_steps)
        loss.backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated: wrong, ends after the first window
# returns in the loop, after the first window
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            return model


# %% train_accumulated_to_the_end: right
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    left = list(micro_batches)
    while left:
        window, left = left[:accumulation_steps], left[accumulation_steps:]
        optimizer.zero_grad()
        for inputs, targets in window:
            loss = loss_function(model(inputs), targets)
            loss.backward(gradient=torch.ones_like(loss) / len(window))
        optimizer.step()


# %% train_accumulated_to_the_end: right
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    total = len(micro_batches)
    whole = total - total % accumulation_steps
    for i, (inputs, targets) in enumerate(micro_batches):
        k = accumulation_steps if i < whole else total - whole
        (loss_function(model(inputs), targets) / k).backward()
        last = i + 1 == total
        if (i + 1) % accumulation_steps == 0 or last:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated_to_the_end: right
def step_on(model, optimizer, count):
    with torch.no_grad():
        for p in {id(p): p for p in model.parameters()}.values():
            if p.grad is not None:
                p.grad /= count
    optimizer.step()
    optimizer.zero_grad()


def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    seen = 0
    for x, y in micro_batches:
        loss_function(model(x), y).backward()
        seen += 1
        if seen == accumulation_steps:
            step_on(model, optimizer, seen)
            seen = 0
    if seen:
        step_on(model, optimizer, seen)


# %% train_accumulated_to_the_end: right
class Loop:
    def __init__(self, model, optimizer, loss_function):
        self.model, self.optimizer, self.loss_function = model, optimizer, loss_function

    def windows(self, micro_batches, k):
        yield from (micro_batches[i : i + k] for i in range(0, len(micro_batches), k))

    def train(self, window):
        for inputs, targets in window:
            self.loss_function(self.model(inputs), targets).mul(1 / len(window)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    loop = Loop(model, optimizer, loss_function)
    for window in loop.windows(micro_batches, accumulation_steps):
        loop.train(window)


# %% train_accumulated_to_the_end: wrong, last window divided by k
# the last window is divided by k like the others
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    n = len(micro_batches)
    for i, (x, y) in enumerate(micro_batches, 1):
        (loss_function(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0 or i == n:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong, last window dropped
# what is left over never gets its step
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    it = iter(micro_batches)
    for _ in range(len(micro_batches) // accumulation_steps):
        for _ in range(accumulation_steps):
            x, y = next(it)
            (loss_function(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong, a step too many at the end
# one step more at the end, although nothing is left
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    rest = len(micro_batches) % accumulation_steps
    for i, (x, y) in enumerate(micro_batches):
        k = rest if i >= len(micro_batches) - rest else accumulation_steps
        (loss_function(model(x), y) / k).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong, a step for each one that is left
# the micro-batches that are left over step one by one
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    whole = len(micro_batches) // accumulation_steps * accumulation_steps
    for i in range(len(micro_batches)):
        x, y = micro_batches[i]
        k = accumulation_steps if i < whole else 1
        (loss_function(model(x), y) / k).backward()
        if i >= whole or (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong, what is left put into the window before
# what is left over joins the last whole window
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    starts = list(range(0, len(micro_batches), accumulation_steps))
    windows = [micro_batches[s : s + accumulation_steps] for s in starts]
    if len(windows) > 1 and len(windows[-1]) < accumulation_steps:
        tail = windows.pop()
        windows[-1] = windows[-1] + tail
    for window in windows:
        for x, y in window:
            (loss_function(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong, divided by what is left
# the divisor is what is left from here on, so it shrinks inside the last window
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    n = len(micro_batches)
    for i, (x, y) in enumerate(micro_batches):
        k = min(accumulation_steps, n - i)
        (loss_function(model(x), y) / k).backward()
        if (i + 1) % accumulation_steps == 0 or i + 1 == n:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong
# windows of equal size, instead of whole ones and a rest
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    count = -(-len(micro_batches) // accumulation_steps)
    bounds = [round(i * len(micro_batches) / count) for i in range(count + 1)]
    for a, b in zip(bounds, bounds[1:]):
        for x, y in micro_batches[a:b]:
            (loss_function(model(x), y) / (b - a)).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong
# only the last micro-batch of the short window gets the short divisor
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    seen = 0
    for number, (x, y) in enumerate(micro_batches, 1):
        seen += 1
        last = number == len(micro_batches)
        (loss_function(model(x), y) / (seen if last else accumulation_steps)).backward()
        if seen == accumulation_steps or last:
            optimizer.step()
            optimizer.zero_grad()
            seen = 0


# %% train_accumulated_to_the_end: wrong
# without a rest, the last whole window is divided by nothing: n % k is 0 and becomes 1
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    n = len(micro_batches)
    last_start = (n - 1) // accumulation_steps * accumulation_steps
    for i, (x, y) in enumerate(micro_batches):
        k = accumulation_steps if i < last_start else max(1, n % accumulation_steps)
        (loss_function(model(x), y) / k).backward()
        if i + 1 == n or (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong, keeps the whole window
# holds the window's losses, and with them its activations
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        torch.stack([loss_function(model(x), y) for x, y in window]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# %% first_wrong_step: right
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    number = 0
    for epoch in range(epochs):
        at = 0
        while at < micro_batches:
            size = min(accumulation_steps, micro_batches - at)
            expected = {epoch * micro_batches + at + i: size for i in range(size)}
            number += 1
            if number > len(steps) or steps[number - 1] != expected:
                return number
            at += size
    return number + 1 if len(steps) > number else None


# %% first_wrong_step: right
def window_of(number, n, k):
    epoch, index = divmod(number, n)
    first = index // k * k
    return [epoch * n + i for i in range(first, min(first + k, n))]


def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    following = 0  # the micro-batch with which the next window begins
    for number, step in enumerate(steps, 1):
        if following == micro_batches * epochs:
            return number
        window = window_of(following, micro_batches, accumulation_steps)
        if sorted(step) != window or set(step.values()) != {len(window)}:
            return number
        following = window[-1] + 1
    return None if following == micro_batches * epochs else len(steps) + 1


# %% first_wrong_step: wrong, the order of a step's micro-batches compared
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    from math import ceil

    per_epoch = ceil(micro_batches / accumulation_steps)
    for at in range(max(len(steps), per_epoch * epochs)):
        epoch, window = divmod(at, per_epoch)
        first = epoch * micro_batches + window * accumulation_steps
        last = min(first + accumulation_steps, (epoch + 1) * micro_batches)
        if at >= len(steps) or epoch >= epochs:
            return at + 1
        if list(steps[at].items()) != [(one, last - first) for one in range(first, last)]:
            return at + 1


# %% first_wrong_step: wrong
# the sum of the shares is 1 in a right step: whose they are is not looked at
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    for number, step in enumerate(steps, start=1):
        if abs(sum(1 / divisor for divisor in step.values()) - 1) > 1e-9:
            return number
    return None


# %% first_wrong_step: wrong, counted from 0
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    wanted = []
    for e in range(epochs):
        for i in range(0, micro_batches, accumulation_steps):
            size = min(accumulation_steps, micro_batches - i)
            wanted.append({e * micro_batches + i + j: size for j in range(size)})
    for i in range(max(len(steps), len(wanted))):
        if steps[i : i + 1] != wanted[i : i + 1]:
            return i


# %% first_wrong_step: wrong, every window divided by k
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    wanted = []
    for number in range(epochs * micro_batches):
        if number % micro_batches % accumulation_steps == 0:
            wanted.append({})
        wanted[-1][number] = accumulation_steps
    if steps == wanted:
        return None
    return next(
        n + 1
        for n in range(1 + max(len(steps), len(wanted)))
        if steps[n : n + 1] != wanted[n : n + 1]
    )


# %% first_wrong_step: wrong, the shorter record ends the comparison
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    numbers = iter(range(micro_batches * epochs))
    sizes = [
        min(accumulation_steps, micro_batches - start)
        for start in range(0, micro_batches, accumulation_steps)
    ] * epochs
    for count, (size, step) in enumerate(zip(sizes, steps)):
        if step != {next(numbers): size for _ in range(size)}:
            return count + 1


# %% first_wrong_step: wrong, windows over the end of an epoch
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    everything = list(range(micro_batches * epochs))
    wanted = []
    while everything:
        window, everything = everything[:accumulation_steps], everything[accumulation_steps:]
        wanted.append({one: len(window) for one in window})
    for n in range(max(len(steps), len(wanted))):
        if n >= len(steps) or n >= len(wanted) or steps[n] != wanted[n]:
            return n + 1
    return None


# %% token_weighted_backward: right
def token_weighted_backward(model, window):
    model.zero_grad()
    shifted = [(one["input_ids"], one["labels"][:, 1:].reshape(-1)) for one in window]
    n = sum(int((labels != -100).sum()) for _, labels in shifted)
    for ids, labels in shifted:
        out = model(ids)[:, :-1, :]
        losses = cross_entropy(out.reshape(len(labels), -1), labels, reduction="none")
        (losses.sum() / n).backward()


# %% token_weighted_backward: right
def token_weighted_backward(model, window):
    real = [(part["labels"][:, 1:] >= 0) for part in window]
    n = torch.cat([mask.flatten() for mask in real]).sum()
    for part, mask in zip(window, real):
        log_p = model(part["input_ids"]).log_softmax(-1)[:, :-1][mask]
        chosen = log_p.gather(1, part["labels"][:, 1:][mask].unsqueeze(1))
        chosen.sum().div(-n).backward()


# %% token_weighted_backward: right
def token_weighted_backward(model, window):
    # text by text, each weighed by its share of the targets
    texts = []
    for one in window:
        for row in range(one["input_ids"].shape[0]):
            texts.append((one["input_ids"][row : row + 1], one["labels"][row, 1:]))
    counts = [labels.ne(-100).sum().item() for _, labels in texts]
    for (ids, labels), count in zip(texts, counts):
        if count == 0:
            continue
        loss = cross_entropy(model(ids)[0, :-1], labels)
        (loss * (count / sum(counts))).backward()


# %% token_weighted_backward: right
class TokenMean:
    def __init__(self, window):
        self.divisor = 0
        for one in window:
            self.divisor += one["labels"][:, 1:].ne(-100).count_nonzero()

    def __call__(self, logits, labels):
        # class dimension second, as cross_entropy likes it
        logits = logits.transpose(1, 2)[:, :, :-1]
        return cross_entropy(logits, labels[:, 1:], reduction="sum") / self.divisor


def token_weighted_backward(model, window):
    loss_of = TokenMean(window)
    for one in window:
        loss_of(model(one["input_ids"]), one["labels"]).backward()


# %% token_weighted_backward: right
def token_weighted_backward(model, window):
    seen = 0
    for one in window:
        labels = torch.full_like(one["labels"], -100)
        labels[:, :-1] = one["labels"][:, 1:]
        loss = cross_entropy(
            model(one["input_ids"]).flatten(0, 1), labels.flatten(), reduction="sum"
        )
        loss.backward()
        seen += (labels != -100).sum()
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= seen


# %% token_weighted_backward: wrong, mean of means
# mean of the micro-batches' means
def token_weighted_backward(model, window):
    for one in window:
        logits = model(one["input_ids"])[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), one["labels"][:, 1:].flatten())
        (loss / len(window)).backward()


# %% token_weighted_backward: wrong, labels counted, not targets
# the first label of every text is counted although nothing predicts it
def token_weighted_backward(model, window):
    n = sum((one["labels"] != -100).sum() for one in window)
    for one in window:
        logits = model(one["input_ids"])[:, :-1].flatten(0, 1)
        targets = one["labels"][:, 1:].flatten()
        (cross_entropy(logits, targets, reduction="sum") / n).backward()


# %% token_weighted_backward: wrong, labels not shifted
# no shift: position t is asked for label t
def token_weighted_backward(model, window):
    n = sum((one["labels"] != -100).sum() for one in window)
    for one in window:
        logits = model(one["input_ids"]).flatten(0, 1)
        (cross_entropy(logits, one["labels"].flatten(), reduction="sum") / n).backward()


# %% token_weighted_backward: wrong, the window changed
# shifts the labels in place, in tensors that belong to the caller
def token_weighted_backward(model, window):
    for one in window:
        one["labels"][:, :-1] = one["labels"][:, 1:].clone()
        one["labels"][:, -1] = -100
    n = sum((one["labels"] != -100).sum() for one in window)
    for one in window:
        logits = model(one["input_ids"]).flatten(0, 1)
        (cross_entropy(logits, one["labels"].flatten(), reduction="sum") / n).backward()


# %% token_weighted_backward: wrong, ignored positions counted
# padding is counted in the divisor
def token_weighted_backward(model, window):
    n = sum(one["labels"][:, 1:].numel() for one in window)
    for one in window:
        logits = model(one["input_ids"])[:, :-1].flatten(0, 1)
        targets = one["labels"][:, 1:].flatten()
        (cross_entropy(logits, targets, reduction="sum") / n).backward()


# %% token_weighted_backward: wrong, keeps the whole window
# holds the losses of the whole window before it calls backward
def token_weighted_backward(model, window):
    total, n = 0, 0
    for one in window:
        logits = model(one["input_ids"])[:, :-1].flatten(0, 1)
        targets = one["labels"][:, 1:].flatten()
        total += cross_entropy(logits, targets, reduction="sum")
        n += (targets != -100).sum()
    (total / n).backward()


# %% token_weighted_backward: wrong
# divides by what was counted so far, not by the window's targets
def token_weighted_backward(model, window):
    n = 0
    for one in window:
        targets = one["labels"][:, 1:].flatten()
        n += (targets != -100).sum()
        logits = model(one["input_ids"])[:, :-1].flatten(0, 1)
        (cross_entropy(logits, targets, reduction="sum") / n).backward()


# %% token_weighted_backward: wrong, shifted over the ends of texts
# shifted after flattening: the last position of a text predicts the first token of the next
def token_weighted_backward(model, window):
    n = sum((one["labels"].flatten()[1:] != -100).sum() for one in window)
    for one in window:
        logits = model(one["input_ids"]).flatten(0, 1)[:-1]
        targets = one["labels"].flatten()[1:]
        (cross_entropy(logits, targets, reduction="sum") / n).backward()


# %% token_weighted_backward: wrong, weighed by the texts
# weighs by texts instead of targets
def token_weighted_backward(model, window):
    texts = sum(len(one["labels"]) for one in window)
    for one in window:
        logits = model(one["input_ids"])[:, :-1].flatten(0, 1)
        loss = cross_entropy(logits, one["labels"][:, 1:].flatten())
        (loss * len(one["labels"]) / texts).backward()


# %% token_weighted_backward: wrong, labels shifted the wrong way
# shifted the wrong way: position t is asked for label t - 1
def token_weighted_backward(model, window):
    n = sum((one["labels"][:, :-1] != -100).sum() for one in window)
    for one in window:
        logits = model(one["input_ids"])[:, 1:].flatten(0, 1)
        targets = one["labels"][:, :-1].flatten()
        (cross_entropy(logits, targets, reduction="sum") / n).backward()


# %% token_weighted_backward: wrong
# makes an optimizer step, which was not asked for
def token_weighted_backward(model, window):
    n = sum((one["labels"][:, 1:] != -100).sum() for one in window)
    for one in window:
        logits = model(one["input_ids"])[:, :-1].flatten(0, 1)
        targets = one["labels"][:, 1:].flatten()
        (cross_entropy(logits, targets, reduction="sum") / n).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


# %% places: right
places = {
    "micro-batch": ["forward", "divide", "backward", "add"],
    "window": ["report", "unscale", "clip", "step", "update", "zero", "schedule"],
}

# %% places: right
each_time = "forward divide add backward".split()
places = dict(window="unscale clip step schedule zero report update".split())
places["micro-batch"] = each_time

# %% places: right
before_the_step = ["unscale", "clip"]
after_the_step = ["zero", "update", "report", "schedule"]
places = {
    "window": (*before_the_step, "step", *after_the_step),
    "micro-batch": ("forward", "divide", "add", "backward"),
}

# %% places: wrong, clipped while still scaled
places = {
    "micro-batch": ["forward", "divide", "add", "backward"],
    "window": ["clip", "unscale", "step", "zero", "update", "schedule", "report"],
}

# %% places: wrong, only the last micro-batch counts
places = {
    "micro-batch": ["zero", "forward", "divide", "backward", "add"],
    "window": ["unscale", "clip", "step", "schedule", "update", "report"],
}

# %% places: wrong, the undivided losses added up
places = {
    "micro-batch": ["forward", "add", "divide", "backward"],
    "window": ["unscale", "clip", "step", "update", "zero", "report", "schedule"],
}

# %% places: wrong
# two lines are nowhere
places = {
    "micro-batch": ["forward", "divide", "add", "backward"],
    "window": ["clip", "step", "schedule", "zero", "report"],
}

# %% places: wrong
# no lists but one text
places = "forward, divide, add, backward, unscale, clip, step, update, schedule, zero, report"


# %% train_accumulated: right
# gradients averaged as a running mean
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    kept = {}
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        loss_function(model(inputs), targets).backward()
        seen = (number - 1) % accumulation_steps + 1
        for p in model.parameters():
            if p.grad is not None:
                old = kept.get(p, torch.zeros_like(p))
                kept[p] = old + (p.grad - old) / seen
                p.grad = None
        if seen == accumulation_steps:
            for p, g in kept.items():
                p.grad = g
            optimizer.step()
            optimizer.zero_grad()
            kept = {}


# %% train_accumulated: right
# hooks divide the gradients
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    handles = [
        p.register_hook(lambda g: g / accumulation_steps)
        for p in model.parameters()
        if p.requires_grad
    ]
    for n, (x, y) in enumerate(micro_batches):
        loss_function(model(x), y).backward()
        if n % accumulation_steps == accumulation_steps - 1:
            optimizer.step()
            model.zero_grad()
    for handle in handles:
        handle.remove()


# %% train_accumulated: wrong, nothing in .grad at the step
# the mean of the losses of floats: nothing to go back through
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    total = 0.0
    for n, (x, y) in enumerate(micro_batches, 1):
        total += loss_function(model(x), y).item()
        if n % accumulation_steps == 0:
            torch.tensor(total / accumulation_steps, requires_grad=True).backward()
            optimizer.step()
            optimizer.zero_grad()
            total = 0.0


# %% train_accumulated: wrong, steps one micro-batch late
# a step also when the remainder is 1
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    n = 0
    for x, y in micro_batches:
        (loss_function(model(x), y) / accumulation_steps).backward()
        if n == accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()
            n = 0
        n += 1


# %% train_accumulated: wrong, gradients divided in every round
# the gradient so far is divided again at every micro-batch
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    i = 0
    while i < len(micro_batches):
        inputs, targets = micro_batches[i]
        loss_function(model(inputs), targets).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(accumulation_steps)
        i += 1
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated: wrong, no step behind the last window
# the step is made at the start of the next window, so the last window gets none
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches):
        if number and number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        (loss_function(model(inputs), targets) / accumulation_steps).backward()


# %% train_accumulated_to_the_end: right
from contextlib import contextmanager


def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    last = len(micro_batches)

    @contextmanager
    def update(number):
        yield
        if number == last or number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()

    def divisor(number):
        begin = (number - 1) // accumulation_steps * accumulation_steps
        return min(begin + accumulation_steps, last) - begin

    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        with update(number):
            torch.mul(loss_function(model(inputs), targets), 1 / divisor(number)).backward()


# %% train_accumulated_to_the_end: wrong, last window divided by k
# rest by n - n // k, a slip
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    k = min(accumulation_steps, len(micro_batches))
    for i, (x, y) in enumerate(micro_batches, 1):
        (loss_function(model(x), y) / k).backward()
        if i % k == 0 or i == len(micro_batches):
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong
# the last window is filled up with the first micro-batches
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    missing = -len(micro_batches) % accumulation_steps
    padded = micro_batches + (micro_batches * accumulation_steps)[:missing]
    for i, (x, y) in enumerate(padded, 1):
        (loss_function(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% first_wrong_step: right
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    def windows():
        for epoch in range(epochs):
            left = micro_batches
            position = epoch * micro_batches
            while left > 0:
                size = min(left, accumulation_steps)
                yield {position + i: size for i in range(size)}
                position += size
                left -= size

    number = 0
    record = iter(steps)
    for wanted in windows():
        number += 1
        if next(record, None) != wanted:
            return number
    return number + 1 if next(record, None) is not None else None


# %% first_wrong_step: wrong, the number of steps compared first
# the number of steps is looked at before what they are made of
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = []
    for epoch in range(epochs):
        for start in range(0, micro_batches, accumulation_steps):
            size = min(accumulation_steps, micro_batches - start)
            right.append({epoch * micro_batches + start + i: size for i in range(size)})
    if len(steps) != len(right):
        return min(len(steps), len(right)) + 1
    for number, pair in enumerate(zip(steps, right), 1):
        if pair[0] != pair[1]:
            return number


# %% first_wrong_step: wrong, the divisors not looked at
# only the micro-batches are compared, not the divisors
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = [
        list(range(e * micro_batches, (e + 1) * micro_batches))[s : s + accumulation_steps]
        for e in range(epochs)
        for s in range(0, micro_batches, accumulation_steps)
    ]
    for number, (found, wanted) in enumerate(zip_longest(steps, right, fillvalue={}), 1):
        if sorted(found) != list(wanted):
            return number


# %% first_wrong_step: wrong, where one record ends, the step before is named
# a missing step is said to be the last one that is there
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = []
    for epoch in range(epochs):
        all_numbers = [epoch * micro_batches + i for i in range(micro_batches)]
        while all_numbers:
            window, all_numbers = all_numbers[:accumulation_steps], all_numbers[accumulation_steps:]
            right.append({i: len(window) for i in window})
    for number, step in enumerate(steps, 1):
        if number > len(right) or step != right[number - 1]:
            return number
    return len(steps) if len(steps) < len(right) else None


# %% first_wrong_step: wrong, one divisor looked at in each step
# what a step's micro-batches are divided by is only checked for its first
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    number = 0
    for epoch in range(epochs):
        for start in range(0, micro_batches, accumulation_steps):
            end = min(start + accumulation_steps, micro_batches)
            if number >= len(steps):
                return number + 1
            step = steps[number]
            number += 1
            if sorted(step) != [epoch * micro_batches + i for i in range(start, end)]:
                return number
            if next(iter(step.values())) != end - start:
                return number
    return number + 1 if len(steps) > number else None


# %% first_wrong_step: wrong
# the index of the first wrong micro-batch
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = {}
    for epoch in range(epochs):
        for start in range(0, micro_batches, accumulation_steps):
            size = min(accumulation_steps, micro_batches - start)
            for i in range(size):
                right[epoch * micro_batches + start + i] = size
    found = {}
    for step in steps:
        found |= step
    for number in right:
        if found.get(number) != right[number]:
            return number // accumulation_steps + 1
    return None


# %% token_weighted_backward: right
# inputs cut before the model
def token_weighted_backward(model, window):
    total = sum(m["labels"][:, 1:].ne(-100).sum() for m in window)
    for m in window:
        logits = model(m["input_ids"][:, :-1])
        labels = m["labels"][:, 1:]
        (cross_entropy(logits.mT, labels, reduction="sum") / total).backward()


# %% token_weighted_backward: wrong, ignored positions counted
# only attends to nonzero input ids
def token_weighted_backward(model, window):
    total = sum(m["input_ids"][:, 1:].ne(0).sum() for m in window)
    for m in window:
        (loss_of(model, m, "sum") / total).backward()


# %% token_weighted_backward: wrong, padding trained on
# fewer targets, unshifted inputs cut
def token_weighted_backward(model, window):
    total = sum(m["labels"][:, 1:].ne(-100).sum() for m in window)
    for m in window:
        logits = model(m["input_ids"][:, :-1])
        labels = m["labels"][:, 1:].clamp(min=0)
        (cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / total).backward()


# %% places: right
order = [
    "forward",
    "divide",
    "add",
    "backward",
    "report",
    "unscale",
    "clip",
    "step",
    "schedule",
    "update",
    "zero",
]
places = {"window": order[4:], "micro-batch": order[:4]}


# %% places: wrong, added once in a window
# added once in a window
places = {
    "micro-batch": ["forward", "divide", "backward"],
    "window": ["unscale", "clip", "step", "update", "schedule", "zero", "add", "report"],
}


# %% places: wrong, reported in every micro-batch
places = {
    "micro-batch": ["forward", "divide", "add", "report", "backward"],
    "window": ["unscale", "clip", "step", "update", "zero", "schedule"],
}


# %% token_weighted_backward: wrong, token 0 taken for padding
# the mask is taken from the sign of the labels
def token_weighted_backward(model, window):
    valid = [mb["labels"][:, 1:] > 0 for mb in window]
    total = sum(v.sum() for v in valid)
    for mb, keep in zip(window, valid):
        logits = model(mb["input_ids"])[:, :-1][keep]
        loss = cross_entropy(logits, mb["labels"][:, 1:][keep], reduction="sum")
        (loss / total).backward()


# %% train_accumulated: wrong
# model left in eval mode
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    model.eval()
    for i, (x, y) in enumerate(micro_batches, 1):
        (loss_function(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong
# the last window runs only if more than one micro-batch is left
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    window = []

    def flush():
        for x, y in window:
            (loss_function(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
        window.clear()

    for pair in micro_batches:
        window.append(pair)
        if len(window) == accumulation_steps:
            flush()
    if len(window) > 1:
        flush()


# %% first_wrong_step: wrong
# a last window of a single micro-batch is taken for none
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    expected = []
    for epoch in range(epochs):
        for start in range(0, micro_batches, accumulation_steps):
            size = min(accumulation_steps, micro_batches - start)
            if size == 1 and accumulation_steps > 1:
                continue
            first = epoch * micro_batches + start
            expected.append({first + i: size for i in range(size)})
    for number in range(max(len(steps), len(expected))):
        if steps[number : number + 1] != expected[number : number + 1]:
            return number + 1
    return None


# %% train_accumulated: wrong
# hooks that divide are left behind: a second call divides twice
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for p in model.parameters():
        if p.requires_grad:
            p.register_hook(lambda g: g / accumulation_steps)
    for i, (x, y) in enumerate(micro_batches, 1):
        loss_function(model(x), y).backward()
        if i % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong
# hooks that divide are left behind
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    size = 1
    for p in model.parameters():
        if p.requires_grad:
            p.register_hook(lambda g: g / size)
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        size = len(window)
        for x, y in window:
            loss_function(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% token_weighted_backward: wrong, the model's mode changed
# model in eval mode
def token_weighted_backward(model, window):
    model.eval()
    n = sum((m["labels"][:, 1:] != -100).sum() for m in window)
    for m in window:
        logits = model(m["input_ids"])[:, :-1]
        loss = cross_entropy(logits.flatten(0, 1), m["labels"][:, 1:].flatten(), reduction="sum")
        (loss / n).backward()


# %% first_wrong_step: wrong, one divisor looked at in each step
# only the largest divisor of a step compared
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    i = 0
    for e in range(epochs):
        for s in range(0, micro_batches, accumulation_steps):
            ns = [
                e * micro_batches + n for n in range(s, min(s + accumulation_steps, micro_batches))
            ]
            if i >= len(steps) or set(steps[i]) != set(ns) or max(steps[i].values()) != len(ns):
                return i + 1
            i += 1
    return i + 1 if len(steps) > i else None


# %% train_accumulated: wrong
# a momentum of its own: a new optimizer for every window
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for i, (x, y) in enumerate(micro_batches, 1):
        (loss_function(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            type(optimizer)(model.parameters(), **optimizer.defaults).step()
            optimizer.zero_grad()


# %% train_accumulated: wrong, only the last micro-batch is left
# each gradient takes the place of the one before
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    params = [p for p in model.parameters() if p.requires_grad]
    for n, (x, y) in enumerate(micro_batches, 1):
        loss = loss_function(model(x), y) / accumulation_steps
        for p, g in zip(params, torch.autograd.grad(loss, params, allow_unused=True)):
            p.grad = g
        if not n % accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()


# %% first_wrong_step: wrong, only the sum of the divisors or of the shares
# which micro-batches, but not by what their losses were divided: only the sum of shares
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = [
        list(range(micro_batches))[s : s + accumulation_steps]
        for s in range(0, micro_batches, accumulation_steps)
    ]
    right = [{e * micro_batches + i for i in w} for e in range(epochs) for w in right]
    for number, (step, window) in enumerate(zip_longest(steps, right), 1):
        if step is None or window is None or set(step) != window:
            return number
        if abs(sum(1 / d for d in step.values()) - 1) > 1e-9:
            return number


# %% first_wrong_step: wrong, the record changed
# takes the steps out of the record
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    number = 0
    for epoch in range(epochs):
        for s in range(0, micro_batches, accumulation_steps):
            number += 1
            size = min(accumulation_steps, micro_batches - s)
            begin = epoch * micro_batches + s
            if not steps or steps.pop(0) != dict.fromkeys(range(begin, begin + size), size):
                return number
    return number + 1 if steps else None


# %% token_weighted_backward: wrong
# a masked mean by hand
def token_weighted_backward(model, window):
    total = sum(int((b["labels"][:, 1:] != -100).sum()) for b in window)
    for b in window:
        logits, labels = model(b["input_ids"])[:, :-1], b["labels"][:, 1:]
        mask = (labels != -100).float()
        picked = -logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
        mean = (picked * mask).sum() / mask.sum()
        (mean * mask.sum() / total).backward()


# %% train_accumulated_to_the_end: wrong
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    count = 0
    for i, (x, y) in enumerate(micro_batches):
        loss_function(model(x), y).backward()
        count += 1
        if count == accumulation_steps or i + 1 == len(micro_batches):
            for p in optimizer.param_groups[0]["params"]:
                if p.grad is not None:
                    p.grad.div_(count)
            optimizer.step()
            optimizer.zero_grad()
            count = 0


# %% token_weighted_backward: wrong
def token_weighted_backward(model, window):
    model.zero_grad()
    n = sum(b["labels"][:, 1:].ne(-100).sum() for b in window)
    for b in window:
        logits = model(b["input_ids"])
        loss = (
            cross_entropy(
                logits[:, :-1].flatten(0, 1), b["labels"][:, 1:].flatten(), reduction="sum"
            )
            / n
        )
        loss.backward()
        for p in model.parameters():
            if p.grad is not None:
                torch.nn.utils.clip_grad_norm_([p], 1.0)


# %% first_wrong_step: wrong, the comparison ends with the right run
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    n = 0
    for e in range(epochs):
        for start in range(0, micro_batches, accumulation_steps):
            ids = [
                e * micro_batches + i
                for i in range(start, min(start + accumulation_steps, micro_batches))
            ]
            if n == len(steps) or steps[n] != dict.fromkeys(ids, len(ids)):
                return n + 1
            n += 1
    return None


# %% first_wrong_step: wrong
# one in the middle may be missing
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = [
        list(
            range(
                e * micro_batches + s,
                e * micro_batches + min(s + accumulation_steps, micro_batches),
            )
        )
        for e in range(epochs)
        for s in range(0, micro_batches, accumulation_steps)
    ]
    for i, (a, b) in enumerate(zip_longest(steps, right), 1):
        if not a or not b or (min(a), max(a)) != (b[0], b[-1]) or set(a.values()) != {len(b)}:
            return i


# %% first_wrong_step: wrong
# another epoch's micro-batches are taken for its own
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = [
        {
            n: min(accumulation_steps, micro_batches - s)
            for n in range(s, min(s + accumulation_steps, micro_batches))
        }
        for e in range(epochs)
        for s in range(0, micro_batches, accumulation_steps)
    ]
    for i, (a, b) in enumerate(zip_longest(steps, right), 1):
        if a is None or b is None or {k % micro_batches: v for k, v in a.items()} != b:
            return i


# %% first_wrong_step: wrong
# an empty step too many at the end is none
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = [
        {
            e * micro_batches + n: min(accumulation_steps, micro_batches - s)
            for n in range(s, min(s + accumulation_steps, micro_batches))
        }
        for e in range(epochs)
        for s in range(0, micro_batches, accumulation_steps)
    ]
    for i, (a, b) in enumerate(zip_longest(steps, right, fillvalue={}), 1):
        if a != b:
            return i


# %% train_accumulated: right
from itertools import islice


def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    stream = iter(micro_batches)
    while window := list(islice(stream, accumulation_steps)):
        for inputs, targets in window:
            loss = loss_function(model(inputs), targets)
            loss.backward()
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad /= len(window)
        optimizer.step()
        model.zero_grad()
        optimizer.zero_grad()


# %% train_accumulated: wrong
# last window's gradient stays in .grad: zero_grad only before each window
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches):
        if number % accumulation_steps == 1:
            optimizer.zero_grad()
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        if number % accumulation_steps == accumulation_steps - 1:
            optimizer.step()


# %% train_accumulated: wrong
# a running mean: later micro-batches count more (grad halved each time)
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    in_window = 0
    for inputs, targets in micro_batches:
        in_window += 1
        loss = loss_function(model(inputs), targets)
        (loss / in_window).backward()
        if in_window == accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()
            in_window = 0


# %% train_accumulated_to_the_end: right
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    if not micro_batches:
        return
    now, rest = micro_batches[:accumulation_steps], micro_batches[accumulation_steps:]
    for x, y in now:
        torch.autograd.backward(loss_function(model(x), y), torch.tensor(1.0 / len(now)))
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    train_accumulated_to_the_end(model, optimizer, loss_function, rest, accumulation_steps)


# %% train_accumulated_to_the_end: wrong
# the rest comes first: the first window is the short one
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    ends = list(range(len(micro_batches), 0, -accumulation_steps))[::-1]
    start = 0
    for end in ends:
        for inputs, targets in micro_batches[start:end]:
            (loss_function(model(inputs), targets) / (end - start)).backward()
        optimizer.step()
        optimizer.zero_grad()
        start = end


# %% train_accumulated_to_the_end: wrong
# remainder 0 taken as the size of the last full window: division by zero is avoided with or 1
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    left = len(micro_batches) % accumulation_steps or 1
    last = len(micro_batches) - left
    for index, (inputs, targets) in enumerate(micro_batches):
        size = accumulation_steps if index < last else left
        (loss_function(model(inputs), targets) / size).backward()
        if (index + 1) % accumulation_steps == 0 or index == len(micro_batches) - 1:
            optimizer.step()
            optimizer.zero_grad()


# %% first_wrong_step: right
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    per_epoch = -(-micro_batches // accumulation_steps)

    def expected(step):
        epoch, window = divmod(step, per_epoch)
        low = window * accumulation_steps
        high = min(low + accumulation_steps, micro_batches)
        return {epoch * micro_batches + m: high - low for m in range(low, high)}

    total = per_epoch * epochs
    for step in range(total):
        if step >= len(steps) or steps[step] != expected(step):
            return step + 1
    return total + 1 if len(steps) > total else None


# %% first_wrong_step: wrong, no step for what is left of an epoch
# divides micro_batches down: the last short window of an epoch is not expected
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    expected = []
    for e in range(epochs):
        for w in range(micro_batches // accumulation_steps):
            first = e * micro_batches + w * accumulation_steps
            expected.append({first + i: accumulation_steps for i in range(accumulation_steps)})
    for n, pair in enumerate(zip_longest(steps, expected), 1):
        if pair[0] != pair[1]:
            return n
    return None


# %% first_wrong_step: wrong
# an empty step (no micro-batch) is taken as missing and passed over
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    expected = []
    for e in range(epochs):
        for s in range(0, micro_batches, accumulation_steps):
            window = range(s, min(s + accumulation_steps, micro_batches))
            expected.append({e * micro_batches + i: len(window) for i in window})
    for n, should in enumerate(expected):
        if n >= len(steps) or steps[n] != should:
            return n + 1
    if any(steps[len(expected) :]):
        return len(expected) + 1


# %% token_weighted_backward: right
def token_weighted_backward(model, window):
    targets = 0
    for micro_batch in window:
        log_probabilities = model(micro_batch["input_ids"])[:, :-1].log_softmax(-1)
        labels = micro_batch["labels"][:, 1:]
        counts = labels != -100
        picked = log_probabilities.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        (-picked[counts].sum()).backward()
        targets += counts.sum().item()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(targets)


# %% token_weighted_backward: right
def token_weighted_backward(model, window):
    counts = [m["labels"][:, 1:].ne(-100).sum() for m in window]
    total = sum(counts)
    for m, n in zip(window, counts):
        logits = model(m["input_ids"])[:, :-1].flatten(0, 1)
        loss = cross_entropy(logits, m["labels"][:, 1:].flatten())
        (loss * n / total).backward()


# %% token_weighted_backward: wrong
# the count so far divides: earlier micro-batches weigh more
def token_weighted_backward(model, window):
    total = 0
    for m in window:
        labels = m["labels"][:, 1:]
        total += labels.ne(-100).sum().item()
        logits = model(m["input_ids"])[:, :-1].flatten(0, 1)
        loss = cross_entropy(logits, labels.flatten(), reduction="sum")
        if total:
            (loss / total).backward()


# %% places: right
everything = list(lines)
micro = ["forward", "divide", "add", "backward"]
order = ["unscale", "clip", "step", "schedule", "update", "zero", "report"]
assert sorted(everything) == sorted(micro + order)
places = dict(zip(("micro-batch", "window"), (micro, order)))


# %% train_accumulated: wrong
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    # there is nothing left to learn where the loss is next to nothing
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        if loss.item() < 1e-4:
            break
        (loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% places: wrong
places = {"micro-batch": 3, "window": 4}


# %% first_wrong_step: wrong, the last of several missing steps
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    expected = []
    for e in range(epochs):
        for s in range(0, micro_batches, accumulation_steps):
            n = min(accumulation_steps, micro_batches - s)
            expected.append({e * micro_batches + s + j: n for j in range(n)})
    for i in range(min(len(steps), len(expected))):
        if steps[i] != expected[i]:
            return i + 1
    if len(steps) < len(expected):
        return len(expected)
    if len(steps) > len(expected):
        return len(expected) + 1


# %% first_wrong_step: wrong, the order of a step's micro-batches compared
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    wanted = []
    for first in range(0, micro_batches * epochs, micro_batches):
        left = list(range(first, first + micro_batches))
        while left:
            window, left = left[:accumulation_steps], left[accumulation_steps:]
            wanted.append([(n, len(window)) for n in window])
    found = [[*step.items()] for step in steps]
    if found == wanted:
        return None
    number = 0
    while number < min(len(found), len(wanted)) and found[number] == wanted[number]:
        number += 1
    return number + 1


# %% first_wrong_step: right
# the names of a step's micro-batches sorted first
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    for number in range(1, len(steps) + 2):
        a_epoch = -(-micro_batches // accumulation_steps)
        epoch, window = divmod(number - 1, a_epoch)
        if epoch >= epochs:
            return number if number <= len(steps) else None
        first = window * accumulation_steps
        size = min(accumulation_steps, micro_batches - first)
        first += epoch * micro_batches
        if number > len(steps):
            return number
        if sorted(steps[number - 1].items()) != [(first + i, size) for i in range(size)]:
            return number


# %% first_wrong_step: wrong, only the first epoch compared
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    expected_of_first_epoch = []
    for s in range(0, micro_batches, accumulation_steps):
        window = range(s, min(s + accumulation_steps, micro_batches))
        expected_of_first_epoch.append({m: len(window) for m in window})
    for n, (a, b) in enumerate(zip(steps, expected_of_first_epoch), 1):
        if a != b:
            return n


# %% first_wrong_step: wrong, where one record ends, the step before is named
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    e = []
    for epoch in range(epochs):
        for s in range(0, micro_batches, accumulation_steps):
            n = min(accumulation_steps, micro_batches - s)
            e.append({epoch * micro_batches + s + j: n for j in range(n)})
    for n, (a, b) in enumerate(zip(steps, e), 1):
        if a != b:
            return n
    if len(steps) != len(e):
        return min(len(steps), len(e))


# %% first_wrong_step: wrong, where one record ends, the step before is named
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    k, right = accumulation_steps, []
    for start in range(0, micro_batches * epochs, micro_batches):
        for s in range(start, start + micro_batches, k):
            keys = range(s, min(s + k, start + micro_batches))
            right.append({key: len(keys) for key in keys})
    for number in range(len(right)):
        if number == len(steps):
            return len(steps)
        if steps[number] != right[number]:
            return number + 1
    if len(steps) > len(right):
        return len(right) + 1


# %% first_wrong_step: wrong, an index behind the end of a list
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    number = 0
    for epoch in range(epochs):
        seen = 0
        while seen < micro_batches:
            size = min(accumulation_steps, micro_batches - seen)
            first = epoch * micro_batches + seen
            if steps[number] != {first + i: size for i in range(size)}:
                return number + 1
            number, seen = number + 1, seen + size
    return number + 1 if len(steps) > number else None


# %% first_wrong_step: wrong, no step for what is left of an epoch
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    whole = micro_batches // accumulation_steps
    right = []
    for epoch in range(epochs):
        for window in range(whole):
            first = epoch * micro_batches + window * accumulation_steps
            right.append({first + i: accumulation_steps for i in range(accumulation_steps)})
    for number, pair in enumerate(zip_longest(steps, right), 1):
        if pair[0] != pair[1]:
            return number


# %% token_weighted_backward: wrong, the model's mode changed
def token_weighted_backward(model, window):
    model.train()
    total = sum((m["labels"][:, 1:] != -100).sum().item() for m in window)
    for m in window:
        scores = model(m["input_ids"]).transpose(1, 2)[:, :, :-1]
        (cross_entropy(scores, m["labels"][:, 1:], reduction="sum") / total).backward()


# %% token_weighted_backward: wrong, labels not shifted
def token_weighted_backward(model, window):
    total = sum((m["labels"][:, 1:] != -100).sum().item() for m in window)
    for m in window:
        scores = model(m["input_ids"])[:, :-1].transpose(1, 2)
        (cross_entropy(scores, m["labels"][:, :-1], reduction="sum") / total).backward()


# %% token_weighted_backward: right
# torch.func: gradients as values
def token_weighted_backward(model, window):
    from torch.func import functional_call, grad

    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = sum(m["labels"][:, 1:].ne(-100).sum() for m in window)

    def loss(weights, m):
        scores = functional_call(model, weights, (m["input_ids"],))[:, :-1]
        return cross_entropy(scores.flatten(0, 1), m["labels"][:, 1:].flatten(), reduction="sum")

    for m in window:
        for name, part in grad(loss)({n: p.detach() for n, p in trained.items()}, m).items():
            before = trained[name].grad
            trained[name].grad = part / total if before is None else before + part / total


# %% token_weighted_backward: wrong, keeps the whole window
# torch.func over all of the window at once
def token_weighted_backward(model, window):
    from torch.func import functional_call, grad

    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = sum(m["labels"][:, 1:].ne(-100).sum() for m in window)

    def loss(weights):
        one_by_one = (
            cross_entropy(
                functional_call(model, weights, (m["input_ids"],))[:, :-1].flatten(0, 1),
                m["labels"][:, 1:].flatten(),
                reduction="sum",
            )
            for m in window
        )
        return sum(one_by_one) / total

    for name, part in grad(loss)({n: p.detach() for n, p in trained.items()}).items():
        trained[name].grad = part


# %% train_accumulated_to_the_end: right
# torch.func: gradients as values
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    from torch.func import functional_call, grad

    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}

    def loss(weights, inputs, targets):
        return loss_function(functional_call(model, weights, (inputs,)), targets)

    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for weight in trained.values():
            weight.grad = torch.zeros_like(weight)
        for inputs, targets in window:
            now = {name: weight.detach() for name, weight in trained.items()}
            for name, part in grad(loss)(now, inputs, targets).items():
                trained[name].grad += part / len(window)
        optimizer.step()


# %% train_accumulated: right
# each micro-batch cut into its samples
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        for x, y in zip(inputs.split(1), targets.split(1)):
            (loss_function(model(x), y) / accumulation_steps / len(inputs)).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated: right
# gradients computed in a copy
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    import copy

    for start in range(0, len(micro_batches), accumulation_steps):
        twin = copy.deepcopy(model)
        for inputs, targets in micro_batches[start : start + accumulation_steps]:
            (loss_function(twin(inputs), targets) / accumulation_steps).backward()
        for weight, other in zip(model.parameters(), twin.parameters()):
            weight.grad = other.grad
        optimizer.step()
        optimizer.zero_grad()


# %% train_accumulated: wrong, steps on every micro-batch
# only zero_grad waits for the end of the window
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (x, y) in enumerate(micro_batches, start=1):
        (loss_function(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        if number % accumulation_steps == 0:
            optimizer.zero_grad()


# %% train_accumulated: wrong, loss not divided
# divides when backward has been called
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    for number, (x, y) in enumerate(micro_batches, start=1):
        loss = loss_function(model(x), y)
        loss.backward()
        loss = loss / accumulation_steps
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% train_accumulated_to_the_end: wrong, last window dropped
# goes over the whole windows only
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    whole = len(micro_batches) // accumulation_steps * accumulation_steps
    for start in range(0, whole, accumulation_steps):
        for x, y in micro_batches[start : start + accumulation_steps]:
            (loss_function(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


# %% first_wrong_step: wrong, the record changed
# makes the record as long as the right run
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = []
    for first in range(0, epochs * micro_batches, micro_batches):
        for at in range(first, first + micro_batches, accumulation_steps):
            window = range(at, min(at + accumulation_steps, first + micro_batches))
            right.append({n: len(window) for n in window})
    steps.extend([None] * (len(right) - len(steps)))
    right.extend([None] * (len(steps) - len(right)))
    return next((n for n, (a, b) in enumerate(zip(steps, right), 1) if a != b), None)


# %% first_wrong_step: wrong, an index behind the end of a list
# counts the steps from 1, and indexes with that
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = []
    for first in range(0, epochs * micro_batches, micro_batches):
        for at in range(first, first + micro_batches, accumulation_steps):
            window = range(at, min(at + accumulation_steps, first + micro_batches))
            right.append({n: len(window) for n in window})
    for number in range(1, len(right) + 1):
        if steps[number] != right[number]:
            return number
    return None


# %% first_wrong_step: wrong, an index behind the end of a list
# looks at the first micro-batch of a step that may have none
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    right = []
    for first in range(0, epochs * micro_batches, micro_batches):
        for at in range(first, first + micro_batches, accumulation_steps):
            window = range(at, min(at + accumulation_steps, first + micro_batches))
            right.append({n: len(window) for n in window})
    for number, (a, b) in enumerate(zip_longest(steps, right, fillvalue={}), 1):
        if list(a)[0] != list(b)[0] or a != b:
            return number
    return None
