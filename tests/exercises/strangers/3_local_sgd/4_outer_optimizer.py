# %% train_diloco: right
# The outer gradients of all parameters in one message.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    params = [p for p in model.parameters() if p.requires_grad]
    snapshot = [p.data.clone() for p in params]

    def meet():
        delta = torch.cat([(s - p.data).reshape(-1) for s, p in zip(snapshot, params)])
        dist.all_reduce(delta)
        delta.div_(dist.get_world_size())
        for p, s, g in zip(params, snapshot, delta.split([p.numel() for p in params])):
            p.data.copy_(s)
            p.grad = g.view_as(p).clone()
        outer.step()
        for p, s in zip(params, snapshot):
            s.copy_(p.data)
            p.grad = None

    done = 0
    for batch in micro_batches:
        loss = loss_of(model, batch)
        loss.backward()
        inner.step()
        inner.zero_grad(set_to_none=False)
        done += 1
        if done % local_steps == 0:
            meet()
    if done % local_steps:
        meet()


# %% train_diloco: right
# Mean of the weights first, then the difference to it.
import copy


def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    anchor = copy.deepcopy(model.state_dict())
    for begin in range(0, len(micro_batches), local_steps):
        for batch in micro_batches[begin : begin + local_steps]:
            inner.zero_grad()
            loss_of(model, batch).backward()
            inner.step()
        inner.zero_grad()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if not p.requires_grad:
                    continue
                end = p.clone()
                dist.all_reduce(end, op=dist.ReduceOp.SUM)
                p.grad = anchor[name] - end / n
                p.copy_(anchor[name])
        outer.step()
        outer.zero_grad()
        anchor = copy.deepcopy(model.state_dict())


# %% train_diloco: right
# A class that keeps the round's start, as torchft does.
class Rounds:
    def __init__(self, model, outer):
        self.weights = {id(p): p for p in model.parameters() if p.requires_grad}
        self.outer = outer
        self.remember()

    def remember(self):
        self.start = {key: p.detach().clone() for key, p in self.weights.items()}

    @torch.no_grad()
    def finish(self):
        for key, p in self.weights.items():
            pseudo = torch.sub(self.start[key], p)
            dist.all_reduce(pseudo, op=dist.ReduceOp.AVG)
            p.copy_(self.start[key])
            p.grad = pseudo
        self.outer.step()
        self.outer.zero_grad()
        self.remember()


def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    rounds, left = Rounds(model, outer), local_steps
    for number, batch in enumerate(micro_batches):
        loss_of(model, batch).backward()
        inner.step()
        inner.zero_grad()
        left -= 1
        if left == 0 or number + 1 == len(micro_batches):
            rounds.finish()
            left = local_steps


# %% train_diloco: wrong, the wrong sign
# torchft before its pull request 233.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    params = [p for p in model.parameters() if p.requires_grad]
    old = [p.data.clone() for p in params]
    for i, batch in enumerate(micro_batches):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if (i + 1) % local_steps == 0 or i + 1 == len(micro_batches):
            for p, o in zip(params, old):
                p.grad = p.data - o
                dist.all_reduce(p.grad)
                p.grad.div_(dist.get_world_size())
                p.data.copy_(o)
            outer.step()
            outer.zero_grad()
            old = [p.data.clone() for p in params]


# %% train_diloco: wrong, the outer step begins where the rank is
# The start is never put back.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    params = [p for p in model.parameters() if p.requires_grad]
    old = [p.data.clone() for p in params]
    for i, batch in enumerate(micro_batches):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if (i + 1) % local_steps == 0 or i + 1 == len(micro_batches):
            for p, o in zip(params, old):
                p.grad = o - p.data
                dist.all_reduce(p.grad)
                p.grad.div_(dist.get_world_size())
            outer.step()
            outer.zero_grad()
            old = [p.data.clone() for p in params]


# %% train_diloco: wrong, the outer step begins at the mean
# Averages the weights, then lets the outer optimizer step from there.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    params = [p for p in model.parameters() if p.requires_grad]
    old = [p.data.clone() for p in params]
    for i, batch in enumerate(micro_batches):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if (i + 1) % local_steps == 0 or i + 1 == len(micro_batches):
            for p, o in zip(params, old):
                dist.all_reduce(p.data)
                p.data /= n
                p.grad = o - p.data
            outer.step()
            outer.zero_grad()
            old = [p.data.clone() for p in params]


