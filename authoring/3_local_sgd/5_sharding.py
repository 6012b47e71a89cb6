# %% [markdown]
# # Sharding, as far as it touches the three techniques
#
# **You will be able to** share out optimizer state over ranks by hand; say what each rank keeps and sends when torch shares out everything; and say what accumulation and checkpointing cost there.
#
# **Minutes**: 55, with a place to stop · **Before this**: [Local SGD: averages and bytes](1b_averages_and_bytes.ipynb). This lesson is optional.

# %% [markdown]
# ## A question
#
# DDP and Local SGD keep the whole model on every rank: weights, gradients, optimizer state, all of them $N$ times. Activations are not there $N$ times: each rank has those of its own samples. With AdamW in 32 bits that is 16 bytes for each weight, on every rank.
#
# Must every rank keep everything? And if not: what becomes of accumulation, which skips communication, and of checkpointing, which computes twice?

# %%
import os
from types import SimpleNamespace

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from trainlean import (
    check,
    communication_table,
    guess,
    hint,
    recall,
    reveal,
    start_devices,
    stop_devices,
    put_in_order,
)

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # on the CPU, on machines with several GPUs too
devices = start_devices(2)

# %%
recall("3_local_sgd/5_sharding")

# %% [markdown]
# ## Only the optimizer state
#
# Of the 16 bytes of a weight, 8 are AdamW's: two moments. They are used in one place, the optimizer's step, and each parameter's step needs only its own. So let each rank make the step of *some* parameters, and keep the moments of these alone. Afterwards it hands the new values to the others.
#
# This is the first stage of ZeRO ([arXiv 1910.02054](https://arxiv.org/abs/1910.02054)). The second shares out the gradients as well, the third the weights. In bytes for each weight, with AdamW in 32 bits on $N$ ranks:
#
# | | weights | gradients | optimizer state | all, for large $N$ |
# |---|---|---|---|---|
# | DDP, Local SGD | 4 | 4 | 8 | 16 |
# | stage 1 | 4 | 4 | $8/N$ | 8 |
# | stage 2 | 4 | $4/N$ | $8/N$ | 4 |
# | stage 3, torch's `fully_shard` | $4/N$ | $4/N$ | $8/N$ | 0 |
#
# **Predict.** Two ranks, stage 1. What share of DDP's 16 bytes does a rank keep?

# %%
# BEGIN SOLUTION
my_guess = 0.75
# END SOLUTION
guess("share of DDP's training state, stage 1, 2 ranks", my_guess, "of it")

# %%
reveal(
    "share of DDP's training state, stage 1, 2 ranks", (4 + 4 + 8 / 2) / 16, "of it", "predicted"
)

# %% [markdown]
# ### Exercise: the optimizer's state shared out
#
# *Difficulty* *** · *15 minutes* · *Why*: it saves up to half of the 16 bytes, with no change of the model.
#
# Write `train_sharded(model, make_optimizer, loss_of, micro_batches)`. Every rank calls it; all begin with equal weights and without gradients, and `micro_batches` is this rank's own list, as long as everybody's; it stays as it is.
#
# - Number the trained parameters in the order of `model.parameters()`, from 0; frozen ones get no number. Parameter number $i$ belongs to rank $i \bmod N$. (There are at least as many as ranks.)
# - Each rank calls `make_optimizer(parameters)` **once**, with the list of those that belong to it. That is the only optimizer it has, so it keeps the state of these alone.
# - Each micro-batch gives every trained parameter a gradient, and makes one step. The optimizer of a parameter's owner must see the mean of all ranks' gradients; what stands in the other ranks' `.grad` at that moment does not matter.
# - After the step all ranks have the new values of *all* parameters, before the next micro-batch and at the end. Each micro-batch begins with gradients of zero.


# %%
put_in_order("train_sharded")


# %% exercise="train_sharded" points=4
def train_sharded(model, make_optimizer, loss_of, micro_batches):
    """Train with every rank's optimizer for its own share of the parameters."""
    # BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = make_optimizer(trained[rank::world_size])
    for batch in micro_batches:
        model.zero_grad()
        loss_of(model, batch).backward()
        for parameter in trained:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        optimizer.step()
        for number, parameter in enumerate(trained):
            dist.broadcast(parameter.data, src=number % world_size)
    # END SOLUTION


# %% check="train_sharded"
check(train_sharded)

# %% [markdown]
# `hint(train_sharded)` helps on request.
#
# torch has this as `ZeroRedundancyOptimizer`. Here it is under DDP, beside a plain AdamW. The model is four blocks of two layers:


# %%
# %%px
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from trainlean import Meter


def blocks():
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64)) for _ in range(4))
    )


generator = torch.Generator().manual_seed(rank)
batches = [torch.randn(8, 64, generator=generator) for _ in range(4)]
AdamW = torch.optim.AdamW


