# %% explain_row: right
def explain_row(model, micro_batch, length):
    everything = trained = 0
    for weight in model.parameters():
        size = weight.numel() * weight.element_size()
        everything += size
        if weight.requires_grad:
            trained += size
    logits = micro_batch * length * model.config.vocab_size
    return {
        "weights": everything,
        "gradients": trained,
        "optimizer state": trained + trained,
        "logits": 4 * logits,
    }


# %% explain_row: wrong, 4 bytes for every weight
def explain_row(model, micro_batch, length):
    seen = {}
    for name, weight in model.named_parameters():
        seen[weight.data_ptr()] = weight
    weights = sum(4 * weight.numel() for weight in seen.values())
    frozen = sum(4 * weight.numel() for weight in seen.values() if not weight.requires_grad)
    return dict(
        weights=weights,
        gradients=weights - frozen,
        logits=torch.empty(micro_batch, length, model.config.vocab_size, device="meta").nbytes,
        **{"optimizer state": 2 * (weights - frozen)},
    )


# %% explain_row: right
def explain_row(model, micro_batch, length):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    tokens = torch.randint(model.config.vocab_size, (micro_batch, length))
    logits = model(input_ids=tokens).logits
    logits.mean().backward()
    optimizer.step()
    state = sum(
        kept[name].nbytes for kept in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")
    )
    return {
        "weights": sum(p.nbytes for p in model.parameters()),
        "gradients": sum(p.grad.nbytes for p in model.parameters() if p.grad is not None),
        "optimizer state": state,
        "logits": logits.nbytes,
    }


# %% explain_row: wrong, frozen weights with gradients
# every weight is taken to be trained
def explain_row(model, micro_batch, length):
    size = sum(p.numel() for p in model.parameters()) * 4
    return {
        "weights": size,
        "gradients": size,
        "optimizer state": 2 * size,
        "logits": micro_batch * length * model.config.vocab_size * 4,
    }


# %% explain_row: wrong, logits of one text
# the micro-batch is forgotten
def explain_row(model, micro_batch, length):
    grads = sum(p.nbytes for p in model.parameters() if p.requires_grad)
    return {
        "weights": sum(p.nbytes for p in model.parameters()),
        "gradients": grads,
        "optimizer state": grads * 2,
        "logits": length * model.config.vocab_size * 4,
    }


# %% explain_row: wrong, one average in the state
# the state of SGD with momentum
def explain_row(model, micro_batch, length):
    parameters = list(model.parameters())
    trained = [p for p in parameters if p.requires_grad]
    bytes_of = lambda some: 4 * sum(map(torch.numel, some))
    return {
        "weights": bytes_of(parameters),
        "gradients": bytes_of(trained),
        "optimizer state": bytes_of(trained),
        "logits": 4 * model.config.vocab_size * micro_batch * length,
    }


# %% explain_row: right
from collections import defaultdict


def explain_row(model, micro_batch, length):
    row = defaultdict(int)
    for w in model.parameters():
        size = w.numel() * w.element_size()
        row["weights"] += size
        if w.requires_grad:
            row["gradients"] += size
            row["optimizer state"] += size + size
    row["gradients"], row["optimizer state"]
    row["logits"] = torch.empty(micro_batch, length, model.config.vocab_size, device="meta").nbytes
    return dict(row)


# %% explain_row: right
def explain_row(model, micro_batch, length):
    unique = {id(w): w for _, w in model.named_parameters(remove_duplicate=False)}.values()
    count = lambda keep: sum(w.nelement() * w.dtype.itemsize for w in unique if keep(w))
    trained = count(lambda w: w.requires_grad)
    return dict(
        zip(
            ("weights", "gradients", "optimizer state", "logits"),
            (
                count(lambda w: True),
                trained,
                trained * 2,
                4 * micro_batch * length * model.config.vocab_size,
            ),
        )
    )


# %% explain_row: wrong, 4 bytes for every weight
# 4 bytes for any number
def explain_row(model, micro_batch, length):
    n = sum(w.numel() for w in model.parameters())
    t = sum(w.numel() for w in model.parameters() if w.requires_grad)
    return {
        "weights": 4 * n,
        "gradients": 4 * t,
        "optimizer state": 8 * t,
        "logits": 4 * micro_batch * length * model.config.vocab_size,
    }


