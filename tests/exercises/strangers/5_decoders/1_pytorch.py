# %% chunked_loss: right
def chunked_loss(hidden, head, targets, chunk):
    from torch.utils.checkpoint import checkpoint as ckpt

    def piece(h, w, t):
        logits = torch.nn.functional.linear(h, w)
        return torch.nn.functional.nll_loss(logits.log_softmax(-1), t, reduction="sum")

    losses = []
    for start in range(0, hidden.shape[0], chunk):
        end = min(start + chunk, hidden.shape[0])
        losses.append(ckpt(piece, hidden[start:end], head, targets[start:end], use_reentrant=False))
    return torch.stack(losses).sum() / (targets >= 0).sum()


# %% chunked_loss: right
def chunked_loss(hidden, head, targets, chunk):
    keep = targets != -100
    hidden, targets = hidden[keep], targets[keep]
    n = len(targets)

    def f(lo, hi):
        z = hidden[lo:hi] @ head.t()
        return (z.logsumexp(1) - z[torch.arange(len(z)), targets[lo:hi]]).sum()

    loss = hidden.new_zeros(())
    lo = 0
    while lo < n:
        loss = loss + checkpoint(f, lo, min(lo + chunk, n), use_reentrant=False) / n
        lo += chunk
    return loss


# %% chunked_loss: right
def chunked_loss(hidden, head, targets, chunk):
    counted = int((targets != -100).sum())
    one = lambda h, t: cross_entropy(h @ head.T, t, reduction="none").sum()
    pairs = zip(torch.split(hidden, chunk), torch.split(targets, chunk))
    return sum(checkpoint(one, h, t, use_reentrant=False) for h, t in pairs) / counted


# %% chunked_loss: wrong, mean of the chunks' means
def chunked_loss(hidden, head, targets, chunk):
    means = []
    for h, t in zip(hidden.split(chunk), targets.split(chunk)):
        means.append(
            checkpoint(lambda a, b: cross_entropy(a @ head.T, b), h, t, use_reentrant=False)
        )
    return torch.stack(means).mean()


# %% chunked_loss: wrong, not checkpointed
def chunked_loss(hidden, head, targets, chunk):
    total, count = 0.0, 0
    for i in range(0, len(targets), chunk):
        t = targets[i : i + chunk]
        total = total + cross_entropy(hidden[i : i + chunk] @ head.T, t, reduction="sum")
        count += (t != -100).sum()
    return total / count


# %% chunked_loss: wrong, all logits at once
def chunked_loss(hidden, head, targets, chunk):
    logits = hidden @ head.T
    total = 0
    for l, t in zip(logits.split(chunk), targets.split(chunk)):
        total += checkpoint(cross_entropy, l, t, reduction="sum", use_reentrant=False)
    return total / (targets != -100).sum()