def train(model, optimizer, accumulation_steps=1, synchronise=lambda last: None):
    with Meter() as meter:
        for number, batch in enumerate(batches, start=1):
            last = number % accumulation_steps == 0
            synchronise(last)
            (model(batch).square().mean() / accumulation_steps).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
    return meter


def state_bytes(optimizer):
    state = [tensor for of_one in optimizer.state.values() for tensor in of_one.values()]
    return sum(tensor.nbytes for tensor in state if tensor.numel() > 1)


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


counts, kept = {}, {}
plain, shared = blocks(), blocks()
optimizer = AdamW(plain.parameters(), lr=0.01)
meter = train(DistributedDataParallel(plain), optimizer)
counts["DDP"], kept["AdamW"] = meter.collectives, state_bytes(optimizer)
optimizer = ZeroRedundancyOptimizer(shared.parameters(), AdamW, lr=0.01)
meter = train(DistributedDataParallel(shared), optimizer)
counts["DDP, state shared out"] = meter.collectives
kept["ZeroRedundancyOptimizer"] = state_bytes(optimizer.optim)
if rank == 0:
    print("weights differ < 1e-6:", bool((flat(plain) - flat(shared)).abs().max() < 1e-6))


# %%
def table_of(counts, optimizer_steps=4):
    return communication_table(
        {
            name: SimpleNamespace(collectives=collectives, optimizer_steps=optimizer_steps)
            for name, collectives in counts.items()
        }
    )


pd.DataFrame(
    {f"rank {number}": of_rank for number, of_rank in enumerate(devices.pull("kept"))}
).rename_axis("bytes of optimizer state")

# %% [markdown]
# Half on each rank, as far as whole parameters can be divided evenly, and the same weights. What is sent besides DDP's gradients are the new values: each rank broadcasts its own share. (Of 64 such calls in 4 steps rank 0 sends in half; messages and bytes count what it sends. The other two are DDP's.)

# %%
table_of(devices.pull("counts")[0])

# %% [markdown]
# ## Everything
#
# `fully_shard` (FSDP2) shares out the weights and gradients as well. Each parameter is cut along its first dimension, and a rank keeps one piece, a *shard*. To compute, a block needs its whole weights. So torch
#
# 1. **gathers** a block's weights from all ranks before its forward pass, and drops what is not its own afterwards,
# 2. gathers them *again* before its backward pass,
# 3. **reduces and scatters** its gradients after its backward pass: each rank gets the mean for its own shard only.
#
# You know both collectives as the two times around a ring: the first is a **reduce-scatter**, the second an **all-gather**. Together they are an all-reduce.
#
# **Predict.** DDP makes one all-reduce of the gradients, which is one reduce-scatter and one all-gather. How many times DDP's bytes does `fully_shard` send in one step?

# %%
# BEGIN SOLUTION
my_guess = 1.5
# END SOLUTION
guess("bytes sent by fully_shard, relative to DDP", my_guess, "times DDP")


# %%
# %%px
def sharded(reshard_after_forward=True, checkpointing="none"):
    model = blocks()
    for number, block in enumerate(model):
        if checkpointing == "inside":
            block = checkpoint_wrapper(block)
        block = fully_shard(block, reshard_after_forward=reshard_after_forward)
        model[number] = checkpoint_wrapper(block) if checkpointing == "outside" else block
    return fully_shard(model)


def whole(model):
    return torch.cat([parameter.full_tensor().flatten() for parameter in model.parameters()])


fully = sharded()
optimizer = AdamW(fully.parameters(), lr=0.01)
meter = train(fully, optimizer)
counts["fully_shard"] = meter.collectives
at_step = meter.moments["optimizer step"]
kept = {name: at_step[name] for name in ("weights", "optimizer state")}
difference = (whole(fully) - flat(plain)).abs().max()
if rank == 0:
    print("weights as DDP's < 1e-6:", bool(difference < 1e-6))

# %%
counts = devices.pull("counts")[0]
relative = [
    sum(kind["sent"] for name, kind in counts[run].items() if name != "broadcast")
    for run in ("fully_shard", "DDP")
]
reveal(
    "bytes sent by fully_shard, relative to DDP", round(relative[0] / relative[1], 3), "times DDP"
)
table_of({run: counts[run] for run in ("DDP", "fully_shard")})

# %% [markdown]
# The weights go around the ring twice, the gradients once: three passes, where DDP's all-reduce makes two. And this is what each rank keeps, seen by the meter during the optimizer's step:

# %%
pd.DataFrame(
    {f"rank {number}": of_rank for number, of_rank in enumerate(devices.pull("kept"))}
).rename_axis("bytes kept")

