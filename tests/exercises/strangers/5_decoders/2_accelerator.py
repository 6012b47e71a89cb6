# %% token_backward: right
def token_backward(model, window):
    import torch.distributed as dist

    n = torch.zeros((), dtype=torch.float64)
    for mb in window:
        n += (mb["labels"][:, 1:] >= 0).sum()
    dist.all_reduce(n)

    def loss_of(mb):
        out = model(mb["input_ids"])[:, :-1].transpose(1, 2)
        return cross_entropy(out, mb["labels"][:, 1:], reduction="sum")

    with model.no_sync():
        for mb in window[:-1]:
            (loss_of(mb) * dist.get_world_size() / n.item()).backward()
    (loss_of(window[-1]) * dist.get_world_size() / n.item()).backward()


# %% token_backward: right
def token_backward(model, window):
    from torch import distributed as d

    total = torch.tensor([sum(int((b["labels"][:, 1:] != -100).sum()) for b in window)])
    d.all_reduce(total, op=d.ReduceOp.SUM)
    mean = total.item() / d.get_world_size()
    for i, b in enumerate(window):
        model.require_backward_grad_sync = i + 1 == len(window)
        x = model(b["input_ids"])
        t = b["labels"][:, 1:].reshape(-1)
        losses = cross_entropy(x[:, :-1].reshape(-1, x.shape[-1]), t, reduction="none")
        (losses.sum() / mean).backward()


# %% token_backward: right
def token_backward(model, window):
    """Sums first, divided in .grad."""
    import contextlib

    from torch import distributed

    count = torch.tensor(0.0)
    for index, batch in enumerate(window):
        targets = batch["labels"][:, 1:].flatten()
        count += (targets != -100).sum()
        done = index == len(window) - 1
        with contextlib.nullcontext() if done else model.no_sync():
            scores = model(batch["input_ids"])[:, :-1].flatten(0, 1)
            cross_entropy(scores, targets, reduction="sum").backward()
    distributed.all_reduce(count)
    for p in model.parameters():
        if p.grad is not None:
            p.grad.mul_(distributed.get_world_size() / count)


# %% token_backward: wrong, the world size forgotten
def token_backward(model, window):
    from torch import distributed

    n = sum((b["labels"][:, 1:] != -100).sum() for b in window)
    distributed.all_reduce(n)
    for i, b in enumerate(window):
        model.require_backward_grad_sync = i == len(window) - 1
        out = model(b["input_ids"])[:, :-1].flatten(0, 1)
        loss = cross_entropy(out, b["labels"][:, 1:].flatten(), reduction="sum")
        (loss / n).backward()


# %% token_backward: wrong, this rank's targets only
def token_backward(model, window):
    n = sum((b["labels"][:, 1:] != -100).sum() for b in window)
    for i, b in enumerate(window):
        model.require_backward_grad_sync = i == len(window) - 1
        out = model(b["input_ids"])[:, :-1].flatten(0, 1)
        loss = cross_entropy(out, b["labels"][:, 1:].flatten(), reduction="sum")
        (loss / n).backward()


# %% token_backward: wrong, sends after every micro-batch
def token_backward(model, window):
    from torch import distributed

    n = sum((b["labels"][:, 1:] != -100).sum() for b in window)
    distributed.all_reduce(n)
    for b in window:
        out = model(b["input_ids"])[:, :-1].flatten(0, 1)
        loss = cross_entropy(out, b["labels"][:, 1:].flatten(), reduction="sum")
        (loss * distributed.get_world_size() / n).backward()


# %% token_backward: right
# by hand: nothing of DDP's own is sent
def token_backward(model, window):
    from torch import distributed as dist

    n = torch.zeros((), dtype=torch.float64)
    with model.no_sync():
        for part in window:
            logits, labels = model(part["input_ids"]), part["labels"]
            shifted = nn.functional.pad(labels[:, 1:], (0, 1), value=-100)
            cross_entropy(logits.flatten(0, 1), shifted.flatten(), reduction="sum").backward()
            n += (shifted != -100).sum()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads] + [n.float()[None]])
    dist.all_reduce(flat)
    flat /= flat[-1].clone()
    at = 0
    for g in grads:
        g.copy_(flat[at : at + g.numel()].view_as(g))
        at += g.numel()


