# %% train_sharded: right
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    me, everyone = dist.get_rank(), dist.get_world_size()
    weights = [w for w in model.parameters() if w.requires_grad]
    owner_of = {id(w): i % everyone for i, w in enumerate(weights)}
    opt = make_optimizer([w for w in weights if owner_of[id(w)] == me])
    for batch in micro_batches:
        for w in weights:
            w.grad = None
        loss = loss_of(model, batch)
        loss.backward()
        flat = torch.cat([w.grad.reshape(-1) for w in weights]) / everyone
        dist.all_reduce(flat)
        for w, g in zip(weights, flat.split([w.numel() for w in weights])):
            w.grad.copy_(g.view_as(w))
        opt.step()
        for w in weights:
            dist.broadcast(w.detach(), src=owner_of[id(w)])


# %% train_sharded: right
# Gradients by autograd.grad, only the owner gets the sum.
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    n = dist.get_world_size()
    params = list(filter(lambda p: p.requires_grad, model.parameters()))
    opt = make_optimizer(params[dist.get_rank() :: n])
    for batch in micro_batches:
        grads = torch.autograd.grad(loss_of(model, batch), params)
        for i, (p, g) in enumerate(zip(params, grads)):
            g = g.contiguous() / n
            dist.reduce(g, dst=i % n)
            p.grad = g
        opt.step()
        for i, p in enumerate(params):
            with torch.no_grad():
                dist.broadcast(p, src=i % n)


# %% train_sharded: right
# Values that are not one's own are set to zero, and summed.
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, n = dist.get_rank(), dist.get_world_size()
    params = [p for _, p in model.named_parameters() if p.requires_grad]
    mine = set(range(rank, len(params), n))
    optimizer = make_optimizer([params[i] for i in sorted(mine)])
    for batch in iter(micro_batches):
        loss_of(model, batch).backward()
        for p in params:
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        model.zero_grad()
        for i, p in enumerate(params):
            if i not in mine:
                p.data.zero_()
            dist.all_reduce(p.data)


# %% train_sharded: wrong, every optimizer has everything
# Everything on every rank.
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    opt = make_optimizer([p for p in model.parameters() if p.requires_grad])
    for batch in micro_batches:
        opt.zero_grad()
        loss_of(model, batch).backward()
        for p in model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()
        opt.step()


# %% train_sharded: wrong, new values not handed out
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    n = dist.get_world_size()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = make_optimizer(params[dist.get_rank() :: n])
    for batch in micro_batches:
        for p in params:
            p.grad = None
        loss_of(model, batch).backward()
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= n
        opt.step()


# %% train_sharded: wrong, only its own gradients zeroed
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    n = dist.get_world_size()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = make_optimizer(params[dist.get_rank() :: n])
    for batch in micro_batches:
        loss_of(model, batch).backward()
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= n
        opt.step()
        opt.zero_grad()
        for i, p in enumerate(params):
            dist.broadcast(p.data, src=i % n)


# %% train_sharded: wrong, new values handed out at the end only
# The values are only handed out at the end.
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    n = dist.get_world_size()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = make_optimizer(params[dist.get_rank() :: n])
    for batch in micro_batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        for p in params:
            dist.all_reduce(p.grad)
            p.grad /= n
        opt.step()
    for i, p in enumerate(params):
        dist.broadcast(p.data, src=i % n)


# %% train_sharded: wrong
# One step for all micro-batches together.
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    n = dist.get_world_size()
    params = [p for p in model.parameters() if p.requires_grad]
    opt = make_optimizer(params[dist.get_rank() :: n])
    for batch in micro_batches:
        (loss_of(model, batch) / len(micro_batches)).backward()
    for p in params:
        dist.all_reduce(p.grad)
        p.grad /= n
    opt.step()
    for i, p in enumerate(params):
        dist.broadcast(p.data, src=i % n)


# %% shard_bytes: right
import math