# %% [markdown]
# Half of both. (The optimizer state has AdamW's step counters in it, 4 bytes for each parameter. Gradients are halved as well, as a table below shows.) While a block computes, its whole weights are there as well, so the *peak* falls by less. With one single `fully_shard(model)` all weights are there at once.
#
# What `fully_shard` does not touch are the activations. They are each rank's own, as under DDP. Accumulation and checkpointing lower them as before; what do they cost here?
#
# ### Sum or mean?
#
# In 2025 somebody found that with gloo `fully_shard` *summed* the gradients, in place of their mean ([pytorch issue 162338](https://github.com/pytorch/pytorch/issues/162338)). Which does your version do? Ask it: one weight, with the gradient 1 on rank 0 and 2 on rank 1.

# %%
# %%px
one = nn.Linear(1, 1, bias=False)
fully_shard(one)
one(torch.tensor([[1.0 + rank]])).sum().backward()
print("torch", torch.__version__.split("+")[0], one.weight.grad.full_tensor().item())

# %% [markdown]
# On two ranks 1.5 is the mean; 3 would be the sum.
#
# Whose is that one weight? It cannot be cut. Look at the shards, and at the memory behind them:

# %%
# %%px
mine = one.weight.to_local()
print(
    f"rank {rank}'s shard: {tuple(mine.shape)} of {tuple(one.weight.shape)},",
    f"in {mine.untyped_storage().nbytes()} bytes of memory",
)

# %% [markdown]
# Rank 1's shard is empty, and has the memory of the first one: torch 2.13 fills weights up with zeros to that size.
#
# ### Exercise: each rank's shard
#
# *Difficulty* ** · *8 minutes* · *Why*: a half for each of two ranks is true on average only.
#
# A parameter is cut along its first dimension into as many pieces as there are ranks, as `torch.chunk` does it: every piece has (rows divided by ranks, **rounded up**) rows, as long as there are rows. So the last pieces may be smaller, or empty.
#
# Write `shard_bytes(model, ranks)`: a list with the bytes of each rank's shards of the weights under `fully_shard`, by rank, without the zeros. A weight that two layers share counts once. Weights need not have 4 bytes (`element_size()`), and frozen ones are cut, too.


# %% exercise="shard_bytes" points=2
def shard_bytes(model, ranks):
    """Bytes of each rank's shards when every parameter is cut along its first dimension."""
    # BEGIN SOLUTION
    sizes = [0] * ranks
    for parameter in model.parameters():
        for rank, piece in enumerate(parameter.chunk(ranks)):
            sizes[rank] += piece.numel() * piece.element_size()
    return sizes
    # END SOLUTION


# %% check="shard_bytes"
check(shard_bytes)

# %% [markdown]
# **A good place to stop for today.**
#
# ## Accumulation costs here
#
# Under DDP accumulation *saves* bytes: `no_sync` skips the all-reduce of all micro-batches but the last. What is there to skip now? The gradients' reduce-scatter can be skipped: `set_requires_gradient_sync(False)` does it. But every micro-batch has its forward and its backward pass, and for each the weights must be gathered.
#
# **Predict.** Four blocks, a window of four micro-batches, one optimizer step. How many all-gathers does a rank take part in, if the gradients are synchronised in the last micro-batch only?

# %%
# BEGIN SOLUTION
my_guess = 32
# END SOLUTION
guess("all-gathers of a window of four, four blocks", my_guess, "all-gathers")

# %%
# %%px
counts, results = {}, {}


def window(name, model, synchronise=lambda last: None):
    optimizer = AdamW(model.parameters(), lr=0.01)
    counts[name] = train(model, optimizer, 4, synchronise).collectives
    results[name] = whole(model)


fully = sharded()
window("gradients synchronised every time", fully)
fully = sharded()
window("only in the last micro-batch", fully, fully.set_requires_gradient_sync)
fully = sharded(reshard_after_forward=False)
window("and weights kept after forward", fully, fully.set_requires_gradient_sync)
fully = sharded(reshard_after_forward=False)


def only_in_the_last(last):
    fully.set_requires_gradient_sync(last)
    fully.set_reshard_after_backward(last)


window("and kept after backward", fully, only_in_the_last)
ends = list(results.values())
if rank == 0:
    print("the same weights < 1e-6:", all(bool((one - ends[0]).abs().max() < 1e-6) for one in ends))

# %%
counts = devices.pull("counts")[0]
reveal(
    "all-gathers of a window of four, four blocks",
    counts["only in the last micro-batch"]["all-gather"]["calls"],
    "all-gathers",
)
table_of(counts, optimizer_steps=1)