# %% adapter_state: right
def adapter_state(linears, rank, weight_bytes):
    result = {"weights": 0, "gradients": 0, "optimizer state": 0}
    for i, o, has in linears:
        result["weights"] += i * o * weight_bytes
        if has:
            lora = (i * rank + rank * o) * 4
            result["weights"] += lora
            result["gradients"] += lora
            result["optimizer state"] += 2 * lora
    return result


# %% adapter_state: right
def adapter_state(linears, rank, weight_bytes):
    thin = [4 * rank * (layer[0] + layer[1]) for layer in linears if layer[2]]
    full = [layer[0] * layer[1] * weight_bytes for layer in linears]
    return dict(
        zip(
            ("weights", "gradients", "optimizer state"),
            (sum(full + thin), sum(thin), 2 * sum(thin)),
        )
    )


# %% adapter_state: right
def adapter_state(linears, rank, weight_bytes):
    import numpy as np

    table = np.array(linears, dtype=float)
    adapters = float((rank * (table[:, 0] + table[:, 1]) * table[:, 2]).sum())
    frozen = float((table[:, 0] * table[:, 1]).sum())
    return {
        "gradients": adapters * 4,
        "optimizer state": adapters * 8,
        "weights": frozen * weight_bytes + adapters * 4,
    }


# %% adapter_state: wrong, the adapters are no weights
def adapter_state(linears, rank, weight_bytes):
    t = sum(rank * (i + o) for i, o, a in linears if a)
    return {
        "weights": sum(i * o for i, o, _ in linears) * weight_bytes,
        "gradients": 4 * t,
        "optimizer state": 8 * t,
    }


# %% adapter_state: wrong, all layers adapted
def adapter_state(linears, rank, weight_bytes):
    t = sum(rank * (i + o) for i, o, _ in linears)
    w = sum(i * o for i, o, _ in linears)
    return {"weights": w * weight_bytes + 4 * t, "gradients": 4 * t, "optimizer state": 8 * t}


# %% adapter_state: wrong, gradients for all weights
def adapter_state(linears, rank, weight_bytes):
    t = sum(rank * (i + o) for i, o, a in linears if a)
    w = sum(i * o for i, o, _ in linears) * weight_bytes
    return {"weights": w + 4 * t, "gradients": w + 4 * t, "optimizer state": 8 * t}


# %% make_it_learn: right
def make_it_learn(model):
    model.checkpointing.update(use_reentrant=False)


# %% make_it_learn: right
def make_it_learn(model):
    def ask(module, args, output):
        output.requires_grad_(True)

    model.embed.register_forward_hook(ask)


# %% make_it_learn: right
def make_it_learn(model):
    old = model.embed.forward
    model.embed.forward = lambda ids: old(ids).requires_grad_()


# %% make_it_learn: wrong, the embedding trained
def make_it_learn(model):
    for p in model.embed.parameters():
        p.requires_grad = True


# %% make_it_learn: wrong, nothing changed for the checkpoint
def make_it_learn(model):
    for block in model.blocks:
        for p in (block.a, block.b):
            p.requires_grad_()


# %% make_it_learn: wrong, everything trained
def make_it_learn(model):
    [p.requires_grad_(True) for p in model.parameters()]
    model.checkpointing = dict(use_reentrant=False)


# %% make_it_learn: wrong, one checkpoint around all blocks
# one checkpoint around all
def make_it_learn(model):
    def through(x):
        for block in model.blocks:
            x = block(x)
        return x

    def forward(input_ids):
        return model.head(checkpoint(through, model.embed(input_ids), use_reentrant=False))

    model.forward = forward


# %% make_it_learn: right
class Asking(nn.Module):
    """What comes through asks for a gradient."""

    def forward(self, x):
        return x.detach().requires_grad_()


def make_it_learn(model):
    model.embed = nn.Sequential(model.embed, Asking())


# %% make_it_learn: wrong
# two blocks in a checkpoint
def make_it_learn(model):
    def forward(input_ids):
        x = model.embed(input_ids)
        x = checkpoint(nn.Sequential(*model.blocks[:2]), x, use_reentrant=False)
        for block in model.blocks[2:]:
            x = checkpoint(block, x, use_reentrant=False)
        return model.head(x)

    model.forward = forward


# %% state_bytes: right
def state_bytes(parameters, recipe):
    if recipe == "masters":
        return parameters * (2 + 4 + 4 + 4 + 4)
    if recipe == "bf16":
        return parameters * 4 * 2
    return parameters * 4 * 4