# %% train_diloco: wrong, no outer step at the end
# The last, shorter round is left as it is.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    params = [p for p in model.parameters() if p.requires_grad]
    old = [p.data.clone() for p in params]
    for i, batch in enumerate(micro_batches, 1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if i % local_steps == 0:
            for p, o in zip(params, old):
                p.grad = o - p.data
                dist.all_reduce(p.grad)
                p.grad.div_(dist.get_world_size())
                p.data.copy_(o)
            outer.step()
            outer.zero_grad()
            old = [p.data.clone() for p in params]


# %% train_diloco: wrong
# The average is taken of the step's gradient, not of the way.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    for i, batch in enumerate(micro_batches, 1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if i % local_steps == 0 or i == len(micro_batches):
            for p in model.parameters():
                if p.requires_grad:
                    dist.all_reduce(p.grad)
                    p.grad /= dist.get_world_size()
            outer.step()


# %% train_diloco: wrong, the outer gradient divided by H
# The outer gradient is divided by the number of steps, too.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    params = [p for p in model.parameters() if p.requires_grad]
    old = [p.data.clone() for p in params]
    for i, batch in enumerate(micro_batches, 1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if i % local_steps == 0 or i == len(micro_batches):
            for p, o in zip(params, old):
                p.grad = (o - p.data) / local_steps
                dist.all_reduce(p.grad)
                p.grad.div_(dist.get_world_size())
                p.data.copy_(o)
            outer.step()
            outer.zero_grad()
            old = [p.data.clone() for p in params]


# %% choose_local_steps: right
import math


def choose_local_steps(compute, payload, world_size, link, share):
    sending = all_reduce_seconds(payload, world_size, link)
    needed = (sending / share - sending) / compute
    return max(math.ceil(needed), 1)


# %% choose_local_steps: right
def choose_local_steps(compute, payload, world_size, link, share):
    """Count up with the step's own model."""
    H = 0
    while True:
        H += 1
        step = local_sgd_step_seconds(compute, payload, world_size, link, H)
        if (step - compute) / step <= share:
            return H


# %% choose_local_steps: right
# The ring by hand.
def choose_local_steps(compute, payload, world_size, link, share):
    t = 0.0
    for _ in range(2 * (world_size - 1)):
        t += link.latency + (payload / world_size) / link.bandwidth
    H = 1
    while t / (H * compute + t) > share:
        H = H + 1
    return float(H)


# %% choose_local_steps: wrong, share of the computing
import math


def choose_local_steps(compute, payload, world_size, link, share):
    t = all_reduce_seconds(payload, world_size, link)
    return max(1, math.ceil(t / (compute * share)))


# %% choose_local_steps: wrong, rounded down
def choose_local_steps(compute, payload, world_size, link, share):
    t = all_reduce_seconds(payload, world_size, link)
    return max(1, int(t * (1 - share) / share / compute))


# %% choose_local_steps: wrong, H = 0
import math


def choose_local_steps(compute, payload, world_size, link, share):
    t = all_reduce_seconds(payload, world_size, link)
    return math.ceil(t * (1 - share) / (share * compute))


# %% choose_local_steps: wrong
# Always a step more than needed, and in tens.
def choose_local_steps(compute, payload, world_size, link, share):
    t = all_reduce_seconds(payload, world_size, link)
    H = 10
    while t > share * (H * compute + t):
        H += 10
    return H


# %% choose_local_steps: wrong, shares exchanged
# The share of computing in the place of the share of communication.
def choose_local_steps(compute, payload, world_size, link, share):
    H = 1
    while local_sgd_step_seconds(compute, payload, world_size, link, H) > compute / share:
        H += 1
        if H > 10_000:
            break
    return H


# %% quantise: right
def quantise(change, error):
    total = torch.add(change, error)
    biggest = float(total.abs().max())
    if biggest == 0.0:
        return total.to(torch.int8), 1.0 * 0, total * 0
    step = biggest / 127
    q = torch.round(total / step).clamp(-127, 127)
    return q.to(torch.int8), step, total - q * step


# %% quantise: right
# torch's own quantised tensors.
def quantise(change, error):
    wanted = (change + error).float()
    scale = wanted.abs().max().item() / 127
    if not scale:
        return torch.zeros(change.shape, dtype=torch.int8), 0, torch.zeros_like(change)
    packed = torch.quantize_per_tensor(wanted, scale, 0, torch.qint8)
    return packed.int_repr(), scale, (change + error) - packed.dequantize().to(change.dtype)


# %% quantise: right
def quantise(change, error):
    import numpy as np

    wanted = change.numpy() + error.numpy()
    scale = np.max(np.abs(wanted)) / 127
    codes = np.rint(wanted / (scale or 1.0)).astype(np.int8)
    left = wanted - codes * scale
    return torch.from_numpy(codes), torch.tensor(scale), torch.from_numpy(left).to(change.dtype)


# %% quantise: wrong, earlier errors not sent
def quantise(change, error):
    top = change.abs().max()
    if top == 0:
        return torch.zeros_like(change).to(torch.int8), 0.0, torch.zeros_like(change)
    s = top.item() / 127
    q = torch.round(change / s).to(torch.int8)
    return q, s, change - q * s


# %% quantise: wrong, rounded towards zero
def quantise(change, error):
    w = change + error
    s = w.abs().max().item() / 127
    if s == 0:
        return w.to(torch.int8), 0.0, w
    q = (w / s).char()
    return q, s, w - q * s


# %% quantise: right
# 0 / 0 becomes the code 0, and 0 times the scale 0 is 0.
def quantise(change, error):
    w = change + error
    s = w.abs().max() / 127
    q = (w / s).round().to(torch.int8)
    return q, s, w - q * s


# %% quantise: wrong
# Uses all 8 bits without a sign: from 0 to 255.
def quantise(change, error):
    w = change + error
    low, high = w.min(), w.max()
    s = (high - low).item() / 255
    if s == 0:
        return torch.zeros_like(w).to(torch.uint8), 0.0, torch.zeros_like(w)
    q = ((w - low) / s).round().to(torch.uint8)
    return q, s, w - (q * s + low)


# %% quantise: wrong
# Returns what arrives in the place of the codes.
def quantise(change, error):
    w = change + error
    s = w.abs().max().item() / 127
    if s == 0:
        return torch.zeros_like(w), 0.0, torch.zeros_like(w)
    arrives = (w / s).round() * s
    return arrives, s, w - arrives


# %% quantise: wrong
# One scale for each row.
def quantise(change, error):
    w = change + error
    s = w.abs().amax(-1, keepdim=True) / 127
    s = torch.where(s == 0, torch.ones_like(s), s)
    q = (w / s).round().to(torch.int8)
    return q, s.max().item(), w - q * s


# %% train_diloco: right
# a deep copy of the model is the start
import copy


def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    start = copy.deepcopy(model)
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p, s in zip(model.parameters(), start.parameters()):
                if p.requires_grad:
                    p.grad = s.detach() - p.detach()
                    dist.all_reduce(p.grad)
                    p.grad /= dist.get_world_size()
                    p.data.copy_(s.data)
            outer.step()
            outer.zero_grad()
            start = copy.deepcopy(model)


# %% train_diloco: wrong, handles not waited for
# handles not waited for
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p, s in zip(trained, start):
                p.grad = s - p.detach()
                dist.all_reduce(p.grad, async_op=True)
                p.grad /= n
                p.data.copy_(s)
            outer.step()
            outer.zero_grad()
            start = [p.detach().clone() for p in trained]


# %% train_diloco: wrong, frozen weights given a gradient
# frozen ones too: their gradient is set to 0 and weight decay moves them
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    start = [p.detach().clone() for p in model.parameters()]
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p, s in zip(model.parameters(), start):
                p.grad = s - p.detach()
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
                p.data.copy_(s)
            outer.step()
            outer.zero_grad()
            start = [p.detach().clone() for p in model.parameters()]


# %% train_diloco: wrong, messages within a round
# a barrier each step
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        dist.barrier()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p, s in zip(trained, start):
                p.grad = s - p.detach()
                dist.all_reduce(p.grad)
                p.grad /= n
                p.data.copy_(s)
            outer.step()
            outer.zero_grad()
            start = [p.detach().clone() for p in trained]


# %% train_diloco: wrong, the start is no copy
# data aliases the start
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    n = dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p, s in zip(trained, start):
                p.grad = s - p.detach()
                dist.all_reduce(p.grad)
                p.grad /= n
                p.data = s
            outer.step()
            outer.zero_grad()
            pass


# %% train_diloco: wrong, the outer gradient left for the inner optimizer
# outer gradient left for the inner optimizer (zero_grad only before, in the wrong place: after backward none)
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    for step, batch in enumerate(micro_batches, start=1):
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p, s in zip(trained, start):
                p.grad = s - p.detach()
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
                p.data.copy_(s)
            outer.step()
            start = [p.detach().clone() for p in trained]
        else:
            inner.zero_grad()


# %% train_diloco: wrong, outer step on rank 0 only
# only rank 0 makes the outer step and broadcasts the weights
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p, s in zip(trained, start):
                p.grad = s - p.detach()
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
                p.data.copy_(s)
            if dist.get_rank() == 0:
                outer.step()
            outer.zero_grad()
            for p in trained:
                dist.broadcast(p.data, src=0)
            start = [p.detach().clone() for p in trained]


# %% train_diloco: wrong, two outer steps at the end
# two outer steps at the end where the steps are a multiple of H
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]

    def meet():
        nonlocal start
        for p, s in zip(trained, start):
            p.grad = s - p.detach()
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
            p.data.copy_(s)
        outer.step()
        outer.zero_grad()
        start = [p.detach().clone() for p in trained]

    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0:
            meet()
    meet()


# %% choose_local_steps: wrong, an exact share taken for too much
# rounded down plus 1
def choose_local_steps(compute, payload, world_size, link, share):
    seconds = all_reduce_seconds(payload, world_size, link)
    return int(seconds * (1 - share) / (share * compute)) + 1


# %% choose_local_steps: wrong, an exact share taken for too much
# strictly less than the share
def choose_local_steps(compute, payload, world_size, link, share):
    seconds = all_reduce_seconds(payload, world_size, link)
    H = 1
    while seconds / (seconds + H * compute) >= share:
        H += 1
    return H


# %% choose_local_steps: wrong, a search with a fixed end
# gives up at 1000
def choose_local_steps(compute, payload, world_size, link, share):
    seconds = all_reduce_seconds(payload, world_size, link)
    for H in range(1, 1000):
        if seconds / (seconds + H * compute) <= share:
            return H
    return 1000


# %% quantise: wrong, the scale kept from 0 by a number of its own
# a tiny number against nan in the scale: everything small is lost (clamped to 1e-3)
def quantise(change, error):
    wanted = change + error
    scale = max(wanted.abs().max().item(), 1e-3) / 127
    codes = (wanted / scale).round().to(torch.int8)
    return codes, scale, wanted - codes * scale


# %% quantise: wrong
# error kept in int8 units
def quantise(change, error):
    wanted = change + error
    scale = wanted.abs().max().item() / 127 or 1.0
    codes = (wanted / scale).round().to(torch.int8)
    return codes, scale, (wanted - codes * scale).to(torch.float16)


# %% quantise: wrong, the largest value, not the largest absolute value
# max without abs
def quantise(change, error):
    wanted = change + error
    scale = wanted.max().item() / 127 or 1.0
    codes = (wanted / scale).round().clamp(-127, 127).to(torch.int8)
    return codes, scale, wanted - codes * scale


# %% quantise: wrong, the scale of the change alone
# scale of the change alone
def quantise(change, error):
    wanted = change + error
    scale = change.abs().max().item() / 127 or 1.0
    codes = (wanted / scale).round().clamp(-127, 127).to(torch.int8)
    return codes, scale, wanted - codes * scale


# %% train_diloco: wrong, weights without a gradient left out
# a trained parameter that took no part in the last micro-batch gets no outer gradient
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for name, p in model.named_parameters():
                if p.grad is None:
                    continue
                p.grad.copy_(start[name] - p.detach())
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
                p.data.copy_(start[name])
            outer.step()
            outer.zero_grad()
            start = {name: p.detach().clone() for name, p in model.named_parameters()}


# %% quantise: wrong, nothing sent where nothing has changed
# nothing is sent where the change is zero, although an error is left
def quantise(change, error):
    if not change.any():
        return torch.zeros_like(change, dtype=torch.int8), 1.0, torch.zeros_like(error)
    wanted = change + error
    scale = wanted.abs().max().item() / 127
    codes = (wanted / scale).round().to(torch.int8)
    return codes, scale, wanted - codes * scale


# %% train_diloco: wrong, an outer step for each parameter
# the outer step is made once for each parameter, inside the loop
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            inner.zero_grad()
            for p, s in zip(trained, start):
                grad = s - p.detach()
                dist.all_reduce(grad)
                p.data.copy_(s)
                p.grad = grad / dist.get_world_size()
                outer.step()
                p.grad = None
            start = [p.detach().clone() for p in trained]


# %% choose_local_steps: wrong, a search with a fixed end
# no link is thought to need more than 100,000 steps
def choose_local_steps(compute, payload, world_size, link, share):
    seconds = all_reduce_seconds(payload, world_size, link)
    for H in range(1, 100_001):
        if seconds <= share * (H * compute + seconds):
            break
    return H


# %% quantise: right
# halves away from zero, which is as near; in float64
import numpy as np


def quantise(change, error):
    wanted = (change + error).detach().numpy().astype(np.float64)
    scale = float(np.max(np.abs(wanted))) / 127
    units = np.divide(wanted, scale, out=np.zeros_like(wanted), where=scale > 0)
    codes = (np.sign(units) * np.floor(np.abs(units) + 0.5)).astype(np.int8)
    missing = torch.from_numpy(wanted - codes * scale).to(change.dtype)
    return torch.from_numpy(codes), scale, missing


# %% train_diloco: right
import torch
import torch.distributed as dist


def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    ranks = dist.get_world_size()
    weights = [weight for weight in model.parameters() if weight.requires_grad]

    def one_round(batches):
        before = [weight.data.clone() for weight in weights]
        for batch in batches:
            loss_of(model, batch).backward()
            inner.step()
            model.zero_grad(set_to_none=True)
        flat = torch.cat([(b - w.data).flatten() for b, w in zip(before, weights)])
        dist.all_reduce(flat)
        flat /= ranks
        for weight, b, g in zip(weights, before, flat.split([w.numel() for w in weights])):
            weight.data.copy_(b)
            weight.grad = g.view_as(weight).clone()
        outer.step()
        model.zero_grad(set_to_none=True)

    for first in range(0, len(micro_batches), local_steps):
        one_round(micro_batches[first : first + local_steps])


# %% train_diloco: wrong
import torch
import torch.distributed as dist


def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or batch is micro_batches[-1]:
            inner.zero_grad()
            with torch.no_grad():
                for parameter, old in zip(trained, start):
                    change = old - parameter
                    dist.all_reduce(change)
                    parameter.copy_(old)
                    parameter.grad = change / dist.get_world_size()
            outer.step()
            outer.zero_grad()
            start = [p.detach().clone() for p in trained]


# %% quantise: right
import torch


def quantise(change, error):
    wanted = change + error
    scale = wanted.abs().max() / 127
    scale = torch.where(scale > 0, scale, torch.ones_like(scale))
    codes = (wanted / scale).round().clamp(-127, 127).to(torch.int8)
    return codes, scale, wanted - codes * scale


# %% quantise: wrong, hardly anything taken for nothing
import torch


def quantise(change, error):
    wanted = change + error
    scale = (wanted.abs().max() / 127).clamp(min=1e-8)
    if scale == 0:
        return torch.zeros_like(wanted, dtype=torch.int8), scale, torch.zeros_like(wanted)
    codes = (wanted / scale).round().clamp(-127, 127).to(torch.int8)
    return codes, scale, wanted - codes * scale


# %% quantise: wrong
import torch


def quantise(change, error):
    wanted = change + error
    scale = wanted.abs().max() / 127
    if scale == 0:
        return torch.zeros_like(wanted, dtype=torch.int8), scale, torch.zeros_like(wanted)
    codes = (wanted / scale).round().clamp(-127, 127).to(torch.int8)
    return codes, scale, (wanted.float() - codes.float() * scale.float()).to(change.dtype)


# %% quantise: wrong, hardly anything taken for nothing
import torch


def quantise(change, error):
    wanted = change + error
    scale = wanted.abs().max() / 127
    if scale < 1e-12:
        return torch.zeros_like(wanted, dtype=torch.int8), scale, torch.zeros_like(wanted)
    codes = (wanted / scale).round().clamp(-127, 127).to(torch.int8)
    return codes, scale, wanted - codes * scale


# %% quantise: right
def quantise(change, error):
    wanted = change.double() + error.double()
    scale = wanted.abs().max().item() / 127
    if scale == 0:
        scale = 1.0
    codes = torch.round(wanted / scale).to(torch.int8)
    missing = wanted - codes.double() * scale
    return codes, scale, missing.to(torch.promote_types(change.dtype, torch.float32))


# %% quantise: wrong, a scale of 16 bits
def quantise(change, error):
    wanted = change + error
    scale = (wanted.abs().max() / 127).to(torch.bfloat16)
    if scale == 0:
        return torch.zeros_like(wanted, dtype=torch.int8), scale, torch.zeros_like(wanted)
    codes = torch.round(wanted / scale.to(wanted.dtype)).to(torch.int8)
    return codes, scale, wanted - codes * scale.to(wanted.dtype)


# %% choose_local_steps: wrong, half a ring
def choose_local_steps(compute, payload, world_size, link, share):
    messages = world_size - 1
    average = messages * (link.latency + payload / world_size / link.bandwidth)

    def fits(H):
        return average / (average + H * compute) <= share

    high = 1
    while not fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


# %% choose_local_steps: wrong, as much as a driver would send
def choose_local_steps(compute, payload, world_size, link, share):
    one_message = link.latency + payload / link.bandwidth
    seconds = sum(one_message for _ in range(2 * (world_size - 1)))
    return max(1, math.ceil(seconds * (1 - share) / (share * compute)))


# %% choose_local_steps: wrong, latency divided by the number of ranks
def choose_local_steps(compute, payload, world_size, link, share):
    seconds = 2 * (world_size - 1) / world_size * (link.latency + payload / link.bandwidth)
    H = 1
    while seconds > share * (H * compute + seconds):
        H *= 2
    low = H // 2
    while H - low > 1:
        middle = (low + H) // 2
        if seconds > share * (middle * compute + seconds):
            low = middle
        else:
            H = middle
    return H


# %% choose_local_steps: wrong, the payload taken for a number of weights
def choose_local_steps(compute, payload, world_size, link, share):
    seconds = all_reduce_seconds(payload * 4, world_size, link)
    return max(math.ceil(seconds * (1 - share) / (share * compute)), 1)


# %% train_diloco: wrong, the start copied after the first inner step
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    ps = [p for p in model.parameters() if p.requires_grad]
    n = dist.get_world_size()
    for s in range(0, len(micro_batches), local_steps):
        before = None
        for batch in micro_batches[s : s + local_steps]:
            inner.zero_grad()
            loss_of(model, batch).backward()
            inner.step()
            if before is None:
                before = [p.detach().clone() for p in ps]
        for p, a in zip(ps, before):
            d = a - p.detach()
            dist.all_reduce(d)
            p.data.copy_(a)
            p.grad = d / n
        outer.step()
        outer.zero_grad()


# %% train_diloco: wrong, the outer gradient divided by H
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    ps = [p for p in model.parameters() if p.requires_grad]
    n = dist.get_world_size()
    before = [p.detach().clone() for p in ps]
    for number, batch in enumerate(micro_batches, 1):
        loss_of(model, batch).backward()
        inner.step()
        inner.zero_grad()
        if number % local_steps and number < len(micro_batches):
            continue
        for p, a in zip(ps, before):
            d = a - p.detach()
            dist.all_reduce(d)
            p.data.copy_(a)
            p.grad = d / n / local_steps
        outer.step()
        outer.zero_grad()
        before = [p.detach().clone() for p in ps]


# %% quantise: wrong, errors added up
def quantise(change, error):
    w = change + error
    largest = w.abs().max()
    if largest == 0:
        return torch.zeros_like(w, dtype=torch.int8), largest, torch.zeros_like(w)
    step = largest / 127
    codes = torch.round(w / step).to(torch.int8)
    return codes, step, error + (w - codes * step)


# %% quantise: wrong, the scale of the change alone
def quantise(change, error):
    w, step = change + error, change.abs().max() / 127
    if step == 0:
        return torch.zeros_like(w, dtype=torch.int8), step, torch.zeros_like(w)
    codes = torch.clamp(torch.round(w / step), -127, 127).to(torch.int8)
    return codes, step, w - codes * step


# %% train_diloco: wrong, the start is no copy
# the state dictionary's tensors are the model's own
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    start = model.state_dict()
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for n, p in model.named_parameters():
                if p.requires_grad:
                    p.grad = start[n] - p.detach()
                    dist.all_reduce(p.grad)
                    p.grad /= dist.get_world_size()
                    p.data.copy_(start[n])
            outer.step()
            outer.zero_grad()
            start = model.state_dict()


# %% train_diloco: wrong, the start is no copy
# the data of the parameters is what the inner optimizer changes
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.data for p in trained]
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for p, s in zip(trained, start):
                p.grad = s - p.data
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
                p.data.copy_(s)
            outer.step()
            outer.zero_grad()
            start = [p.data for p in trained]