# %% [markdown]
# Two for each block and micro-batch. A window of $k$ micro-batches gathers the weights $2k$ times for *one* optimizer step; one large micro-batch would gather them twice. So at equal batch accumulation makes communication **more** expensive here, and skipping the gradients' synchronisation saves only the smaller part.
#
# With `reshard_after_forward=False` the weights stay between a micro-batch's forward and backward pass. That halves the all-gathers, and all weights are there at once when the backward pass begins.
#
# `set_reshard_after_backward(False)`, for all micro-batches but the last, keeps them until the next one as well. Then a window gathers each block once. But now all weights are on every rank for the whole window, which is what sharding was to avoid.
#
# There is a second price. Gradients that are not synchronised cannot be cut, since each rank's are different. Where are they between two micro-batches?


# %%
# %%px
def whole_gradients(model):
    """Bytes of gradients that wait for their synchronisation (by torch's own, private names)."""
    groups = [
        group
        for module in model.modules()
        if hasattr(module, "_get_fsdp_state")
        for group in [module._get_fsdp_state()._fsdp_param_group]
        if group
    ]
    waiting = [
        parameter._unsharded_param.grad
        for group in groups
        for parameter in group.fsdp_params
        if hasattr(parameter, "_unsharded_param")
    ]
    return sum(gradient.nbytes for gradient in waiting if gradient is not None)


held = {}
for name, synchronised in {"synchronised": True, "not synchronised": False}.items():
    fully = sharded()
    fully.set_requires_gradient_sync(synchronised)
    fully(batches[0]).square().mean().backward()
    shards = [one.grad.to_local().nbytes for one in fully.parameters() if one.grad is not None]
    held[name] = {"in shards": sum(shards), "whole": whole_gradients(fully)}

# %%
pd.DataFrame(devices.pull("held")[0]).T.rename_axis("bytes of gradients after one micro-batch")

# %% [markdown]
# Not synchronised they are *whole*: all gradients of the model, on every rank, from the first micro-batch of the window to the last. (With Accelerate, `sync_each_batch=True` of its `GradientAccumulationPlugin` synchronises every time.)
#
# A larger micro-batch **with checkpointing** is another way to a large batch: one forward and one backward pass gather the weights twice, where accumulation gathers them $2k$ times or keeps them whole.
#
# ## Checkpointing, inside or outside
#
# Checkpointing computes a block's forward pass again within the backward pass. Does that need another all-gather? And does it matter which of the two is wrapped around the other: `fully_shard(checkpoint_wrapper(block))`, checkpointing inside (`checkpoint_wrapper` makes a module that runs under `checkpoint`), or `checkpoint_wrapper(fully_shard(block))`, outside?

# %%
# %%px
counts, results, flops = {}, {}, {}
for checkpointing in ("none", "inside", "outside"):
    fully = sharded(checkpointing=checkpointing)
    optimizer = AdamW(fully.parameters(), lr=0.01)
    meter = train(fully, optimizer)
    counts[f"checkpointing: {checkpointing}"] = meter.collectives
    flops[checkpointing] = meter.flops
    results[checkpointing] = whole(fully)
ends = list(results.values())
if rank == 0:
    print("the same weights < 1e-6:", all(bool((one - ends[0]).abs().max() < 1e-6) for one in ends))
    for where in ("inside", "outside"):
        print(f"{where:7}: {flops[where] / flops['none']:.2f} times the FLOPs")

# %%
table_of(devices.pull("counts")[0])

# %% [markdown]
# Not one more, either way. The weights are gathered for the backward pass anyway, and what is computed again uses them. (The FLOPs are about a sixth more and not a third: the recomputation stops before a block's second layer, which is half of its work.) Here both orders compute and send the same, and end with the same weights.
#
# So with sharding checkpointing costs computing only. Accumulation costs bytes on the link, or the memory that sharding had saved.
#
# ## And Local SGD?
#
# Local SGD needs a whole model that a rank can train alone. A shard is none. Accelerate's `LocalSGD` takes no FSDP.
#
# But the two can stand *above* each other: shards inside a computer, over a fast link; Local SGD or DiLoCo between computers, over a slow one. Each computer is one replica then, and each rank averages its own shards with the ranks of the same number elsewhere.

# %%
stop_devices()

# %% [markdown]
# ## What to keep
#
# - ZeRO stage 1: each rank keeps the optimizer state of its share of the parameters, makes their steps, and hands out the new values. The same training; AdamW's 8 bytes become $8/N$.
# - `fully_shard` keeps at most $1/N$ of weights, gradients and optimizer state, rounded up to whole rows. Where all is trained, and blocks drop their weights after the forward pass, it sends 1.5 times what DDP sends. Activations stay as they are.
# - Accumulation over $k$ micro-batches gathers the weights of such blocks $2k$ times for each step. Skipping the synchronisation saves the smaller part of these bytes, and keeps whole gradients on every rank.
# - Checkpointing sends nothing more, inside or outside.
# - Ask a new version whether it sums or averages: one weight, two gradients.
#
# Next: [the whole picture](../4_whole_picture/1_published_table.ipynb).