# %% state_bytes: right
def state_bytes(parameters, recipe):
    size = 2 if recipe == "bf16" else 4
    total = 4 * size * parameters
    return total + 2 * parameters if recipe == "masters" else total


# %% state_bytes: right
def state_bytes(parameters, recipe):
    match recipe:
        case "float32" | "autocast":
            each = 16
        case "bf16":
            each = 8
        case "masters":
            each = 18
    return float(each * parameters)


# %% state_bytes: wrong, autocast taken for bf16
def state_bytes(parameters, recipe):
    return parameters * {"float32": 16, "autocast": 8, "bf16": 8, "masters": 18}[recipe]


# %% state_bytes: wrong, the model's gradients kept
def state_bytes(parameters, recipe):
    return parameters * {"float32": 16, "autocast": 16, "bf16": 8, "masters": 20}[recipe]


# %% state_bytes: wrong, averages in float32
def state_bytes(parameters, recipe):
    return parameters * {"float32": 16, "autocast": 16, "bf16": 2 + 2 + 8, "masters": 18}[recipe]


# %% token_backward: wrong, two ranks taken for granted
# two ranks hard-coded
def token_backward(model, window):
    from contextlib import nullcontext

    import torch.distributed as dist

    n = sum((b["labels"][:, 1:] != -100).sum() for b in window)
    dist.all_reduce(n)
    for i, b in enumerate(window):
        with model.no_sync() if i < len(window) - 1 else nullcontext():
            logits = model(b["input_ids"])[:, :-1].flatten(0, 1)
            loss = cross_entropy(logits, b["labels"][:, 1:].flatten(), reduction="sum")
            (loss * 2 / n).backward()


# %% token_backward: wrong, counted again with each micro-batch
# the count is all-reduced again for each micro-batch: the second one is twice as large
def token_backward(model, window):
    from contextlib import nullcontext

    import torch.distributed as dist

    n = sum((b["labels"][:, 1:] != -100).sum() for b in window)
    for i, b in enumerate(window):
        dist.all_reduce(n)
        with model.no_sync() if i < len(window) - 1 else nullcontext():
            logits = model(b["input_ids"])[:, :-1].flatten(0, 1)
            loss = cross_entropy(logits, b["labels"][:, 1:].flatten(), reduction="sum")
            (loss * dist.get_world_size() / n).backward()


# %% adapter_state: wrong
def adapter_state(linears, rank, weight_bytes):
    # a rank larger than the layer is cut
    base = sum(i * o for i, o, _ in linears)
    trained = sum(min(rank, i, o) * (i + o) for i, o, a in linears if a)
    return {
        "weights": base * weight_bytes + 4 * trained,
        "gradients": 4 * trained,
        "optimizer state": 8 * trained,
    }


# %% adapter_state: wrong
def adapter_state(linears, rank, weight_bytes):
    # layers of one shape count once
    base = sum(i * o for i, o, _ in linears)
    trained = sum(rank * (i + o) for i, o, a in set(linears) if a)
    return {
        "weights": base * weight_bytes + 4 * trained,
        "gradients": 4 * trained,
        "optimizer state": 8 * trained,
    }


# %% token_backward: right
import torch
import torch.distributed as dist
from torch.nn import functional as F


def shifted(batch):
    labels = batch["labels"].roll(-1, dims=1).clone()
    labels[:, -1] = -100
    return labels


def token_backward(model, window):
    count = torch.zeros((), dtype=torch.int64)
    for batch in window:
        count += shifted(batch).ne(-100).sum()
    dist.all_reduce(count)
    scale = dist.get_world_size() / count.item()
    *first, last = window
    with model.no_sync():
        for batch in first:
            loss = F.cross_entropy(
                model(batch["input_ids"]).transpose(1, 2), shifted(batch), reduction="sum"
            )
            (loss * scale).backward()
    loss = F.cross_entropy(model(last["input_ids"]).transpose(1, 2), shifted(last), reduction="sum")
    (loss * scale).backward()


# %% token_backward: wrong
import contextlib

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def token_backward(model, window):
    total = torch.tensor(float(sum((b["labels"][:, 1:] != -100).sum() for b in window)))
    dist.all_reduce(total)
    for number, batch in enumerate(window, start=1):
        with contextlib.nullcontext() if batch is window[-1] else model.no_sync():
            logits = model(batch["input_ids"])[:, :-1]
            labels = batch["labels"][:, 1:]
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            (loss * dist.get_world_size() / total).backward()