# %% explain_row: wrong, averages of 4 bytes
# state in float32, whatever the weight's type
def explain_row(model, micro_batch, length):
    trained = [w for w in model.parameters() if w.requires_grad]
    return {
        "weights": sum(w.nbytes for w in model.parameters()),
        "gradients": sum(w.nbytes for w in trained),
        "optimizer state": sum(8 * w.numel() for w in trained),
        "logits": 4 * micro_batch * length * model.config.vocab_size,
    }


# %% explain_row: wrong, logits in the type of the weights
# logits in the weights' type
def explain_row(model, micro_batch, length):
    t = sum(w.nbytes for w in model.parameters() if w.requires_grad)
    return {
        "weights": sum(w.nbytes for w in model.parameters()),
        "gradients": t,
        "optimizer state": 2 * t,
        "logits": next(model.parameters()).element_size()
        * micro_batch
        * length
        * model.config.vocab_size,
    }


# %% settings_that_fit: right
def settings_that_fit(batch, ways, peak, budget):
    return [
        (size, batch // size, way)
        for size in range(1, batch + 1)
        if not batch % size
        for way in ways
        if not peak(size, way) > budget
    ]


# %% settings_that_fit: right
def settings_that_fit(batch, ways, peak, budget):
    from itertools import product

    found = set()
    for steps, way in product(range(1, batch + 1), ways):
        size, rest = divmod(batch, steps)
        if rest == 0 and budget - peak(size, way) >= 0:
            found.add((size, steps, way))
    return sorted(found, key=str)


# %% settings_that_fit: right
def settings_that_fit(batch, ways, peak, budget):
    """Upwards until one is too large."""
    out = []
    for way in ways:
        size = 1
        while size <= batch:
            if batch % size == 0:
                if peak(size, way) > budget:
                    break
                out += [[size, batch // size, way]]
            size += 1
    return out


# %% settings_that_fit: wrong, powers of two only
def settings_that_fit(batch, ways, peak, budget):
    out, size = [], 1
    while size <= batch:
        for way in ways:
            if peak(size, way) <= budget:
                out.append((size, batch // size, way))
        size *= 2
    return out


# %% settings_that_fit: wrong, micro-batches that do not divide the batch
def settings_that_fit(batch, ways, peak, budget):
    return [(m, batch // m, w) for w in ways for m in range(1, batch + 1) if peak(m, w) <= budget]


# %% settings_that_fit: wrong, the largest of each way only
def settings_that_fit(batch, ways, peak, budget):
    out = []
    for way in ways:
        for size in range(batch, 0, -1):
            if batch % size == 0 and peak(size, way) <= budget:
                out.append((size, batch // size, way))
                break
    return out


# %% fewest_flops: right
def fewest_flops(rows, budget):
    best = None
    for row in rows:
        if row["peak"] > budget:
            continue
        if best is None or row["flops"] < best["flops"]:
            best = row
        elif row["flops"] == best["flops"] and row["micro_batch"] > best["micro_batch"]:
            best = row
    return best


# %% fewest_flops: right
def fewest_flops(rows, budget):
    rows = sorted(rows, key=lambda row: row["micro_batch"], reverse=True)
    rows = sorted(rows, key=lambda row: row["flops"])
    return next((row for row in rows if row["peak"] <= budget), None)


# %% fewest_flops: right
def fewest_flops(rows, budget):
    fits = [row for row in rows if budget >= row["peak"]]
    if not fits:
        return None
    least = min(row["flops"] for row in fits)
    return max((row for row in fits if row["flops"] == least), key=lambda row: row["micro_batch"])


# %% fewest_flops: wrong, the largest micro-batch first
def fewest_flops(rows, budget):
    fits = [row for row in rows if row["peak"] <= budget]
    fits.sort(key=lambda row: (row["micro_batch"], -row["flops"]))
    return fits[-1] if fits else None


# %% fewest_flops: wrong, the most memory
def fewest_flops(rows, budget):
    fits = [row for row in rows if row["peak"] <= budget]
    return max(fits, key=lambda row: row["peak"]) if fits else None


# %% fewest_flops: wrong, no answer where nothing fits
def fewest_flops(rows, budget):
    frame = [row for row in rows if row["peak"] <= budget]
    frame = sorted(frame, key=lambda row: (row["flops"], -row["micro_batch"]))
    return frame[0]


# %% train_within: right
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    model.train()
    if checkpointing:
        model.activation_checkpointing_enable()
    optimizer.zero_grad()
    counts = batch["labels"][:, 1:].ne(-100).sum().item()
    parts = zip(
        batch["input_ids"].split(micro_batch), batch["labels"].split(micro_batch), strict=True
    )
    for tokens, labels in parts:
        loss = model(input_ids=tokens, labels=labels).loss
        loss = loss * (labels[:, 1:] != -100).sum().item() / counts
        loss.backward()
        del loss
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


# %% train_within: right
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    total = int((batch["labels"][:, 1:] >= 0).sum())
    number = 0
    while number < batch["input_ids"].shape[0]:
        here = slice(number, number + micro_batch)
        logits = model(input_ids=batch["input_ids"][here]).logits
        logits = logits[:, :-1].flatten(0, 1)
        labels = batch["labels"][here, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / total
        del logits
        loss.backward()
        number += micro_batch
    optimizer.step()
    for weight in model.parameters():
        weight.grad = None


# %% train_within: right
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    """The sum of all tokens' losses, divided once at the end."""
    if checkpointing:
        model.activation_checkpointing_enable()
    tokens = 0
    for start in range(0, len(batch["input_ids"]), micro_batch):
        part = {name: batch[name][start : start + micro_batch] for name in ("input_ids", "labels")}
        count = int((part["labels"][:, 1:] != -100).sum())
        (model(**part).loss * count).backward()
        tokens += count
    for weight in model.parameters():
        if weight.grad is not None:
            weight.grad /= tokens
    optimizer.step()
    model.zero_grad()


# %% train_within: wrong, every part weighs the same
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable()
    starts = list(range(0, len(batch["labels"]), micro_batch))
    for i in starts:
        out = model(
            input_ids=batch["input_ids"][i : i + micro_batch],
            labels=batch["labels"][i : i + micro_batch],
        )
        loss = out.loss / len(starts)
        del out
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %% train_within: wrong, one backward pass at the end
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable()
    tokens = (batch["labels"][:, 1:] != -100).sum()
    losses = []
    for start in range(0, len(batch["labels"]), micro_batch):
        labels = batch["labels"][start : start + micro_batch]
        loss = model(input_ids=batch["input_ids"][start : start + micro_batch], labels=labels).loss
        losses.append(loss * (labels[:, 1:] != -100).sum() / tokens)
    sum(losses).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% train_within: wrong, tokens counted without the shift
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable()
    all_tokens = (batch["labels"] != -100).sum()
    for start in range(0, len(batch["labels"]), micro_batch):
        part = {key: value[start : start + micro_batch] for key, value in batch.items()}
        loss = model(**part).loss * (part["labels"] != -100).sum() / all_tokens
        loss.backward()
        del loss
    optimizer.step()
    optimizer.zero_grad()


# %% train_within: wrong, checkpointing switched off
# checkpointing switched off where False
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.gradient_checkpointing_enable()
    else:
        model.gradient_checkpointing_disable()
    n = (batch["labels"][:, 1:] != -100).sum()
    for x, y in zip(batch["input_ids"].split(micro_batch), batch["labels"].split(micro_batch)):
        (model(input_ids=x, labels=y).loss * ((y[:, 1:] != -100).sum() / n)).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% fewest_flops: wrong, the fewest of all, whether it fits or not
# the fewest of all, and None if that one does not fit
def fewest_flops(rows, budget):
    best = min(rows, key=lambda r: (r["flops"], -r["micro_batch"]))
    return best if best["peak"] <= budget else None


# %% fewest_flops: wrong, the rows changed
# a mark is left in the rows
def fewest_flops(rows, budget):
    for row in rows:
        row["fits"] = row["peak"] <= budget
    fitting = [r for r in rows if r["fits"]]
    return min(fitting, key=lambda r: (r["flops"], -r["micro_batch"]), default=None)


# %% explain_row: wrong, buffers among the weights
def explain_row(model, micro_batch, length):
    trained = sum(w.nbytes for w in model.parameters() if w.requires_grad)
    return {
        "weights": model.get_memory_footprint(),
        "gradients": trained,
        "optimizer state": 2 * trained,
        "logits": micro_batch * length * model.config.vocab_size * 4,
    }


# %% settings_that_fit: wrong
def settings_that_fit(batch, ways, peak, budget):
    # a way that does not fit ends the search
    found = []
    for way in ways:
        if peak(1, way) > budget:
            break
        for m in range(1, batch + 1):
            if batch % m == 0 and peak(m, way) <= budget:
                found.append((m, batch // m, way))
    return found


# %% fewest_flops: wrong
def fewest_flops(rows, budget):
    # nearly as few is taken for as few
    fits = [row for row in rows if row["peak"] <= budget]
    if not fits:
        return None
    least = min(row["flops"] for row in fits)
    near = [row for row in fits if row["flops"] <= 1.01 * least]
    return max(near, key=lambda row: row["micro_batch"])


# %% fewest_flops: wrong, FLOPs divided by the micro-batch
def fewest_flops(rows, budget):
    # FLOPs of a sample of one micro-batch
    fits = [row for row in rows if row["peak"] <= budget]
    return min(fits, key=lambda row: row["flops"] / row["micro_batch"]) if fits else None


# %% fewest_flops: wrong
def fewest_flops(rows, budget):
    # plain rows first, whatever they compute
    fits = [row for row in rows if row["peak"] <= budget]
    keys = lambda row: (row["checkpointing"], row["flops"], -row["micro_batch"])
    return min(fits, key=keys) if fits else None


# %% settings_that_fit: right
from itertools import product


def settings_that_fit(batch, ways, peak, budget):
    sizes = filter(lambda n: not batch % n, range(1, batch + 1))
    return [(n, batch // n, way) for n, way in product(sizes, ways) if not peak(n, way) > budget]


# %% settings_that_fit: wrong
import math


def settings_that_fit(batch, ways, peak, budget):
    sizes = []
    for n in range(1, math.isqrt(batch) + 1):
        if batch % n == 0:
            sizes += [n, batch // n]
    return [(n, batch // n, way) for way in ways for n in sizes if peak(n, way) <= budget]


# %% fewest_flops: right
def fewest_flops(rows, budget):
    fit = [row for row in rows if row["peak"] <= budget]
    fewest = min((row["flops"] for row in fit), default=None)
    ties = [row for row in fit if row["flops"] == fewest]
    return max(ties, key=lambda row: row["micro_batch"], default=None)


# %% fewest_flops: wrong
def fewest_flops(rows, budget):
    fitting = [row for row in rows if row["peak"] <= budget]
    if not fitting:
        return None
    return min(fitting, key=lambda row: (row["flops"], -row["peak"]))


# %% fewest_flops: wrong
def fewest_flops(rows, budget):
    by_flops = {
        row["flops"]: row
        for row in sorted(rows, key=lambda row: row["peak"])
        if row["peak"] <= budget
    }
    return by_flops[min(by_flops)] if by_flops else None


# %% fewest_flops: wrong
def fewest_flops(rows, budget):
    fitting = [row for row in rows if row["peak"] <= budget]
    if not fitting:
        return None
    best = min(fitting, key=lambda row: (row["flops"], -row["micro_batch"]))
    return {"micro_batch": best["micro_batch"], "checkpointing": best["checkpointing"]}


# %% train_within: right
def targets_in(labels):
    return int(labels[:, 1:].ne(-100).sum())


def train_within(model, optimizer, batch, micro_batch, checkpointing):
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    if checkpointing:
        enable()
    everything = targets_in(batch["labels"])
    for first in range(0, len(batch["labels"]), micro_batch):
        part = {name: tensor[first : first + micro_batch] for name, tensor in batch.items()}
        share = targets_in(part["labels"]) / everything
        if share:
            (model(**part).loss * share).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% train_within: wrong
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.gradient_checkpointing_enable()
    ids, labels = batch["input_ids"], batch["labels"]
    total = (labels[:, 1:] != -100).sum()
    optimizer.zero_grad()
    for some_ids, some_labels in zip(ids.split(micro_batch), labels.split(micro_batch)):
        count = (some_labels[:, 1:] != -100).sum()
        loss = model(input_ids=some_ids, labels=some_labels).loss
        if count:
            (loss * count / total).backward()
        del loss
    optimizer.step()
    optimizer.zero_grad()
    model.gradient_checkpointing_disable()


# %% settings_that_fit: wrong
def settings_that_fit(batch, ways, peak, budget):
    ways.reverse()
    return [
        (size, batch // size, way)
        for way in ways
        for size in range(1, batch + 1)
        if batch % size == 0 and peak(size, way) <= budget
    ]


# %% explain_row: wrong, the rows of the embedding for the vocabulary
def explain_row(model, micro_batch, length):
    """Bytes of weights, gradients, optimizer state and logits."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    return {
        "weights": weights,
        "gradients": trained,
        "optimizer state": 2 * trained,
        "logits": 4 * micro_batch * length * next(model.parameters()).shape[0],
    }


# %% train_within: right
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    # the older of torch's two checkpoints; the model lets its embeddings ask for a gradient
    if checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": True})
    counts = batch["labels"][:, 1:].ne(-100)
    for part, tokens in zip(
        zip(*(value.split(micro_batch) for value in batch.values())), counts.split(micro_batch)
    ):
        loss = model(**dict(zip(batch, part))).loss
        (loss * tokens.sum() / counts.sum()).backward()
    optimizer.step()
    model.zero_grad()


# %% settings_that_fit: wrong, ended at the first that does not fit
def settings_that_fit(batch, ways, peak, budget):
    found = []
    for way in ways:
        for size in range(1, batch + 1):
            if batch % size:
                continue
            if peak(size, way) > budget:
                return found
            found.append((size, batch // size, way))
    return found


# %% settings_that_fit: wrong, ended at the first that does not divide
def settings_that_fit(batch, ways, peak, budget):
    out = []
    for w in ways:
        for m in range(1, batch + 1):
            if batch % m != 0:
                return out
            if peak(m, w) <= budget:
                out.append((m, batch // m, w))
    return out


# %% explain_row: wrong, logits of all places but the last
def explain_row(model, micro_batch, length):
    weights = list(model.parameters())
    grads = [w for w in weights if w.requires_grad]
    size = sum(w.numel() * w.element_size() for w in grads)
    return {
        "weights": sum(w.numel() * w.element_size() for w in weights),
        "gradients": size,
        "optimizer state": size + size,
        "logits": 4 * micro_batch * (length - 1) * model.config.vocab_size,
    }


# %% explain_row: wrong, the first weight's bytes for all
def explain_row(model, micro_batch, length):
    weights = list(model.parameters())
    each = weights[0].element_size()
    total = each * sum(w.numel() for w in weights)
    trained = each * sum(w.numel() for w in weights if w.requires_grad)
    logits = 4 * micro_batch * length * model.config.vocab_size
    return dict(weights=total, gradients=trained, logits=logits) | {"optimizer state": 2 * trained}


# %% settings_that_fit: wrong, the first way only
def settings_that_fit(batch, ways, peak, budget):
    sizes = [size for size in range(1, batch + 1) if batch % size == 0]
    for way in ways:
        found = [(size, batch // size, way) for size in sizes if peak(size, way) <= budget]
        if found:
            return found
    return []


# %% settings_that_fit: wrong, powers of two only
def settings_that_fit(batch, ways, peak, budget):
    result = []
    for size in (1, 2, 4, 8, 16):
        for way in ways:
            if batch % size == 0 and peak(size, way) <= budget:
                result.append((size, batch // size, way))
    return result


# %% fewest_flops: wrong, the budget forgotten
def fewest_flops(rows, budget):
    return min(rows, key=lambda row: (row["flops"], -row["micro_batch"]))


# %% fewest_flops: wrong, fewer FLOPs or a larger micro-batch
def fewest_flops(rows, budget):
    best, flops, size = None, float("inf"), 0
    for row in rows:
        if row["peak"] > budget:
            continue
        if row["flops"] < flops or row["micro_batch"] > size:
            best, flops, size = row, row["flops"], row["micro_batch"]
    return best


# %% fewest_flops: wrong, FLOPs divided by the micro-batch
def fewest_flops(rows, budget):
    rows = [row for row in rows if not row["peak"] > budget]
    rows = sorted(rows, key=lambda row: row["flops"] / row["micro_batch"])
    return rows[0] if rows else None


# %% fewest_flops: wrong, the first of several
def fewest_flops(rows, budget):
    return sorted((r for r in rows if r["peak"] <= budget), key=lambda r: r["flops"])[0]


# %% train_within: wrong, every part weighs the same
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable()
    n = len(batch["input_ids"])
    k = n // micro_batch
    for i in range(0, n, micro_batch):
        ids, labels = batch["input_ids"][i : i + micro_batch], batch["labels"][i : i + micro_batch]
        (model(input_ids=ids, labels=labels).loss / k).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% train_within: wrong, not divided by the batch's tokens
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable()
    parts = zip(batch["input_ids"].split(micro_batch), batch["labels"].split(micro_batch))
    for ids, labels in parts:
        n = labels[:, 1:].ne(-100).sum()
        (model(input_ids=ids, labels=labels).loss * n).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% train_within: wrong, the whole batch through the model first
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable()
    loss = model(**batch).loss
    total = batch["labels"][:, 1:].ne(-100).sum()
    parts = zip(batch["input_ids"].split(micro_batch), batch["labels"].split(micro_batch))
    for ids, labels in parts:
        n = labels[:, 1:].ne(-100).sum()
        loss = model(input_ids=ids, labels=labels).loss
        (loss * n / total).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% train_within: wrong, the labels taken out of the batch
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable()
    labels = batch.pop("labels")
    total = labels[:, 1:].ne(-100).sum()
    for ids, part in zip(batch["input_ids"].split(micro_batch), labels.split(micro_batch)):
        n = part[:, 1:].ne(-100).sum()
        (model(input_ids=ids, labels=part).loss * n / total).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% train_within: wrong, one of the two counts without the shift
# the batch's count has the first places in it, the parts' have not
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable()
    total = (batch["labels"] != -100).sum()
    parts = zip(batch["input_ids"].split(micro_batch), batch["labels"].split(micro_batch))
    for ids, labels in parts:
        share = (labels[:, 1:] != -100).sum() / total
        (model(input_ids=ids, labels=labels).loss * share).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% train_within: wrong, the last samples left out
# of seven texts in threes the last one
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    if checkpointing:
        model.activation_checkpointing_enable()
    total = (batch["labels"][:, 1:] != -100).sum()
    for start in range(0, len(batch["labels"]) - 1, micro_batch):
        part = {name: value[start : start + micro_batch] for name, value in batch.items()}
        share = (part["labels"][:, 1:] != -100).sum() / total
        (model(**part).loss * share).backward()
    optimizer.step()
    optimizer.zero_grad()


# %% explain_row: wrong, three numbers in the state
# a copy of the weight beside its two averages
def explain_row(model, micro_batch, length):
    weights = [w.nbytes for w in model.parameters()]
    trained = [w.nbytes for w in model.parameters() if w.requires_grad]
    copies, averages = sum(trained), 2 * sum(trained)
    logits = 4 * micro_batch * length * model.config.vocab_size
    state = copies + averages
    return {
        "weights": sum(weights),
        "gradients": sum(trained),
        "optimizer state": state,
        "logits": logits,
    }


# %% explain_row: wrong, the logits counted, not their bytes
def explain_row(model, micro_batch, length):
    trained = sum(w.nbytes for w in model.parameters() if w.requires_grad)
    return {
        "weights": sum(w.nbytes for w in model.parameters()),
        "gradients": trained,
        "optimizer state": 2 * trained,
        "logits": micro_batch * length * model.config.vocab_size,
    }


# %% fewest_flops: wrong, the leanest or smallest of several
def fewest_flops(rows, budget):
    fitting = [row for row in rows if row["peak"] <= budget]
    return min(fitting, key=lambda row: (row["flops"], row["peak"]), default=None)


# %% settings_that_fit: wrong, micro-batch 1 left out
def settings_that_fit(batch, ways, peak, budget):
    sizes = [size for size in range(2, batch + 1) if batch % size == 0]
    return [(s, batch // s, way) for way in ways for s in sizes if peak(s, way) <= budget]