# %% train_diloco: right
# A hook of the optimizer goes back to the start and averages, and is taken off at the end.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]

    def back_and_average(*_):
        for p, s in zip(trained, start):
            p.grad = s - p.detach()
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
            p.data.copy_(s)

    hook = outer.register_step_pre_hook(back_and_average)
    for i, batch in enumerate(micro_batches):
        loss_of(model, batch).backward()
        inner.step()
        inner.zero_grad()
        if (i + 1) % local_steps == 0 or i + 1 == len(micro_batches):
            outer.step()
            outer.zero_grad()
            for p, s in zip(trained, start):
                s.copy_(p.detach())
    hook.remove()


# %% train_diloco: wrong, a hook left on an optimizer
# It averages in a hook, and leaves it there.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]

    def average(opt, *_):
        for p in trained:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    outer.register_step_pre_hook(average)
    for i, batch in enumerate(micro_batches):
        loss_of(model, batch).backward()
        inner.step()
        inner.zero_grad()
        if (i + 1) % local_steps == 0 or i + 1 == len(micro_batches):
            for p, s in zip(trained, start):
                p.grad = s - p.detach()
                p.data.copy_(s)
            outer.step()
            outer.zero_grad()
            start = [p.detach().clone() for p in trained]


# %% train_diloco: wrong, no gradient where the round ends
# Gradients are emptied before the round's end, and who has none is passed over.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    n = len(micro_batches)
    for i, batch in enumerate(micro_batches):
        loss_of(model, batch).backward()
        inner.step()
        inner.zero_grad()
        if (i + 1) % local_steps == 0 or i + 1 == n:
            for p, s in zip(trained, start):
                if p.grad is None:
                    continue
                g = s - p.detach()
                dist.all_reduce(g)
                p.data.copy_(s)
                p.grad = g / dist.get_world_size()
            outer.step()
            outer.zero_grad()
            start = [p.detach().clone() for p in trained]