def shard_bytes(model, ranks):
    result = []
    for rank in range(ranks):
        total = 0
        for p in model.parameters():
            each = math.ceil(p.size(0) / ranks)
            total += p[rank * each : (rank + 1) * each].nbytes
        result.append(total)
    return result


# %% shard_bytes: right
from collections import Counter


def shard_bytes(model, ranks):
    sizes = Counter()
    for name, p in model.named_parameters():
        for r, piece in enumerate(torch.chunk(p.data, ranks)):
            sizes[r] += piece.numel() * p.dtype.itemsize
    return [sizes[r] for r in range(ranks)]


# %% shard_bytes: right
def shard_bytes(model, ranks):
    kept = torch.zeros(ranks, dtype=torch.long)
    for p in model.parameters():
        left, each = len(p), (len(p) - 1) // ranks + 1
        row = p.element_size() * p.numel() // len(p)
        for r in range(ranks):
            rows = min(each, left)
            kept[r] += rows * row
            left -= rows
    return kept.tolist()


# %% shard_bytes: wrong, an equal share for every rank
def shard_bytes(model, ranks):
    return [sum(p.nbytes // ranks for p in model.parameters())] * ranks


# %% shard_bytes: wrong, frozen weights left out
def shard_bytes(model, ranks):
    kept = [0] * ranks
    for p in model.parameters():
        if p.requires_grad:
            for r, piece in enumerate(p.chunk(ranks)):
                kept[r] += piece.nbytes
    return kept


# %% shard_bytes: wrong, four bytes for every number
def shard_bytes(model, ranks):
    kept = [0] * ranks
    for p in model.parameters():
        for r, piece in enumerate(p.chunk(ranks)):
            kept[r] += 4 * piece.numel()
    return kept


# %% shard_bytes: wrong
# All of the model in one flat tensor, as FSDP1 has it, padded.
def shard_bytes(model, ranks):
    numbers = sum(p.numel() for p in model.parameters())
    size = next(model.parameters()).element_size()
    return [-(-numbers // ranks) * size] * ranks


# %% shard_bytes: wrong, tied weights counted twice
def shard_bytes(model, ranks):
    kept = [0] * ranks
    for module in model.modules():
        for p in module._parameters.values():
            if p is not None:
                for r, piece in enumerate(p.chunk(ranks)):
                    kept[r] += piece.nbytes
    return kept


# %% train_sharded: right
# handles waited for one after the other
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, n = dist.get_rank(), dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained[rank::n])
    for batch in micro_batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        works = [dist.all_reduce(p.grad, async_op=True) for p in trained]
        while works:
            works.pop().wait()
        for p in trained:
            p.grad.div_(n)
        optimizer.step()
        for work in [dist.broadcast(p.data, i % n, async_op=True) for i, p in enumerate(trained)]:
            work.get_future().wait()


# %% train_sharded: wrong, new values not handed out
# broadcasts not waited for
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, n = dist.get_rank(), dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained[rank::n])
    for batch in micro_batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        for p in trained:
            dist.all_reduce(p.grad)
            p.grad /= n
        optimizer.step()
        for i, p in enumerate(trained):
            dist.broadcast(p.data, src=i % n, async_op=True)


# %% train_sharded: wrong, new values handed out at the end only
# new values only at the end
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, world = dist.get_rank(), dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained[rank::world])
    for batch in micro_batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        for p in trained:
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()
    for number, p in enumerate(trained):
        dist.broadcast(p.data, src=number % world)


# %% train_sharded: wrong, new values handed out before the step
# broadcasts before the step
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, world = dist.get_rank(), dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained[rank::world])
    for batch in micro_batches:
        for number, p in enumerate(trained):
            dist.broadcast(p.data, src=number % world)
        model.zero_grad()
        loss_of(model, batch).backward()
        for p in trained:
            dist.all_reduce(p.grad)
            p.grad /= world
        optimizer.step()


