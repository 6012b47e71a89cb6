# %% [markdown]
# # Local SGD in PyTorch
#
# **You will be able to** train on several devices that meet only now and then, write the loop so that they end with one model, count what they send, and say when meeting seldom pays.
#
# **Minutes**: 70 · **Before this**: [Gradient accumulation with Accelerate](../1_accumulation/2_accelerator.ipynb), where you met ranks and the all-reduce.

# %% [markdown]
# ## A question
#
# Several devices train copies of one model, each on its own share of the data. At every optimizer step they average their gradients, so that the copies stay equal.
# Within one computer that is quick. Over a slow network the devices wait longer than they compute.
#
# What happens if each device trains *alone* for a while, and they average only every now and then? Do the copies come back together? And what is lost?

# %%
import base64
import io
import os
from types import SimpleNamespace

import ipywidgets as widgets
import pandas as pd
import torch
import torch.distributed as dist
from IPython.display import display
from matplotlib import pyplot as plt
from torch import nn
from torch.nn.functional import cross_entropy
from trainlean import (
    LINKS,
    check,
    communication_table,
    dataset,
    ddp_step_seconds,
    explorer,
    guess,
    hint,
    load_reviews,
    load_tokenizer,
    local_sgd_step_seconds,
    plot_drift,
    plot_ranks,
    reveal,
    start_devices,
    stop_devices,
)
from trainlean.pictures.link_controls import LinkControls

# %% [markdown]
# Two real processes, in one line. Each is a *rank*; its copy of the model is a *replica*. A cell that begins with `%%px` runs on both ranks, not here.

# %%
os.environ["CUDA_VISIBLE_DEVICES"] = (
    ""  # everything below lives on the CPU, on machines with several GPUs too
)
devices = start_devices(2)

# %%
# %%px
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trainlean import Meter, RankRecorder, batches, load_reviews, measure, small_bert

print(f"rank {rank} of {world_size}")

# %% [markdown]
# ## Meeting at every step
#
# Ranks talk in *collectives*: calls that every rank makes, and that end when all have made them. The most important one is the **all-reduce**:

# %%
# %%px
numbers = torch.tensor([1.0, 10.0]) * (rank + 1)
print("before:", numbers.tolist())
dist.all_reduce(numbers)
print("after: ", numbers.tolist())

# %% [markdown]
# Every rank gave a tensor, and every rank holds the **sum**, in the same tensor. The mean is one division away. With that you can write the training on several devices by hand:


# %%
# %%px
def average(tensor):
    dist.all_reduce(tensor)
    tensor /= world_size


