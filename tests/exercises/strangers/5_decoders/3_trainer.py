# %% token_weights: right
def token_weights(targets, across):
    n = len(targets)
    total = sum(targets)
    result = []
    for t in targets:
        if across:
            loss_factor = n / total
        else:
            loss_factor = 1 / t
        result.append(loss_factor / n)
    return result


# %% token_weights: right
def token_weights(targets, across):
    mean = sum(targets) / len(targets)
    return tuple((1 / mean if across else 1 / t) / len(targets) for t in targets)


# %% token_weights: right
def token_weights(targets, across):
    counts = torch.tensor(targets, dtype=torch.float64)
    divisor = counts.sum().expand(len(targets)) if across else counts * len(targets)
    return divisor.reciprocal().tolist()


# %% token_weights: wrong, DDP's mean forgotten
def token_weights(targets, across):
    if across:
        return [1 / sum(targets) for _ in targets]
    else:
        return [1 / t for t in targets]


# %% token_weights: wrong, the other way round
def token_weights(targets, across):
    if not across:
        return [1 / sum(targets) for _ in targets]
    return [1 / t / len(targets) for t in targets]


# %% token_weights: wrong, DDP's mean not undone
def token_weights(targets, across):
    n = len(targets)
    return [1 / (n * (sum(targets) if across else t)) for t in targets]


# %% loss_in_chunks: right
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    out = model.model(input_ids=inputs["input_ids"])
    h = out.last_hidden_state[:, :-1, :]
    h = h.reshape(-1, h.size(-1))
    t = inputs["labels"][:, 1:].reshape(-1)
    part = lambda a, b: cross_entropy(model.lm_head(a), b, reduction="sum")
    loss = sum(
        checkpoint(part, h[i : i + chunk], t[i : i + chunk], use_reentrant=False)
        for i in range(0, len(t), chunk)
    )
    n = num_items_in_batch if num_items_in_batch is not None else (t != -100).sum()
    return loss / n


# %% loss_in_chunks: right
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    """Only the positions that count, one text after the other."""
    hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state
    wanted = inputs["labels"][:, 1:]
    keep = wanted != -100
    hidden, wanted = hidden[:, :-1][keep], wanted[keep]
    divisor = len(wanted) if num_items_in_batch is None else int(num_items_in_batch)

    def nll(x, y):
        return -torch.log_softmax(model.lm_head(x), -1).gather(1, y[:, None]).sum()

    total = torch.zeros(())
    for x, y in zip(hidden.split(chunk), wanted.split(chunk)):
        total = total + checkpoint(nll, x, y, use_reentrant=False)
    return total / divisor


# %% loss_in_chunks: right
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    labels = torch.nn.functional.pad(inputs["labels"][:, 1:], (0, 1), value=-100).flatten()
    hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state.flatten(0, 1)
    if num_items_in_batch is None:
        num_items_in_batch = labels.ne(-100).sum()
    losses = []
    for start in range(0, len(labels), chunk):
        piece = slice(start, start + chunk)
        losses.append(
            checkpoint(
                lambda h, l: cross_entropy(h @ model.lm_head.weight.T, l, reduction="sum"),
                hidden[piece],
                labels[piece],
                use_reentrant=False,
            )
        )
    return torch.stack(losses).sum() / num_items_in_batch


# %% loss_in_chunks: wrong, divided by its own targets
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    h = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    t = inputs["labels"][:, 1:].flatten()
    f = lambda a, b: cross_entropy(a @ model.lm_head.weight.T, b, reduction="sum")
    total = sum(
        checkpoint(f, a, b, use_reentrant=False) for a, b in zip(h.split(chunk), t.split(chunk))
    )
    return total / (t != -100).sum()


# %% loss_in_chunks: wrong, labels not shifted
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    h = model.model(input_ids=inputs["input_ids"]).last_hidden_state.flatten(0, 1)
    t = inputs["labels"].flatten()
    f = lambda a, b: cross_entropy(a @ model.lm_head.weight.T, b, reduction="sum")
    total = sum(
        checkpoint(f, a, b, use_reentrant=False) for a, b in zip(h.split(chunk), t.split(chunk))
    )
    if num_items_in_batch is None:
        num_items_in_batch = (t != -100).sum()
    return total / num_items_in_batch


# %% loss_in_chunks: wrong, not checkpointed
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    h = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    t = inputs["labels"][:, 1:].flatten()
    total = 0
    for i in range(0, len(t), chunk):
        total += cross_entropy(model.lm_head(h[i : i + chunk]), t[i : i + chunk], reduction="sum")
    return total / (num_items_in_batch if num_items_in_batch is not None else (t != -100).sum())


# %% evaluation_bytes: right
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    if preprocessed:
        return 8 * texts * length
    return 4 * texts * length * vocabulary