# %% shard_bytes: wrong, an equal share for every rank
# equal shares
def shard_bytes(model, ranks):
    return [sum(p.nbytes for p in model.parameters()) // ranks] * ranks


# %% train_sharded: wrong, only its own gradients zeroed
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained[rank::world_size])
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        for i, p in enumerate(trained):
            total = p.grad.clone()
            dist.all_reduce(total)
            if i % world_size == rank:
                p.grad = total / world_size
        optimizer.step()
        for i, p in enumerate(trained):
            dist.broadcast(p.data, src=i % world_size)


# %% train_sharded: right
import torch
import torch.distributed as dist


def owner(number):
    return number % dist.get_world_size()


def share_gradients(weights):
    for weight in weights:
        gradient = (
            torch.zeros_like(weight) if weight.grad is None else weight.grad / dist.get_world_size()
        )
        dist.all_reduce(gradient)
        weight.grad = gradient


def train_sharded(model, make_optimizer, loss_of, micro_batches):
    weights = list(filter(lambda weight: weight.requires_grad, model.parameters()))
    mine = [weight for number, weight in enumerate(weights) if owner(number) == dist.get_rank()]
    optimizer = make_optimizer(mine)
    for batch in micro_batches:
        for weight in weights:
            weight.grad = None
        loss_of(model, batch).backward()
        share_gradients(weights)
        optimizer.step()
        for number, weight in enumerate(weights):
            dist.broadcast(weight.data, owner(number))


# %% train_sharded: wrong
import torch
import torch.distributed as dist


def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, world = dist.get_rank(), dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained[rank::world])
    for batch in micro_batches:
        loss_of(model, batch).backward()
        for p in trained:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad /= world
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        with torch.no_grad():
            for i, p in enumerate(trained):
                dist.broadcast(p, src=i % world)
        model.zero_grad()


# %% shard_bytes: right
def shard_bytes(model, ranks):
    weights = list(dict.fromkeys(model.parameters()))

    def on(rank):
        pieces = (weight.detach().chunk(ranks) for weight in weights)
        return sum(piece[rank].nbytes for piece in pieces if rank < len(piece))

    return [on(rank) for rank in range(ranks)]


# %% shard_bytes: wrong
import torch


def shard_bytes(model, ranks):
    kept, seen = [0] * ranks, []
    for weight in model.parameters():
        if any(weight.shape == other.shape and torch.equal(weight, other) for other in seen):
            continue
        seen.append(weight)
        for rank, piece in enumerate(weight.chunk(ranks)):
            kept[rank] += piece.nbytes
    return kept