# %% choose_chunk: right
def choose_chunk(tokens, vocabulary, rest, budget):
    free = budget - rest
    if free <= 0:
        return 0
    return min(free // (12 * vocabulary), tokens)


# %% choose_chunk: right
def choose_chunk(tokens, vocabulary, rest, budget):
    chunk = 0
    while chunk < tokens and rest + (chunk + 1) * vocabulary * 12 <= budget:
        chunk += 1
    return chunk


# %% choose_chunk: right
def choose_chunk(tokens, vocabulary, rest, budget):
    per_token = vocabulary * 4 * 3
    fit = math.floor((budget - rest) / per_token)
    return sorted([0, fit, tokens])[1]


# %% choose_chunk: wrong, one copy
def choose_chunk(tokens, vocabulary, rest, budget):
    return max(min((budget - rest) // (vocabulary * 4), tokens), 0)


# %% choose_chunk: wrong, negative where nothing fits
def choose_chunk(tokens, vocabulary, rest, budget):
    return min((budget - rest) // (vocabulary * 12), tokens)


# %% choose_chunk: wrong, four copies
def choose_chunk(tokens, vocabulary, rest, budget):
    copies = 4  # logits, softmax, two gradients
    return max(0, min(tokens, (budget - rest) // (copies * vocabulary * 4)))


# %% attention_keeps: right
def attention_keeps(batch, heads, length, head_size):
    qkv = 3 * batch * heads * length * head_size
    probabilities = batch * heads * length**2
    return {
        "eager": (qkv + probabilities) * 4,
        "sdpa": (qkv + qkv // 3 + batch * heads * length) * 4,
    }


# %% attention_keeps: right
def attention_keeps(batch, heads, length, head_size):
    rows = batch * heads * length
    return dict(
        eager=float(4 * rows * (3 * head_size + length)), sdpa=4.0 * rows * (4 * head_size + 1)
    )


# %% attention_keeps: right
def attention_keeps(batch, heads, length, head_size):
    sizes = {"eager": [], "sdpa": []}
    for shape in [(batch, heads, length, head_size)] * 3:
        sizes["eager"].append(shape)
        sizes["sdpa"].append(shape)
    sizes["eager"].append((batch, heads, length, length))
    sizes["sdpa"] += [(batch, heads, length, head_size), (batch, heads, length)]
    return {kind: sum(4 * math.prod(shape) for shape in shapes) for kind, shapes in sizes.items()}


# %% attention_keeps: wrong, the sums forgotten
def attention_keeps(batch, heads, length, head_size):
    n = batch * heads * length * head_size * 4
    return {"eager": 3 * n + batch * heads * length * length * 4, "sdpa": 4 * n}


# %% attention_keeps: wrong, eager keeps the table only
def attention_keeps(batch, heads, length, head_size):
    n = batch * heads * length * 4
    return {"eager": n * length, "sdpa": n * head_size * 4 + n}


# %% attention_keeps: wrong, one table for all heads
def attention_keeps(batch, heads, length, head_size):
    n = batch * heads * length * 4
    return {
        "eager": 3 * n * head_size + 4 * batch * length * length,
        "sdpa": n * head_size * 4 + n,
    }


# %% attention_keeps: wrong, attention run
# it runs attention
def attention_keeps(batch, heads, length, head_size):
    return {
        "eager": kept(eager_attention, batch, heads, length, head_size),
        "sdpa": kept(fused_attention, batch, heads, length, head_size),
    }


# %% train_with_masters: right
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    masters = [nn.Parameter(p.detach().to(torch.float32)) for p in trained]
    opt = make_optimizer(masters)
    for start in range(0, len(micro_batches), accumulation_steps):
        for m in masters:
            m.grad = torch.zeros_like(m)
        for x, y in micro_batches[start : start + accumulation_steps]:
            grads = torch.autograd.grad(loss_function(model(x), y), trained)
            for m, g in zip(masters, grads):
                m.grad += g.float() / accumulation_steps
        opt.step()
        for p, m in zip(trained, masters):
            p.data.copy_(m.data)


# %% train_with_masters: right
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    pairs = [(p, p.detach().clone().float()) for p in model.parameters() if p.requires_grad]
    sums = [torch.zeros_like(m) for _, m in pairs]
    optimizer = make_optimizer([m for _, m in pairs])
    for i, (x, y) in enumerate(micro_batches):
        loss_function(model(x), y).backward()
        for (p, _), s in zip(pairs, sums):
            s.add_(p.grad)
        model.zero_grad()
        if (i + 1) % accumulation_steps == 0:
            for (p, m), s in zip(pairs, sums):
                m.grad = s / accumulation_steps
                s.zero_()
            optimizer.step()
            for p, m in pairs:
                p.data = m.bfloat16()


# %% train_with_masters: right
class Master:
    def __init__(self, weight):
        self.weight, self.value = weight, weight.detach().float().requires_grad_()
        self.value.grad = torch.zeros_like(self.value)

    def take(self, k):
        self.value.grad.add_(self.weight.grad.float().div(k))
        self.weight.grad = None

    @torch.no_grad()
    def give(self):
        self.weight.copy_(self.value.to(self.weight.dtype))
        self.value.grad.zero_()


def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    masters = [Master(p) for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer([m.value for m in masters])
    n = 0
    for x, y in micro_batches:
        loss_function(model(x), y).backward()
        for m in masters:
            m.take(accumulation_steps)
        n += 1
        if n == accumulation_steps:
            optimizer.step()
            for m in masters:
                m.give()
            n = 0


# %% train_with_masters: wrong, gradients added up in bf16
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    ps = [p for p in model.parameters() if p.requires_grad]
    ms = [p.detach().float() for p in ps]
    opt = make_optimizer(ms)
    for i, (x, y) in enumerate(micro_batches, 1):
        (loss_function(model(x), y) / accumulation_steps).backward()
        if i % accumulation_steps == 0:
            for p, m in zip(ps, ms):
                m.grad = p.grad.float()
                p.grad = None
            opt.step()
            for p, m in zip(ps, ms):
                p.data.copy_(m)


# %% train_with_masters: wrong, never written back
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    ps = [p for p in model.parameters() if p.requires_grad]
    ms = [p.detach().float() for p in ps]
    opt = make_optimizer(ms)
    for i, (x, y) in enumerate(micro_batches, 1):
        grads = torch.autograd.grad(loss_function(model(x), y) / accumulation_steps, ps)
        for m, g in zip(ms, grads):
            m.grad = g.float() if m.grad is None else m.grad + g
        if i % accumulation_steps == 0:
            opt.step()
            opt.zero_grad()


# %% train_with_masters: wrong, the model's gradient not emptied
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    weights = [p for p in model.parameters() if p.requires_grad]
    masters = [p.detach().clone().float() for p in weights]
    opt = make_optimizer(masters)
    for i, (x, y) in enumerate(micro_batches, 1):
        (loss_function(model(x), y) / accumulation_steps).backward()
        for p, m in zip(weights, masters):
            if m.grad is None:
                m.grad = torch.zeros_like(m)
            m.grad += p.grad
        if i % accumulation_steps == 0:
            opt.step()
            opt.zero_grad()
            for p, m in zip(weights, masters):
                p.data.copy_(m)


# %% train_with_masters: wrong, zeros left in .grad
# .grad left as zeros
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    trained = [w for w in model.parameters() if w.requires_grad]
    masters = [w.detach().float() for w in trained]
    sums = [torch.zeros_like(m) for m in masters]
    opt = make_optimizer(masters)
    for i, (x, y) in enumerate(micro_batches, 1):
        model.zero_grad()
        loss_function(model(x), y).backward()
        for s, w in zip(sums, trained):
            s += w.grad.float() / accumulation_steps
            w.grad.zero_()
        if i % accumulation_steps == 0:
            for m, s in zip(masters, sums):
                m.grad = s.clone()
                s.zero_()
            opt.step()
            for w, m in zip(trained, masters):
                w.data = m.to(torch.bfloat16)


# %% train_with_masters: wrong
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    # the hooks stay on the weights: a second epoch, or any other backward pass, feeds these masters
    masters = {p: nn.Parameter(p.detach().float()) for p in model.parameters() if p.requires_grad}
    optimizer = make_optimizer([*masters.values()])

    def move(p):
        master = masters[p]
        master.grad = p.grad.float() if master.grad is None else master.grad + p.grad.float()
        p.grad = None

    for p in masters:
        p.register_post_accumulate_grad_hook(move)
    for number, (x, y) in enumerate(micro_batches, 1):
        (loss_function(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for p, master in masters.items():
                    p.copy_(master)


# %% chunked_loss: right
import torch
from torch.nn.functional import cross_entropy


class Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, head, targets, chunk):
        ctx.save_for_backward(hidden, head, targets)
        ctx.chunk = chunk
        total = sum(
            cross_entropy(h @ head.T, t, reduction="sum")
            for h, t in zip(hidden.split(chunk), targets.split(chunk))
        )
        return total / (targets != -100).sum()

    @staticmethod
    def backward(ctx, upstream):
        hidden, head, targets = ctx.saved_tensors
        count = (targets != -100).sum()
        d_hidden, d_head = torch.zeros_like(hidden), torch.zeros_like(head)
        for first in range(0, len(hidden), ctx.chunk):
            part = slice(first, first + ctx.chunk)
            slope = (hidden[part] @ head.T).softmax(-1)
            counts = targets[part] != -100
            slope[torch.arange(len(slope)), targets[part].clamp(min=0)] -= 1
            slope *= counts[:, None] * upstream / count
            d_hidden[part] = slope @ head
            d_head += slope.T @ hidden[part]
        return d_hidden, d_head, None, None


def chunked_loss(hidden, head, targets, chunk):
    return Chunked.apply(hidden, head, targets, chunk)


# %% chunked_loss: wrong
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


def chunked_loss(hidden, head, targets, chunk):
    """The mean cross-entropy of hidden @ head.T, from the logits of `chunk` tokens at a time."""

    def part(some, labels):
        return cross_entropy(some @ head.T, labels, reduction="sum")

    total = 0
    hidden.requires_grad_()
    for some, labels in zip(hidden.split(chunk), targets.split(chunk)):
        total = total + checkpoint(part, some, labels, use_reentrant=False)
    return total / (targets != -100).sum()


# %% chunked_loss: wrong
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint


def chunked_loss(hidden, head, targets, chunk):
    """The mean cross-entropy of hidden @ head.T, from the logits of `chunk` tokens at a time."""

    def part(some, labels):
        return cross_entropy(some @ head.T, labels, reduction="sum")

    total = 0
    if not head.requires_grad:
        head.requires_grad_(True)
    for some, labels in zip(hidden.split(chunk), targets.split(chunk)):
        total = total + checkpoint(part, some, labels, use_reentrant=False)
    return total / (targets != -100).sum()


# %% train_with_masters: right
import torch


def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    weights = [p for p in model.parameters() if p.requires_grad]
    masters = [p.detach().float().clone() for p in weights]
    optimizer = make_optimizer(masters)
    for start in range(0, len(micro_batches), accumulation_steps):
        for master in masters:
            master.grad = torch.zeros_like(master)
        for inputs, targets in micro_batches[start : start + accumulation_steps]:
            loss_function(model(inputs), targets).backward()
            for weight, master in zip(weights, masters):
                if weight.grad is not None:
                    master.grad += weight.grad.float()
                    weight.grad = None
        for master in masters:
            master.grad.div_(accumulation_steps)
        optimizer.step()
        with torch.no_grad():
            for weight, master in zip(weights, masters):
                weight.copy_(master)


# %% train_with_masters: wrong
import torch


def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    weights = [p for p in model.parameters() if p.requires_grad]
    masters = [p.detach().float().clone() for p in weights]
    optimizer = make_optimizer(masters)
    for start in range(0, len(micro_batches), accumulation_steps):
        for master in masters:
            master.grad = torch.zeros_like(master)
        for inputs, targets in micro_batches[start : start + accumulation_steps]:
            loss_function(model(inputs), targets).backward()
            for weight, master in zip(weights, masters):
                if weight.grad is not None:
                    master.grad += weight.grad.float() / accumulation_steps
                    weight.grad = None
        optimizer.step()
        if start == 0:
            optimizer.state.clear()
        with torch.no_grad():
            for weight, master in zip(weights, masters):
                weight.copy_(master)


# %% train_with_masters: wrong
import torch


def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    weights = [p for p in model.parameters() if p.requires_grad]
    masters = [p.detach().float().clone() for p in weights]
    optimizer = make_optimizer(masters)
    for start in range(0, len(micro_batches), accumulation_steps):
        for master in masters:
            master.grad = torch.zeros_like(master)
        for inputs, targets in micro_batches[start : start + accumulation_steps]:
            for weight in weights:
                weight.grad = None
            loss_function(model(inputs), targets).backward()
            for weight, master in zip(weights, masters):
                if weight.grad is not None:
                    master.grad += weight.grad.float() / accumulation_steps
        optimizer.step()
        with torch.no_grad():
            for weight, master in zip(weights, masters):
                weight.copy_(master)


# %% train_with_masters: right
class Masters:
    def __init__(self, model, make_optimizer):
        self.pairs = [
            (p, p.detach().to(torch.float32)) for p in model.parameters() if p.requires_grad
        ]
        self.optimizer = make_optimizer([m for _, m in self.pairs])
        self.sums = [torch.zeros_like(m) for _, m in self.pairs]
        self.seen = 0

    def add(self, loss):
        grads = torch.autograd.grad(loss, [p for p, _ in self.pairs], allow_unused=True)
        for total, grad in zip(self.sums, grads):
            if grad is not None:
                total.add_(grad.float())
        self.seen += 1

    def step(self):
        for (_, master), total in zip(self.pairs, self.sums):
            master.grad = total / self.seen
        self.optimizer.step()
        for (p, master), total in zip(self.pairs, self.sums):
            p.data = master.bfloat16()
            total.zero_()
        self.seen = 0


def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    masters = Masters(model, make_optimizer)
    for first in range(0, len(micro_batches), accumulation_steps):
        for inputs, targets in micro_batches[first : first + accumulation_steps]:
            masters.add(loss_function(model(inputs), targets))
        masters.step()


# %% chunked_loss: wrong, nothing split
def chunked_loss(hidden, head, targets, chunk):
    def whole(h, w, t):
        return cross_entropy(h @ w.T, t, reduction="mean")

    return checkpoint(whole, hidden, head, targets, use_reentrant=False)


# %% chunked_loss: wrong, logits made outside the checkpoint
def chunked_loss(hidden, head, targets, chunk):
    pieces = []
    for h, t in zip(torch.split(hidden, chunk), torch.split(targets, chunk)):
        logits = h @ head.T
        pieces.append(
            checkpoint(
                lambda z, y: cross_entropy(z, y, reduction="sum"), logits, t, use_reentrant=False
            )
        )
    return sum(pieces) / (targets != -100).sum()


# %% chunked_loss: wrong, targets shifted once more
def chunked_loss(hidden, head, targets, chunk):
    hidden, targets = hidden[:-1], targets[1:]
    total = hidden.new_zeros(())
    for i in range(0, len(targets), chunk):
        total = total + checkpoint(
            lambda h, w, t: cross_entropy(h @ w.T, t, reduction="sum"),
            hidden[i : i + chunk],
            head,
            targets[i : i + chunk],
            use_reentrant=False,
        )
    return total / (targets != -100).sum()


# %% attention_keeps: wrong, the sums of one head or one text
def attention_keeps(batch, heads, length, head_size):
    q = batch * heads * length * head_size
    return dict(eager=4 * (3 * q + batch * heads * length**2), sdpa=4 * (4 * q + length))


# %% attention_keeps: wrong, the batch forgotten
def attention_keeps(batch, heads, length, head_size):
    per_head = {
        "eager": 3 * length * head_size + length**2,
        "sdpa": 4 * length * head_size + length,
    }
    return {name: 4 * heads * numbers for name, numbers in per_head.items()}


# %% attention_keeps: wrong, two bytes for each number
def attention_keeps(batch, heads, length, head_size):
    rows = batch * heads * length
    return {"eager": 2 * rows * (3 * head_size + length), "sdpa": 2 * rows * (4 * head_size + 1)}


# %% train_with_masters: wrong, masters of frozen weights, too
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    pairs = [(p, p.detach().to(torch.float32)) for p in model.parameters()]
    optimizer = make_optimizer([m for _, m in pairs])
    for n, (x, y) in enumerate(micro_batches, 1):
        loss = loss_function(model(x), y) / accumulation_steps
        loss.backward()
        for p, m in pairs:
            if p.grad is not None:
                g = p.grad.float()
                m.grad = g if m.grad is None else m.grad + g
                p.grad = None
        if n % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            for p, m in pairs:
                p.data.copy_(m)


# %% train_with_masters: wrong, a new optimizer for each window
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    for i in range(0, len(micro_batches), accumulation_steps):
        masters = [p.detach().clone().float() for p in trained]
        optimizer = make_optimizer(masters)
        for x, y in micro_batches[i : i + accumulation_steps]:
            (loss_function(model(x), y) / accumulation_steps).backward()
            for p, m in zip(trained, masters):
                g = p.grad.float()
                m.grad = g if m.grad is None else m.grad + g
                p.grad = None
        optimizer.step()
        for p, m in zip(trained, masters):
            p.data.copy_(m)


# %% chunked_loss: wrong, all logits at once
def chunked_loss(hidden, head, targets, chunk):
    return torch.nn.functional.cross_entropy(torch.nn.functional.linear(hidden, head), targets)


# %% train_with_masters: wrong, a new optimizer for each window
# the masters stay, only the optimizer is made again
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    masters = [p.detach().float() for p in trained]
    for i in range(0, len(micro_batches), accumulation_steps):
        optimizer = make_optimizer(masters)
        for x, y in micro_batches[i : i + accumulation_steps]:
            (loss_function(model(x), y) / accumulation_steps).backward()
            for p, m in zip(trained, masters):
                g = p.grad.float()
                m.grad = g if m.grad is None else m.grad + g
                p.grad = None
        optimizer.step()
        optimizer.zero_grad()
        for p, m in zip(trained, masters):
            p.data.copy_(m)


# %% chunked_loss: wrong, more than one backward pass
# backward in the loop, as in accumulation
def chunked_loss(hidden, head, targets, chunk):
    counted, total = (targets != -100).sum(), 0
    for h, t in zip(hidden.split(chunk), targets.split(chunk)):
        loss = cross_entropy(h @ head.T, t, reduction="sum") / counted
        loss.backward()
        total += loss.detach()
    return total


# %% chunked_loss: wrong, more than one backward pass
# the older checkpoint, and the head from outside
def chunked_loss(hidden, head, targets, chunk):
    def piece(h, t):
        return cross_entropy(h @ head.T, t, reduction="sum")

    pairs = zip(hidden.split(chunk), targets.split(chunk))
    return (
        sum(checkpoint(piece, h, t, use_reentrant=True) for h, t in pairs) / targets.ne(-100).sum()
    )


# %% chunked_loss: wrong, another number ignored
def chunked_loss(hidden, head, targets, chunk):
    def piece(h, t):
        return cross_entropy(h @ head.T, t, reduction="sum", ignore_index=1)

    pairs = zip(hidden.split(chunk), targets.split(chunk))
    return (
        sum(checkpoint(piece, h, t, use_reentrant=False) for h, t in pairs) / targets.ne(-100).sum()
    )


# %% chunked_loss: wrong, cut from the graph
def chunked_loss(hidden, head, targets, chunk):
    total = 0
    with torch.no_grad():
        for h, t in zip(hidden.split(chunk), targets.split(chunk)):
            total += cross_entropy(h @ head.T, t, reduction="sum")
    return total / (targets != -100).sum()


# %% chunked_loss: wrong, more than one backward pass
# without chunks, and backward() before the loss is returned
def chunked_loss(hidden, head, targets, chunk):
    loss = cross_entropy(hidden @ head.T, targets)
    loss.backward()
    return loss