def train_every_step(model, optimizer, loss_of, micro_batches):
    for batch in micro_batches:
        loss_of(model, batch).backward()
        for parameter in model.parameters():
            average(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()


# %% [markdown]
# The mean of the two ranks' gradients is the gradient of one large batch: the micro-batches of both ranks together. That is all that `DistributedDataParallel` (DDP) does.
# It only packs many gradients into a few *buckets*, and sends a bucket as soon as the backward pass has filled it.
#
# Both on the small BERT. Rank $r$ takes micro-batches $r$, $r + 2$, $r + 4$ and so on. `Meter` counts what a rank hands to collectives, its *payload*.


# %%
# %%px
def bert_loss(model, batch):
    return model(**batch).loss


mine = batches(load_reviews()[:96], 4, shuffle=False)[rank::world_size]
print(
    len(mine),
    "micro-batches,",
    f"{sum(parameter.numel() for parameter in small_bert().parameters()):,} weights",
)

# %% [markdown]
# **Predict.** A gradient is as large as its weight, 4 bytes a number. How much does a rank hand over in one optimizer step?

# %%
# BEGIN SOLUTION
my_guess = 4
# END SOLUTION
guess("payload of a rank in one optimizer step", my_guess, "MiB")


# %%
# %%px
def counted(train, wrap=lambda model: model):
    model = small_bert(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wrapped = wrap(model)
    with Meter() as meter:
        train(wrapped, optimizer, bert_loss, mine[:4])
    weights = nn.utils.parameters_to_vector(model.parameters()).detach()
    return weights, {"collectives": meter.collectives, "optimizer_steps": meter.optimizer_steps}


def train_ddp(model, optimizer, loss_of, micro_batches):
    for batch in micro_batches:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


by_hand, counts_by_hand = counted(train_every_step)
by_ddp, counts_ddp = counted(train_ddp, DistributedDataParallel)
print("weights differ < 1e-6:", bool((by_hand - by_ddp).abs().max() < 1e-6))

# %%
on_rank_0 = {
    name: SimpleNamespace(**devices.pull(variable)[0])
    for name, variable in {"by hand": "counts_by_hand", "DDP": "counts_ddp"}.items()
}
payload = on_rank_0["by hand"].collectives["all-reduce"]["payload"] / 4
reveal("payload of a rank in one optimizer step", round(payload / 2**20, 1), "MiB")
communication_table(on_rank_0)

# %% [markdown]
# The same gradients, so the same bytes, in a few large calls instead of many small ones. (DDP sorts its buckets anew after the first step, so not every step has equally many.
# Its broadcasts are not gradients: in each forward pass rank 0 sends the model's *buffers*, tensors that are no parameters. More of them below.)
#
# *Messages* and *bytes sent* are what the network would see. They depend on who sends to whom.
#
# ### The driver and the ring
#
# The simplest way: one rank, the **driver**, receives the gradients of all the others, averages them and sends the mean back. Everything goes through the driver's one line.
#
# In a **ring** every rank sends only to its neighbour. The gradient is cut into as many pieces as there are ranks.
# In the first round trip the pieces are added up on their way, in the second the finished sums are handed around. That makes $2(N-1)$ messages, each an $N$-th of the gradient.


# %%
def draw_nodes(panel, arrows, title, driver=None):
    angles = torch.arange(8) * 2 * torch.pi / 8
    places = list(zip((torch.sin(angles)).tolist(), torch.cos(angles).tolist()))
    if driver is not None:
        places[driver] = (0, 0)
    for start, end in arrows:
        style = {
            "arrowstyle": "<|-|>" if driver is not None else "-|>",
            "color": "#b3261e" if driver is not None else "#0072B2",
            "lw": 1.6,
            "shrinkA": 13,
            "shrinkB": 13,
        }
        panel.annotate("", places[end], places[start], arrowprops=style)
    for number, place in enumerate(places):
        panel.plot(*place, "o", markersize=24, color="#b3261e" if number == driver else "#0072B2")
        panel.text(*place, number, color="white", ha="center", va="center", weight="bold")
    panel.set(xlim=(-1.3, 1.3), ylim=(-1.3, 1.3), aspect="equal")
    panel.set_title(title, fontsize=10)
    panel.axis("off")


figure, (star, ring, bars) = plt.subplots(1, 3, figsize=(10, 3.4), width_ratios=[1, 1, 1.3])
draw_nodes(
    star, [(0, other) for other in range(1, 8)], "driver: everything through rank 0", driver=0
)
draw_nodes(ring, [(one, (one + 1) % 8) for one in range(8)], "ring: an eighth at a time, 14 times")
ranks = [2, 4, 8, 16, 32, 64, 128]
bars.plot(ranks, [(n - 1) for n in ranks], "o-", color="#b3261e")
bars.plot(ranks, [2 * (n - 1) / n for n in ranks], "o-", color="#0072B2")
bars.text(14, 40, "the driver", color="#b3261e", ha="center", weight="bold")
bars.text(40, 2.6, "every rank of a ring", color="#0072B2", ha="center", weight="bold")
bars.set(
    xscale="log",
    yscale="log",
    xticks=ranks,
    xticklabels=ranks,
    yticks=[1, 10, 100],
    yticklabels=[1, 10, 100],
    xlabel="ranks",
    title="gradients sent by the busiest rank",
)
bars.minorticks_off()
bars.title.set_fontsize(10)
bars.spines[["top", "right"]].set_visible(False)
figure.tight_layout()
plt.show()

# %% [markdown]
# The driver's work grows with the number of ranks. In the ring a rank sends less than two gradients, however many ranks there are. This is why libraries use rings or trees.
# But the *number* of messages grows, and each of them takes the time that a signal needs. Between continents that is what hurts.
#
# ## Not meeting at all
#
# Leave the averaging out. To *see* what happens, take the smallest model again: one weight, which should learn by what number to multiply.
# Rank 0's samples say 1.5, rank 1's say 2.5; all samples together say 2. Real shares of data differ as well, only less.
#
# `train_local` averages after every `period` steps. With a period of 100 it never does. `RankRecorder` notes the weight after every optimizer step.


# %%
# %%px
def train_local(model, optimizer, loss_of, micro_batches, period):
    for step, batch in enumerate(micro_batches, start=1):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % period == 0:
            for parameter in model.parameters():
                average(parameter.data)


def squared_error(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


inputs = torch.randn(12, 16, 1, generator=torch.Generator().manual_seed(rank))
slopes = [(x, (1.5 + rank) * x) for x in inputs]


# %%
# %%px
def recorded(train, *more):
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with RankRecorder(watch=lambda: model.weight.item()) as recorder:
        train(model, optimizer, squared_error, slopes, *more)
    return recorder.record


alone = recorded(train_local, 100)

# %%
plot_drift(devices.pull("alone"), what="weight", title="Two replicas that never meet")

# %% [markdown]
# Both began at 0. From the first step on they see different samples, so they *drift* apart. You have two models now, each trained on half of the data, and neither has learned 2.
#
# ## Drift and return
#
# Now with a period. What is averaged are not the gradients this time, but the **parameters**. This is **Local SGD**; the period is called $H$. Twelve steps, $H = 5$:

# %%
# %%px
local = recorded(train_local, 5)

# %%
plot_drift(devices.pull("local"), what="weight", title="Local SGD, H = 5")

# %% [markdown]
# Five steps apart, and back to one point: the mean of where the two have come. From there they set off again.
#
# Why does the mean of two models help? With plain SGD each path is a sum of small steps, so the mean of the paths holds the steps of *both* ranks, at half the length: all samples count.
# But each gradient was computed where its own rank stood. It is nearly the one that you wanted as long as the replicas stay near each other.
#
# Now look at the right end of the picture. The steps after the last average were never brought together: the ranks end with **two different models**. You would save rank 0's, and throw away what rank 1 did last.
#
# **Predict.** So that the replicas end equal: how many averages do 12 steps with $H = 5$ need?

# %%
# BEGIN SOLUTION
my_guess = 2
# END SOLUTION
guess("averages for 12 steps with H = 5", my_guess, "averages")

# %% [markdown]
# Here is the loop with its **last average**. It also sends all parameters in one flat tensor: one call instead of one for each weight.


# %%
# %%px
def average_parameters(model):
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    average(flat)
    nn.utils.vector_to_parameters(flat, model.parameters())


def train_local_to_the_end(model, optimizer, loss_of, micro_batches, period):
    for step, batch in enumerate(micro_batches, start=1):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % period == 0 or step == len(micro_batches):
            average_parameters(model)


whole = recorded(train_local_to_the_end, 5)

# %%
records = devices.pull("whole")
reveal("averages for 12 steps with H = 5", len(records[0].averages), "averages")
print("averages after steps", records[0].averages)
for name, ranks in {"without the last one": devices.pull("local"), "with it": records}.items():
    print(f"weights at the end, {name}:", *(f"{one.values[-1][1]:.3f}" for one in ranks))

# %% [markdown]
# Rounded up, not down: the last, shorter period needs its average, as the last, shorter window needed its step.
#
# And what do ranks do all the time? Here are DDP and Local SGD on the clock, with the small BERT. A tick under a bar is an optimizer step. DDP averages within its backward passes. Where a line joins the ranks, they met for an average of parameters.


# %%
# %%px
def timed(train, *more, wrap=lambda model: model):
    model = small_bert(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    wrapped = wrap(model)
    dist.barrier()
    with RankRecorder() as recorder:
        train(wrapped, optimizer, bert_loss, mine, *more)
    return recorder.record


on_the_clock = [timed(train_ddp, wrap=DistributedDataParallel), timed(train_local_to_the_end, 5)]

# %%
with_ddp, with_local = zip(*devices.pull("on_the_clock"))
plot_ranks({"every step (DDP)": with_ddp, "Local SGD, H = 5": with_local})

# %% [markdown]
# Both ranks share this computer, so sending costs little here, and your percentages depend on what else it is doing. Look at the pattern instead.
# With DDP the ranks meet in *every* step, and whoever is first waits. Local SGD waits only at the averages; in between a rank may be slow in one step and quick in the next. (How long the waits are differs from run to run.)
#
# ### Exercise: Local SGD
#
# *Difficulty* *** · *12 minutes* · *Why*: most mistakes in this loop raise no error; the loss still falls, and you publish one of several models.
#
# Write `train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period)`. Every rank calls it; `dist.get_rank()` and `dist.get_world_size()` tell who you are, and how many.
#
# - `micro_batches` is the list of *all* ranks' micro-batches. Rank $r$ of $N$ takes number $r$, $r + N$, $r + 2N$ and so on.
# - The models may *begin* with different weights. All must start from those of rank 0 (`dist.broadcast(tensor, src=0)`), frozen ones too.
# - An optimizer step comes after `accumulation_steps` of the rank's micro-batches, with the gradient of their large batch. `loss_of(model, batch)` is the mean loss of one micro-batch.
# - Between averages the ranks send nothing. After every `averaging_period` optimizer *steps*, and after the last one, all hold the mean of their parameters.
# - **All ranks make the same number of steps.** Micro-batches that do not fill a window on every rank are left out.


# %% exercise="train_local_sgd" points=4
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, averaging_period):
    """Train this rank's replica alone, and average the replicas every averaging_period optimizer steps and at the end."""
    # BEGIN SOLUTION
    rank, world_size = dist.get_rank(), dist.get_world_size()
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    steps = len(micro_batches) // (world_size * accumulation_steps)
    mine = micro_batches[rank::world_size]
    for step in range(1, steps + 1):
        for batch in mine[(step - 1) * accumulation_steps : step * accumulation_steps]:
            (loss_of(model, batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % averaging_period == 0 or step == steps:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world_size
    # END SOLUTION


# %% check="train_local_sgd"
check(train_local_sgd)

# %% [markdown]
# `check` lets two and three ranks train with your function, and compares every gradient and weight on every rank. A rank that would wait for ever is told at once. `hint(train_local_sgd)` helps on request.
#
# ## What torch brings along
#
# PyTorch has this loop in parts: `PeriodicModelAverager` counts and averages, and `PostLocalSGDOptimizer` calls it after each step. Eight steps, period 4. We ask after every step how far the replicas are apart:

# %%
# %%px
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer


def gap(tensors):
    """The largest difference between the ranks."""
    highest = torch.cat([tensor.detach().flatten() for tensor in tensors])
    lowest = highest.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    return (highest - lowest).max().item()


def toy():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    generator = torch.Generator().manual_seed(rank)
    return model, [
        (
            torch.randn(6, 4, generator=generator).double(),
            torch.randn(6, 1, generator=generator).double(),
        )
        for _ in range(8)
    ]


def gaps_with_torch(averager):
    model, micro_batches = toy()
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), averager)
    gaps = []
    for inputs, targets in micro_batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        gaps.append(gap(model.parameters()))
    return gaps


# %% [markdown]
# **Predict.** After which step are the replicas equal for the first time?

# %%
# BEGIN SOLUTION
my_guess = 4
# END SOLUTION
guess("first average of torch, period 4", my_guess, "steps")

# %%
# %%px
gaps = gaps_with_torch(PeriodicModelAverager(period=4))
if rank == 0:
    print("torch", torch.__version__.split("+")[0])
    for step, distance in enumerate(gaps, start=1):
        print(f"after step {step}: {'equal' if distance < 1e-12 else f'{distance:.3f} apart'}")

# %%
gaps = devices.pull("gaps")[0]
equal = [step for step, distance in enumerate(gaps, start=1) if distance < 1e-12]
reveal("first average of torch, period 4", equal[0], "steps")

# %% [markdown]
# Two surprises in torch 2.13:
#
# 1. **The first average comes after the first step.** The averager's counter begins at 0, and 0 is a multiple of everything. From then on the periods are right, but shifted.
# 2. **There is no last average.** The training ends with the replicas apart.
#
# Both have a cure. A *warm-up* keeps the averager still for its first calls. And the last average is yours to call:

# %%
# %%px
gaps = gaps_with_torch(PeriodicModelAverager(period=4, warmup_steps=3))
if rank == 0:
    print(
        "equal after steps",
        [step for step, distance in enumerate(gaps, start=1) if distance < 1e-12],
    )

# %% [markdown]
# A third trap: the averager takes only parameters that *have a gradient*. Call it after `zero_grad`, and there are none:

# %%
# %%px
model, micro_batches = toy()
model.zero_grad()
try:
    PeriodicModelAverager(period=4).average_parameters(model.parameters())
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# ### Exercise: the last average
#
# *Difficulty* ** · *6 minutes* · *Why*: this is the loop of torch's documentation, and it ends with as many models as there are ranks.
#
# ```python
# def train(model, optimizer, loss_of, micro_batches, averaging_period):
#     averager = PeriodicModelAverager(period=averaging_period)
#     for batch in micro_batches:
#         optimizer.zero_grad()
#         loss_of(model, batch).backward()
#         optimizer.step()
#         averager.average_parameters(model.parameters())
# ```
# Write `train_with_averager(model, optimizer, loss_of, micro_batches, averaging_period)`, the same without surprises. `micro_batches` is this rank's own list; all ranks have equally many, and begin with equal weights.
#
# - The replicas are averaged after steps $H$, $2H$, $3H$ and so on (`averaging_period` is $H$), and not before.
# - After the last step they are equal, whatever the number of steps.
#
# Import the averager in your function, or count by hand.


# %% exercise="train_with_averager" points=3
def train_with_averager(model, optimizer, loss_of, micro_batches, averaging_period):
    """Train one rank with torch's averager; first average after averaging_period steps, and one at the end."""
    # BEGIN SOLUTION
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(period=averaging_period, warmup_steps=averaging_period - 1)
    for batch in micro_batches:
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)
        parameter.data /= dist.get_world_size()
    # END SOLUTION


# %% check="train_with_averager"
check(train_with_averager)

# %% [markdown]
# ## Is H = 1 the same as every step?
#
# With $H = 1$ the ranks average their parameters after each step, instead of their gradients before it. Is that the same training? Try it with five optimizers, in 64-bit numbers, so that rounding plays no part:


# %%
# %%px
def train_toy(make, clip, local):
    model, micro_batches = toy()
    optimizer = make(model.parameters())
    for inputs, targets in micro_batches:
        nn.functional.mse_loss(model(inputs), targets).backward()
        if not local:
            for parameter in model.parameters():
                average(parameter.grad)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        if local:
            average_parameters(model)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


SGD, AdamW = torch.optim.SGD, torch.optim.AdamW
optimizers = {
    "SGD": (lambda parameters: SGD(parameters, lr=0.1), None),
    "SGD, momentum 0.9": (lambda parameters: SGD(parameters, lr=0.1, momentum=0.9), None),
    "SGD, weight decay 0.1": (lambda parameters: SGD(parameters, lr=0.1, weight_decay=0.1), None),
    "SGD, clipped to 0.5": (lambda parameters: SGD(parameters, lr=0.1), 0.5),
    "AdamW": (lambda parameters: AdamW(parameters, lr=0.1), None),
}
for name, (make, clip) in optimizers.items():
    difference = (
        (train_toy(make, clip, local=True) - train_toy(make, clip, local=False)).abs().max().item()
    )
    if rank == 0:
        print(
            f"{name:22} largest difference {'< 1e-12' if difference < 1e-12 else f'{difference:.3f}'}"
        )

# %% [markdown]
# - **SGD** takes a step that is *proportional* to the gradient. The mean of the steps is then the step of the mean. Momentum and weight decay only add and multiply, so they do not change that.
# - **Clipping** shortens each rank's own gradient. The mean of shortened gradients is not the shortened mean.
# - **AdamW** divides by the root of the squared gradient, and each rank squares its own.
#
# So "Local SGD with H = 1 is DDP" is true for SGD, and false for what most people train with. It is not wrong training, only *other* training.
#
# ## What is not averaged
#
# Averaging the parameters leaves everything else as it is. Here is a model with batch normalisation, trained with momentum, right after an average:

# %%
# %%px
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for inputs, targets in toy()[1]:
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    optimizer.zero_grad()
average_parameters(model)

groups = {
    "parameters": list(model.parameters()),
    "momentum": [state["momentum_buffer"] for state in optimizer.state.values()],
    "running averages of batch norm": [model[1].running_mean, model[1].running_var],
}
for name, tensors in groups.items():
    distance = gap(tensors)
    if rank == 0:
        print(f"{name:30} {'equal' if distance < 1e-12 else f'{distance:.2f} apart'}")

# %% [markdown]
# - The **optimizer state** (momentum, Adam's moments) stays on its rank. Each rank goes on in the direction it was used to. Sending it as well would cost as much again, for AdamW twice as much; most implementations do not.
# - **Batch norm's running averages** are not parameters but *buffers*. Each rank has seen other data, so the ranks evaluate differently, although their parameters agree.
#   DDP hides this: it sends rank 0's buffers to all in each forward pass. (BERT's buffers are tables of positions, which never change.)
#
# ### Exercise: all that should be equal
#
# *Difficulty* * · *5 minutes* · *Why*: a model that evaluates differently on every rank is hard to find fault with.
#
# Write `average_replicas(model)`. Every rank calls it. Afterwards, on every rank,
#
# - every parameter holds the mean over the ranks, frozen or not, with or without a gradient in its `.grad`,
# - every floating-point *buffer* does, too; buffers of whole numbers stay as they are.


# %% exercise="average_replicas" points=2
def average_replicas(model):
    """Give parameters and floating-point buffers of all ranks their mean."""
    # BEGIN SOLUTION
    for tensor in [*(parameter.data for parameter in model.parameters()), *model.buffers()]:
        if tensor.is_floating_point():
            dist.all_reduce(tensor)
            tensor /= dist.get_world_size()
    # END SOLUTION


# %% check="average_replicas"
check(average_replicas)

# %% [markdown]
# ## What is sent
#
# Now count. Six optimizer steps on the small BERT: one device alone, DDP, and Local SGD with several $H$. `measure` counts a training and times it, for the explorer at the end.


# %%
# %%px
def measured(name, train, *more, wrap=lambda model: model, **settings):
    def run():
        model = small_bert(seed=0)
        train(wrap(model), torch.optim.SGD(model.parameters(), lr=0.05), bert_loss, mine[:6], *more)

    settings |= {
        "model": "small BERT on devices",
        "micro_batch": 4,
        "accumulation_steps": 1,
        "sequence_length": 64,
    }
    return measure(run, name=name, repeats=1, progress=False, **settings)


runs = [
    measured("alone", train_ddp, devices=1),
    measured("DDP", train_ddp, wrap=DistributedDataParallel, devices=world_size),
]
runs += [
    measured(
        f"H = {period}", train_local_to_the_end, period, devices=world_size, local_steps=period
    )
    for period in (1, 2, 4)
]

# %%
runs = devices.pull("runs")[0]
communication_table(runs[1:], by_kind=False)

# %% [markdown]
# (DDP also sends the buffers, and the model once before it begins, so that all start alike.)
#
# With $H = 1$ nothing is saved: a parameter is as large as its gradient. From there on the bytes of a step fall with $H$. They fall by all of $H$ only where the steps are a multiple of it; else the last average is one more.
#
# Accumulation saves bytes as well: with $k$ micro-batches for each step there are $k$ times fewer steps to meet at. But it makes the batch $k$ times larger. Local SGD keeps the batch and the number of steps.
#
# What it does **not** save is memory: the whole model stays on every rank. (DDP even takes more than one device alone. Its buckets are a second copy of the gradients, unless you ask for `gradient_as_bucket_view=True`.)
#
# ### Exercise: count without running
#
# *Difficulty* ** · *6 minutes* · *Why*: whether a training fits a network is decided before it is started.
#
# Write `communication(model, micro_batches, devices, accumulation_steps, averaging_period=None)`. It returns two whole numbers for **one rank** and the whole training: how many all-reduces, and the payload that it hands to them, in bytes.
#
# - `micro_batches` counts those of all `devices` together, and fills whole windows everywhere.
# - `averaging_period=None`: at every optimizer step the gradients go in one flat tensor. A number $H$: Local SGD; what is averaged goes in one flat tensor after every $H$ steps, and after the last one.
# - Only what training changes is sent: no frozen parameters, no buffers. Weights need not have 4 bytes (`element_size()`).


# %% exercise="communication" points=3
def communication(model, micro_batches, devices, accumulation_steps, averaging_period=None):
    """All-reduces and payload bytes of one rank in a whole training, as two whole numbers."""
    # BEGIN SOLUTION
    steps = micro_batches // (devices * accumulation_steps)
    times = steps if averaging_period is None else -(-steps // averaging_period)
    payload = sum(
        parameter.numel() * parameter.element_size()
        for parameter in model.parameters()
        if parameter.requires_grad
    )
    return times, times * payload
    # END SOLUTION


# %% check="communication"
check(communication)

# %% [markdown]
# ## How seldom may they meet?
#
# That is a question for the loss. BERT would need many minutes here before its loss moves, so a much smaller model stands in: the mean of a review's word vectors, and one linear layer.
# And eight replicas, not two. They are trained one after the other in this process; the arithmetic does not know the difference.

# %%
tokenizer = load_tokenizer()
encoded = dataset(load_reviews(), tokenizer)


class BagOfWords(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.output = (
            nn.EmbeddingBag(len(tokenizer), 16, padding_idx=tokenizer.pad_token_id),
            nn.Linear(16, 2),
        )
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1, generator=generator)

    def forward(self, batch):
        return cross_entropy(self.output(self.words(batch["input_ids"])), batch["labels"])


replicas, steps = 8, 160
held_out, for_training = encoded[-1000:], len(encoded) - 1000
generator = torch.Generator().manual_seed(0)
order = torch.cat([torch.randperm(for_training, generator=generator) for _ in range(3)])
micro_batches = [encoded[part] for part in order.split(16)[: replicas * steps]]
print(f"{replicas} replicas, {steps} steps each, {len(micro_batches)} micro-batches of 16 reviews")


# %%
def loss_curve(period):
    """The loss on held-out reviews at the averages, as (step, loss) pairs."""
    models = [BagOfWords() for _ in range(replicas)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.03) for model in models]
    curve = [(0, models[0](held_out).item())]
    for step in range(1, steps + 1):
        for model, optimizer, batch in zip(
            models, optimizers, micro_batches[replicas * (step - 1) :]
        ):
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        if step % period == 0:
            with torch.no_grad():
                for copies in zip(*(model.parameters() for model in models)):
                    mean = torch.stack(copies).mean(0)
                    for copy in copies:
                        copy.copy_(mean)
            if step % 8 == 0:
                curve.append((step, models[0](held_out).item()))
    return curve


curves = {period: loss_curve(period) for period in (1, 8, 32, 160)}
rows = [(period, steps // period, f"{curve[-1][1]:.2f}") for period, curve in curves.items()]
pd.DataFrame(rows, columns=["H", "averages", "loss at the end"])

# %% [markdown]
# **At equal samples** meeting less often costs something, but surprisingly little. Averaging *once*, at the very end, loses most.
#
# **At equal time** the order may turn round. What is a step's time on a network that you do not have? The bytes are counted; a model of the *link* turns them into time:
#
# - A message takes the link's latency plus its bytes divided by the link's bandwidth.
# - An all-reduce is a ring: $2(N-1)$ messages one after the other, each an $N$-th of the payload.
# - DDP sends a bucket while the backward pass still runs. Local SGD averages after the step, and waits for all of it.
# - All links and all ranks are alike, and nobody else uses the link.
#
# (`ASSUMPTIONS` in `trainlean.costs.links` has all of them in full.)
#
# Here are the same losses over the steps, and over *modelled* time on two links. A step of this model is taken to compute for 5 ms. The time axes grow in powers of ten.

# %%
payload = sum(parameter.nbytes for parameter in BagOfWords().parameters())


def draw_losses(panel, link=None, ranks=replicas):
    for shade, (period, curve) in enumerate(curves.items()):
        unit = 1 if link is None else local_sgd_step_seconds(0.005, payload, ranks, link, period)
        at, loss = zip(*curve[link is not None :])
        panel.plot(
            [unit * step for step in at],
            loss,
            ".-",
            color=plt.colormaps["viridis"](shade / 3.6),
            label=f"H = {period}",
        )
    panel.set_xlabel("optimizer steps" if link is None else "modelled seconds")
    panel.set_title("at equal samples" if link is None else f"{link}", fontsize=10)
    panel.set_xscale("linear" if link is None else "log")
    panel.spines[["top", "right"]].set_visible(False)


figure, panels = plt.subplots(1, 3, figsize=(11, 3.5), sharey=True)
for panel, link in zip(panels, (None, LINKS[1], LINKS[4])):
    draw_losses(panel, link)
panels[0].set_ylabel("loss on held-out reviews")
panels[0].legend(frameon=False, fontsize=9)
figure.tight_layout()
plt.show()

# %% [markdown]
# In the data centre small $H$ are nearly one line and large ones stay behind: there is little waiting to be saved. Between continents it turns round: when $H = 1$ has its first point, $H = 32$ is through.
# Time to a loss is what counts, and it has a best $H$ in the middle: the single average at the end comes early, with a loss that the others beat.
#
# Choose a network of your own. (The number of devices changes the modelled time only. The losses stay those of the eight replicas that were trained.)

# %%
network = LinkControls(lambda: None, devices=replicas, start=LINKS[2])
picture = widgets.Image(format="png", width=620)


def show_losses(change=None):
    figure, panel = plt.subplots(figsize=(6.4, 3.4))
    draw_losses(panel, network.link, network.devices.value)
    panel.set_ylabel("loss on held-out reviews")
    panel.legend(frameon=False, fontsize=9)
    data = io.BytesIO()
    figure.savefig(data, dpi=110, bbox_inches="tight")
    plt.close(figure)
    picture.value = data.getvalue()


for control in network.children:
    control.observe(show_losses, "value")
show_losses()
shown = widgets.VBox([network, picture])._repr_mimebundle_()
still = {
    "image/png": base64.b64encode(picture.value).decode(),
    "text/plain": "The same losses over modelled time, with sliders for the network",
}
display(shown | still, raw=True)  # a page without a kernel shows the still picture

# %% [markdown]
# Now a model that fills a network: BERT-large, one second of computing for each step (an assumption, too), from 8 devices to 4096. The table shows the modelled seconds of *one optimizer step*.

# %%
payload = 4 * 335_143_938  # BERT-large with its classification head
rows = {}
for link in (LINKS[1], LINKS[4]):
    for count in (8, 64, 4096):
        seconds = {"DDP": ddp_step_seconds(1.0, payload, count, link)}
        seconds |= {
            f"H = {period}": local_sgd_step_seconds(1.0, payload, count, link, period)
            for period in (1, 8, 64, 512)
        }
        rows[f"{link.name}, {count:,} devices"] = {
            name: f"{value:,.1f} s" for name, value in seconds.items()
        }
print(f"payload {payload / 2**30:.2f} GiB")
pd.DataFrame(rows).T

# %% [markdown]
# - In a data centre and with few devices, DDP hides most of its sending behind the backward pass. Local SGD cannot, so $H = 1$ is *slower* than DDP there.
# - Between continents meeting at every step is out of the question. Published work takes $H$ in the hundreds: DiLoCo ([arXiv 2311.08105](https://arxiv.org/abs/2311.08105)) trains language models on 8 workers with $H = 500$; it feeds the averaged change to a second optimizer.
# - From 64 to 4096 devices the bytes of a rank hardly grow, the messages do. That is the ring's weak side, and DDP goes around the ring once for each of its buckets.
#
# What the table does not know: with 4096 replicas the loss at equal samples suffers more than with 8.
#
# ## The same weights
#
# The next two notebooks do Local SGD with Accelerate and with the Trainer. All three must end with the same weights. The recipe: the small BERT, the first 64 reviews in their order, micro-batches of 4, two ranks, windows of 2, so 4 optimizer steps on each rank; $H = 3$.

# %%
# %%px
model = small_bert(seed=0)
start = nn.utils.parameters_to_vector(model.parameters()).detach()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
share = batches(load_reviews()[:64], 4, shuffle=False)[rank::world_size]
for step in range(1, 5):
    for batch in share[2 * (step - 1) : 2 * step]:
        (model(**batch).loss / 2).backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 3 or step == 4:
        average_parameters(model)

weights = nn.utils.parameters_to_vector(model.parameters()).detach().double()
print(
    f"sum {weights.sum():.2f}  norm {weights.norm():.4f}  moved by {(weights - start).norm():.4f}"
)

# %% [markdown]
# Sum, length and distance moved are the fingerprint. Keep it for the next notebooks.
#
# ## Memory, speed and communication
#
# Here are the runs that you measured. The explorer takes their counted bytes and models the time of a step. Choose devices and a link, or move latency and bandwidth yourself.
# From which link on is DDP good enough? And what does $H$ change in memory?

# %%
explorer(runs, budget=18 * 2**20)

# %% [markdown]
# ## A rank that never arrives
#
# A collective ends when *all* ranks have called it. So all must call it equally often. Give rank 1 one micro-batch less, which happens as soon as the data does not divide evenly:

# %% tags=["raises-exception"]
# %%px
model = small_bert(seed=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
train_local_to_the_end(model, optimizer, bert_loss, mine[: 3 - rank], 1)

# %% [markdown]
# In a script of your own, rank 0 would now wait for half an hour, the usual time-out of gloo (which carries the messages between processors). Here the wait was ended: the sentence names the rank that did not come, and the line where the other one waited.
# (A rank that is merely slow is waited for longer. `start_devices(2, timeout=5)` would give it five seconds.)
#
# With $H = 2$ and four against three micro-batches nothing would have hung. Both ranks would have made two averages, rank 0 after steps 2 and 4, rank 1 after steps 2 and 3, and nobody would ever have noticed. Make the number of steps equal *before* you begin.
#
# The old devices are gone. The next ones start like the first:

# %%
devices = start_devices(2)

# %%
# %%px
print(f"rank {rank} of {world_size} is back")

# %%
stop_devices()

# %% [markdown]
# ## What to keep
#
# - Local SGD: every rank trains alone for $H$ optimizer *steps*, then all take the mean of their *parameters*; and once more at the end.
# - The bytes of a step fall with $H$; memory does not. The latency of many messages falls, too.
# - With $H = 1$ it is DDP for SGD, momentum and weight decay, not for clipping or AdamW. Optimizer state and buffers are not averaged.
# - torch's averager (2.13) begins after the first step and forgets the last average.
# - Equal starts, different data, equally many steps on every rank.
#
# Next: [Local SGD with Accelerate](2_accelerator.ipynb), where a context manager does this, and counts what you may not expect.