# %% shard_bytes: wrong
def shard_bytes(model, ranks):
    kept = [0] * ranks
    for weight in model.parameters():
        rows = weight.shape[0]
        piece = -(-rows // ranks)
        row_bytes = weight[0].numel() * weight.element_size() if rows else 0
        for rank in range(ranks):
            kept[rank] += max(0, min(piece, rows - rank * piece)) * row_bytes
    return (one for one in kept)


# %% shard_bytes: wrong, rows divided by ranks, rounded down
def shard_bytes(model, ranks):
    """Bytes of weights on each rank when every parameter is cut along its first dimension."""
    kept = [0] * ranks
    for p in model.parameters():
        rows = p.shape[0]
        size = p.numel() // rows * p.element_size()
        most = rows // ranks
        for rank in range(ranks):
            kept[rank] += (most if rank < ranks - 1 else rows - rank * most) * size
    return kept


# %% train_sharded: wrong, consecutive pieces
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    r, n = dist.get_rank(), dist.get_world_size()
    ps = [p for p in model.parameters() if p.requires_grad]
    owner = [min(i // (len(ps) // n), n - 1) for i in range(len(ps))]
    opt = make_optimizer([p for p, own in zip(ps, owner) if own == r])
    for batch in micro_batches:
        loss_of(model, batch).backward()
        for p in ps:
            dist.all_reduce(p.grad)
            p.grad.div_(n)
        opt.step()
        for p, own in zip(ps, owner):
            dist.broadcast(p.data, src=own)
        model.zero_grad()


# %% train_sharded: wrong, numbered from 1
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    r, n = dist.get_rank(), dist.get_world_size()
    numbered = dict(enumerate((p for p in model.parameters() if p.requires_grad), 1))
    opt = make_optimizer([p for i, p in numbered.items() if i % n == r])
    for batch in micro_batches:
        loss_of(model, batch).backward()
        for p in numbered.values():
            dist.all_reduce(p.grad)
            p.grad /= n
        opt.step()
        for i, p in numbered.items():
            dist.broadcast(p.data, src=i % n)
        model.zero_grad()


# %% train_sharded: wrong, frozen parameters numbered, too
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    r, n = dist.get_rank(), dist.get_world_size()
    ps = [*model.parameters()]
    opt = make_optimizer(ps[r::n])
    for batch in micro_batches:
        loss_of(model, batch).backward()
        for p in ps:
            g = torch.zeros_like(p) if p.grad is None else p.grad
            dist.all_reduce(g)
            p.grad = g / n
        opt.step()
        for i, p in enumerate(ps):
            dist.broadcast(p.data, src=i % n)
        model.zero_grad()


# %% shard_bytes: wrong, buffers cut, too
# The state dictionary holds each tensor once, and the buffers with them.
def shard_bytes(model, ranks):
    kept = [0] * ranks
    for tensor in {id(one): one for one in model.state_dict(keep_vars=True).values()}.values():
        for rank, piece in enumerate(tensor.chunk(ranks)):
            kept[rank] += piece.nbytes
    return kept


# %% shard_bytes: wrong, tied weights counted twice
def shard_bytes(model, ranks):
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    kept = [0] * ranks
    for name, tensor in model.state_dict().items():
        if name in names:
            for rank, piece in enumerate(tensor.chunk(ranks)):
                kept[rank] += piece.nbytes
    return kept


# %% train_sharded: wrong, a rank without parameters
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, n = dist.get_rank(), dist.get_world_size()
    ps = [p for p in model.parameters() if p.requires_grad]
    opt = make_optimizer(ps[rank + 1 :: n])
    for batch in micro_batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        for p in ps:
            dist.all_reduce(p.grad)
            p.grad /= n
        opt.step()
        for i, p in enumerate(ps):
            dist.broadcast(p.data, src=i % n)


# %% train_sharded: wrong, a rank without parameters
# pieces of a fixed length
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, n = dist.get_rank(), dist.get_world_size()
    ps = [p for p in model.parameters() if p.requires_grad]
    opt = make_optimizer([p for i, p in enumerate(ps) if i // 2 == rank])
    for batch in micro_batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        for p in ps:
            dist.all_reduce(p.grad)
            p.grad /= n
        opt.step()
        for i, p in enumerate(ps):
            dist.broadcast(p.data, src=i // 2)


# %% train_sharded: wrong, a rank without parameters
# no remainder is N
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, n = dist.get_rank(), dist.get_world_size()
    ps = [p for p in model.parameters() if p.requires_grad]
    opt = make_optimizer([p for i, p in enumerate(ps, 1) if i % n == rank + 1])
    for batch in micro_batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        for p in ps:
            dist.all_reduce(p.grad)
            p.grad /= n
        opt.step()
        for i, p in enumerate(ps):
            dist.broadcast(p.data, src=i % n)


# %% train_sharded: right
# A hook of the optimizer makes the mean, and is taken off at the end.
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    rank, world = dist.get_rank(), dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer(trained[rank::world])

    def average(*_):
        for p in trained:
            dist.all_reduce(p.grad)
            p.grad /= world

    hook = optimizer.register_step_pre_hook(average)
    for batch in micro_batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        for i, p in enumerate(trained):
            dist.broadcast(p.data, i % world)
    hook.remove()