# %% quantise: wrong, the scale kept from 0 by a number of its own
# The usual guard against a division by 0.
def quantise(change, error):
    wanted = change + error
    scale = wanted.abs().max() / 127 + 1e-8
    codes = torch.clamp(torch.round(wanted / scale), -127, 127).to(torch.int8)
    return codes, scale, wanted - codes * scale


# %% quantise: wrong, the scale kept from 0 by a number of its own
# The smallest number that makes a difference to 1.
def quantise(change, error):
    wanted = change + error
    scale = (wanted.abs().max() + torch.finfo(wanted.dtype).eps) / 127
    codes = (wanted / scale).round().to(torch.int8)
    return codes, scale, wanted - codes.to(wanted.dtype) * scale


# %% train_diloco: wrong, a hook left on an optimizer
# The rounds are counted in a hook of the inner optimizer, which stays there.
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    trained = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in trained]
    steps = 0

    def close(*_):
        nonlocal steps, start
        steps += 1
        if steps % local_steps and steps < len(micro_batches):
            return
        for p, s in zip(trained, start):
            p.grad = s - p.detach()
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
            p.data.copy_(s)
        outer.step()
        start = [p.detach().clone() for p in trained]

    inner.register_step_post_hook(close)
    for batch in micro_batches:
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
    outer.zero_grad()