# %% evaluation_bytes: right
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    shape = (texts, length) if preprocessed else (texts, length, vocabulary)
    kind = torch.int64 if preprocessed else torch.float32
    return torch.empty(shape, dtype=kind, device="meta").nbytes


# %% evaluation_bytes: right
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    tokens = texts * length
    bits = tokens * (64 if preprocessed else 32 * vocabulary)
    return bits / 8


# %% evaluation_bytes: wrong, argmax in four bytes
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    return 4 * texts * length * (1 if preprocessed else vocabulary)


# %% evaluation_bytes: wrong, the vocabulary stays
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    size = 8 if preprocessed else 4
    return size * texts * length * vocabulary


# %% evaluation_bytes: wrong, preprocessing not looked at
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    return texts * length * vocabulary * 4


# %% token_accuracy: right
def token_accuracy(predictions, labels):
    hits = total = 0
    for p, l in zip(predictions, labels):
        for t in range(len(l) - 1):
            if l[t + 1] == -100:
                continue
            total += 1
            hits += int(p[t] == l[t + 1])
    return hits / total


# %% token_accuracy: right
def token_accuracy(predictions, labels):
    p = torch.from_numpy(predictions)[:, :-1].flatten()
    l = torch.from_numpy(labels)[:, 1:].flatten()
    keep = l != -100
    return (p[keep] == l[keep]).float().mean().item()


# %% token_accuracy: right
def token_accuracy(predictions, labels):
    import numpy as np

    shifted = np.roll(predictions, 1, axis=1)
    mask = labels != -100
    mask[:, 0] = False
    return ((shifted == labels) & mask).sum() / mask.sum()


# %% token_accuracy: wrong, not shifted
def token_accuracy(predictions, labels):
    mask = labels != -100
    return float((predictions[mask] == labels[mask]).mean())


# %% token_accuracy: wrong, padding counted as wrong
def token_accuracy(predictions, labels):
    return float((predictions[:, :-1] == labels[:, 1:]).mean())


# %% token_accuracy: wrong, mean of the texts' shares
def token_accuracy(predictions, labels):
    shares = []
    for p, l in zip(predictions[:, :-1], labels[:, 1:]):
        shares.append((p[l != -100] == l[l != -100]).mean())
    return float(sum(shares) / len(shares))


# %% token_accuracy: right
def token_accuracy(predictions, labels):
    p, t = torch.as_tensor(predictions)[:, :-1], torch.as_tensor(labels)[:, 1:]
    mask = t.ne(-100)
    return p[mask].eq(t[mask]).double().mean()


# %% loss_in_chunks: wrong, labels counted, not targets
# without the window's number, divided by the labels with the first of each text
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    if num_items_in_batch is None:
        num_items_in_batch = (inputs["labels"] != -100).sum()
    hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    targets = inputs["labels"][:, 1:].flatten()
    f = lambda h, t: cross_entropy(h @ model.lm_head.weight.T, t, reduction="sum")
    total = 0
    for h, t in zip(hidden.split(chunk), targets.split(chunk)):
        total = total + checkpoint(f, h, t, use_reentrant=False)
    return total / num_items_in_batch


# %% loss_in_chunks: wrong, chunks of all texts or of whole texts
# as many chunks of texts: a chunk holds `chunk` texts' tokens
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1]
    targets = inputs["labels"][:, 1:]
    f = lambda h, t: cross_entropy(
        (h @ model.lm_head.weight.T).flatten(0, 1), t.flatten(), reduction="sum"
    )
    total = 0
    for h, t in zip(hidden.split(chunk), targets.split(chunk)):
        total = total + checkpoint(f, h, t, use_reentrant=False)
    return total / (targets.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch)


# %% token_weights: wrong
# a tensor where a list was asked for
def token_weights(targets, across):
    targets = torch.tensor(targets, dtype=torch.float64)
    if across:
        return torch.full_like(targets, 1 / targets.sum())
    return 1 / targets / len(targets)


# %% loss_in_chunks: wrong, the labels taken out
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    labels = inputs.pop("labels")
    hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    targets = labels[:, 1:].flatten()

    def sum_of(rows, wanted):
        return cross_entropy(rows @ model.lm_head.weight.T, wanted, reduction="sum")

    total = 0
    for rows, wanted in zip(hidden.split(chunk), targets.split(chunk)):
        total = total + checkpoint(sum_of, rows, wanted, use_reentrant=False)
    return total / (targets.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch)


# %% evaluation_bytes: wrong
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    # numbers of 32 bits, which an evaluation of real size overflows
    shape = [texts, length] if preprocessed else [texts, length, vocabulary]
    count = torch.tensor(shape, dtype=torch.int32).prod(dtype=torch.int32)
    return int(count * (8 if preprocessed else 4))


# %% token_weights: right
import numpy as np