# %% token_backward: wrong
import contextlib

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy


def token_backward(model, window):
    total = torch.tensor(float(sum((b["labels"][:, 1:] != -100).sum() for b in window)))
    dist.all_reduce(total)
    for number, batch in enumerate(window, start=1):
        with contextlib.nullcontext() if number == len(window) else model.no_sync():
            logits = model(batch["input_ids"])[:, :-1]
            labels = batch["labels"][:, 1:]
            if not (labels != -100).any():
                continue
            loss = cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            (loss * dist.get_world_size() / total).backward()


# %% adapter_state: right
def adapter_state(linears, rank, weight_bytes):
    state = {"weights": 0, "gradients": 0, "optimizer state": 0}
    for inputs, outputs, adapted in linears:
        state["weights"] += inputs * outputs * weight_bytes
        if not adapted:
            continue
        adapter = (inputs * rank + rank * outputs) * 4
        state["weights"] += adapter
        state["gradients"] += adapter
        state["optimizer state"] += 2 * adapter
    return state


# %% adapter_state: wrong
def adapter_state(linears, rank, weight_bytes):
    own = sum(inputs * outputs for inputs, outputs, _ in linears)
    added = sum(rank * (inputs + outputs) for inputs, outputs, adapted in linears if adapted)
    return {
        "weights": own * int(weight_bytes) + 4 * added,
        "gradients": 4 * added,
        "optimizer state": 8 * added,
    }


# %% adapter_state: wrong
def adapter_state(linears, rank, weight_bytes):
    own = sum(inputs * outputs for inputs, outputs, _ in linears)
    added = sum(rank * (inputs + outputs) for inputs, outputs, adapted in linears if adapted)
    return {
        "weights": own * max(weight_bytes, 1) + 4 * added,
        "gradients": 4 * added,
        "optimizer state": 8 * added,
    }


# %% token_backward: wrong, counted in 16 bits
def token_backward(model, window):
    """Leave in .grad the gradient of the mean over all targets of all ranks' windows."""
    count = sum((batch["labels"][:, 1:] != -100).sum() for batch in window)
    count = count.to(torch.bfloat16)
    torch.distributed.all_reduce(count)
    world = torch.distributed.get_world_size()

    def backward(batch):
        logits = model(batch["input_ids"])[:, :-1]
        loss = cross_entropy(
            logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum"
        )
        (loss * world / count).backward()

    with model.no_sync():
        for batch in window[:-1]:
            backward(batch)
    backward(window[-1])


# %% token_backward: wrong, shifted over the ends of texts
def token_backward(model, window):
    import contextlib

    world = torch.distributed.get_world_size()
    total = sum((b["labels"][:, 1:] != -100).sum() for b in window)
    torch.distributed.all_reduce(total)
    for left, b in zip(reversed(range(len(window))), window):
        with model.no_sync() if left else contextlib.nullcontext():
            rows = model(b["input_ids"]).flatten(0, 1)
            loss = cross_entropy(rows[:-1], b["labels"].flatten()[1:], reduction="sum")
            (loss * world / total).backward()


# %% adapter_state: wrong, both matrices of one shape
def adapter_state(linears, rank, weight_bytes):
    own = added = 0
    for i, o, adapted in linears:
        own += i * o
        added += 2 * rank * i * adapted
    return {
        "weights": weight_bytes * own + 4 * added,
        "gradients": 4 * added,
        "optimizer state": 8 * added,
    }


# %% adapter_state: wrong, sides added up in place of products
def adapter_state(linears, rank, weight_bytes):
    added = sum(rank**2 + i + o for i, o, adapted in linears if adapted)
    own = sum(i * o for i, o, _ in linears)
    return {
        "weights": weight_bytes * own + 4 * added,
        "gradients": 4 * added,
        "optimizer state": 8 * added,
    }


# %% adapter_state: wrong, four bytes for a frozen weight
def adapter_state(linears, rank, weight_bytes):
    added = rank * sum(i + o for i, o, adapted in linears if adapted)
    own = sum(i * o for i, o, _ in linears)
    return {"weights": 4 * own + 4 * added, "gradients": 4 * added, "optimizer state": 8 * added}