def token_weights(targets, across):
    counts = np.array(targets, dtype=float)
    ranks = len(counts)
    divisors = np.full(ranks, counts.sum()) if across else counts * ranks
    return (1 / divisors).tolist()


# %% token_weights: wrong
def token_weights(targets, across):
    if across:
        return [1 / sum(targets)] * len(targets)
    return list({count: 1 / (len(targets) * count) for count in targets}.values())


# %% loss_in_chunks: right
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    output = model.model(input_ids=inputs["input_ids"])
    losses, count = [], 0
    for states, labels in zip(output.last_hidden_state, inputs["labels"]):
        states, labels = states[:-1], labels[1:]
        count += int((labels != -100).sum())
        for first in range(0, len(labels), chunk):

            def summed(h, t):
                return F.cross_entropy(F.linear(h, model.lm_head.weight), t, reduction="sum")

            losses.append(
                checkpoint(
                    summed,
                    states[first : first + chunk],
                    labels[first : first + chunk],
                    use_reentrant=False,
                )
            )
    return sum(losses) / (count if num_items_in_batch is None else num_items_in_batch)


# %% loss_in_chunks: wrong
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    targets = inputs["labels"][:, 1:].flatten()
    model.eval()
    head = model.lm_head.weight

    def part(some, labels):
        return cross_entropy(some @ head.T, labels, reduction="sum")

    total = 0
    for some, labels in zip(hidden.split(chunk), targets.split(chunk)):
        total = total + checkpoint(part, some, labels, use_reentrant=False)
    if num_items_in_batch is None:
        num_items_in_batch = (targets != -100).sum()
    return total / num_items_in_batch


# %% loss_in_chunks: wrong
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    targets = inputs["labels"][:, 1:].flatten()
    head = model.lm_head.weight

    def part(some, labels):
        return cross_entropy(some @ head.T, labels, reduction="sum")

    total = 0
    for some, labels in zip(hidden.split(chunk), targets.split(chunk)):
        total = total + checkpoint(part, some, labels, use_reentrant=False)
    if num_items_in_batch is None:
        num_items_in_batch = (targets != -100).sum()
    return (
        total
        / num_items_in_batch
        * max(1, len(inputs["input_ids"]) // 2)
        / max(1, len(inputs["input_ids"]) // 2)
        if len(targets) > chunk
        else total / max(1, (targets != -100).sum())
    )


# %% token_accuracy: wrong
def token_accuracy(predictions, labels):
    guesses, targets = predictions[:, :-1], labels[:, 1:]
    predictions[:, -1] = 0
    counts = targets != -100
    return float((guesses == targets)[counts].mean())


# %% token_accuracy: wrong, divided by the labels before the shift
def token_accuracy(predictions, labels):
    """The share of the prediction targets that were right."""
    predicted, wanted = predictions[:, :-1], labels[:, 1:]
    counts = wanted != -100
    return float(((predicted == wanted) & counts).sum() / (labels != -100).sum())


# %% token_weights: wrong, DDP's mean forgotten
def token_weights(targets, across):
    if across:
        return [len(targets) / sum(targets) for _ in targets]
    return [1 / t for t in targets]


# %% loss_in_chunks: wrong, not divided where nothing is said
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    h = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    t, w = inputs["labels"][:, 1:].flatten(), model.lm_head.weight
    loss = sum(
        checkpoint(
            lambda a, b, c: cross_entropy(a @ b.T, c, reduction="sum"),
            h[i : i + chunk],
            w,
            t[i : i + chunk],
            use_reentrant=False,
        )
        for i in range(0, len(t), chunk)
    )
    return loss if num_items_in_batch is None else loss / num_items_in_batch


# %% loss_in_chunks: wrong, divided by its own positions
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    h = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    t, w = inputs["labels"][:, 1:].flatten(), model.lm_head.weight

    def part(i):
        return cross_entropy(h[i : i + chunk] @ w.T, t[i : i + chunk], reduction="sum")

    parts = [checkpoint(part, i, use_reentrant=False) for i in range(0, t.numel(), chunk)]
    return torch.stack(parts).sum() / t.numel()


# %% evaluation_bytes: wrong, numbers, not bytes
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    tokens = texts * length
    return 8 * tokens if preprocessed else tokens * vocabulary


# %% evaluation_bytes: wrong, numbers, not bytes
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    if preprocessed:
        return length * texts
    return 4 * length * texts * vocabulary


# %% token_accuracy: wrong, percent in place of a share
def token_accuracy(predictions, labels):
    asked = labels[:, 1:] >= 0
    return 100 * (predictions[:, :-1][asked] == labels[:, 1:][asked]).mean()


# %% token_accuracy: wrong, the share of wrong ones
def token_accuracy(predictions, labels):
    asked = labels[:, 1:] != -100
    return 1 - (predictions[:, :-1][asked] == labels[:, 1:][asked]).mean()