# %% state_bytes: wrong, a bf16 model taken for float32
def state_bytes(parameters, recipe):
    return parameters * (18 if recipe == "masters" else 16)


# %% state_bytes: wrong, autocast's weights or gradients in bf16
def state_bytes(parameters, recipe):
    match recipe:
        case "float32":
            parts = 4, 4, 8
        case "autocast":
            parts = 4, 2, 8
        case "bf16":
            parts = 2, 2, 4
        case "masters":
            parts = 2 + 4, 4, 8
    return parameters * sum(parts)


# %% state_bytes: wrong, the averages forgotten
def state_bytes(parameters, recipe):
    weight = {"float32": 4, "autocast": 4, "bf16": 2, "masters": 2 + 4}[recipe]
    gradient = 2 if recipe == "bf16" else 4
    return (weight + gradient) * parameters


# %% state_bytes: wrong, weights only
def state_bytes(parameters, recipe):
    if recipe == "masters":
        return 2 * parameters + 4 * parameters
    return parameters * (2 if recipe == "bf16" else 4)


# %% state_bytes: wrong, bits in place of bytes
def state_bytes(parameters, recipe):
    bits = {"float32": [32] * 4, "autocast": [32] * 4, "bf16": [16] * 4, "masters": [16] + [32] * 4}
    return parameters * sum(bits[recipe])


# %% state_bytes: wrong, 16 bytes with masters
# weights and gradients of the model, masters and averages
def state_bytes(parameters, recipe):
    sizes = {
        "float32": 4 + 4 + 8,
        "autocast": 4 + 4 + 8,
        "bf16": 2 + 2 + 4,
        "masters": 2 + 2 + 4 + 8,
    }
    return sizes[recipe] * parameters


# %% token_backward: wrong, never sends
# around DDP, through the module within
def token_backward(model, window):
    import torch.distributed as dist

    n = sum((b["labels"][:, 1:] != -100).sum() for b in window)
    dist.all_reduce(n)
    for b in window:
        logits = model.module(b["input_ids"])[:, :-1].flatten(0, 1)
        loss = cross_entropy(logits, b["labels"][:, 1:].flatten(), reduction="sum")
        (loss * dist.get_world_size() / n).backward()


# %% make_it_learn: wrong, nothing changed for the checkpoint
# asked within each block, which the checkpoint runs
def make_it_learn(model):
    def ask(block, given):
        given[0].requires_grad_()

    model.blocks[0].register_forward_pre_hook(ask)


# %% make_it_learn: wrong
# the right place, and a hook that asks for the truth of a tensor
def make_it_learn(model):
    model.embed.register_forward_hook(lambda module, args, out: out.requires_grad_() and None)


# %% state_bytes: wrong, autocast's weights or gradients in bf16
# the weights in bf16 under autocast, gradients and averages not
def state_bytes(parameters, recipe):
    return parameters * {"float32": 16, "autocast": 2 + 4 + 8, "bf16": 8, "masters": 18}[recipe]


# %% state_bytes: wrong, a part of a bf16 model in float32
# the gradients
def state_bytes(parameters, recipe):
    return parameters * {"float32": 16, "autocast": 16, "bf16": 2 + 4 + 4, "masters": 18}[recipe]


# %% state_bytes: wrong, a part of a bf16 model in float32
# all but the weights
def state_bytes(parameters, recipe):
    return parameters * {"float32": 16, "autocast": 16, "bf16": 2 + 4 + 8, "masters": 18}[recipe]


# %% state_bytes: wrong, too few bytes with masters
# the masters themselves forgotten
def state_bytes(parameters, recipe):
    return parameters * {"float32": 16, "autocast": 16, "bf16": 8, "masters": 2 + 2 + 8}[recipe]


# %% token_backward: wrong, sends after every micro-batch
# no_sync around backward only
def token_backward(model, window):
    import torch.distributed as dist

    count = torch.tensor(sum((b["labels"][:, 1:] != -100).sum().item() for b in window))
    dist.all_reduce(count)

    def lossof(b):
        logits = model(b["input_ids"])[:, :-1]
        return cross_entropy(logits.flatten(0, 1), b["labels"][:, 1:].flatten(), reduction="sum")

    for i, b in enumerate(window):
        loss = lossof(b) * dist.get_world_size() / count
        if i < len(window) - 1:
            with model.no_sync():
                loss.backward()
        else:
            loss.backward()
