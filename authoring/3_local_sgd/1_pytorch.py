# %% [markdown]
# # Local SGD in PyTorch
#
# **You will be able to** train on several devices that meet only now and then, count what they hand to each other at every step, and write Local SGD so that they end with one model.
#
# **Minutes**: 50, with a place to stop · **Before this**: [Gradient accumulation with Accelerate](../1_accumulation/2_accelerator.ipynb), where you met ranks and the all-reduce.

# %% [markdown]
# ## A question
#
# Several devices train copies of one model, each on its own share of the data. At every optimizer step they average their gradients, so that the copies stay equal.
# Over a slow network they wait for it.
#
# What happens if each device trains *alone* for a while, and they average only every now and then? Do the copies come back together? And what is lost?

# %%
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from trainlean import (
    check,
    communication_table,
    guess,
    hint,
    plot_drift,
    plot_driver_and_ring,
    plot_ranks,
    recall,
    reveal,
    start_devices,
    put_in_order,
)

# %%
recall("3_local_sgd/1_pytorch")

# %% [markdown]
# Two real processes, in one line. Each is a *rank*; its copy of the model is a *replica*. A cell that begins with `%%px` runs on both ranks, not here. What it defines stays there; `devices.pull("name")` brings the values here, in a list with one for each rank.

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
from trainlean import Meter, RankRecorder, batches, load_reviews, small_bert

print(f"rank {rank} of {world_size}")

# %% [markdown]
# ## Meeting at every step
#
# Ranks talk in *collectives*: calls that every rank makes. The first one here is the **all-reduce**. It ends on no rank before all have called it:

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
# Each loss is a mean over equally many samples. So the mean of the two ranks' gradients is that of one large batch: the micro-batches of both ranks together. This average is what `DistributedDataParallel` (DDP) makes at each step.
# For that it packs many gradients into a few *buckets*, and sends them during the backward pass.
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
# The same gradients, so the same bytes, in a few large calls instead of many small ones.
# DDP's *broadcasts*, in which one rank sends to all, carry no gradients: rank 0 sends the model's *buffers*, tensors that are no parameters, in each forward pass; two more tell how the gradients are packed anew after the first step.
#
# *Messages* and *bytes sent* are what the network would see. They depend on who sends to whom: the table takes a ring (below) for the all-reduce and for the broadcast a tree: each rank that has the tensor hands it on to others.
#
# ### The driver and the ring
#
# The simplest way: one rank, here called the **driver**, receives the gradients of all the others, averages them and sends the mean back. Everything goes through the driver's one line.
#
# In a **ring** every rank sends only to its neighbour. The gradient is cut into as many pieces as there are ranks.
# The first time around the pieces are added up on their way, the second time the finished sums are handed on. Each rank sends $2(N-1)$ messages, each an $N$-th of the gradient.

# %%
plot_driver_and_ring()

# %% [markdown]
# The driver's work grows with the number of ranks. In the ring a rank sends less than two gradients, however many ranks there are.
# But the *number* of messages grows, and each takes at least the time that a signal needs.
#
# ## Not meeting at all
#
# Leave the averaging out. To *see* what happens, take the smallest model again: one weight, which should learn by what number to multiply.
# Rank 0's samples say 1.5, rank 1's say 2.5; all samples together say about 2.
#
# `train_local` averages after every `local_steps` steps. With 100 it never does. `RankRecorder` notes the weight after every optimizer step.


# %%
# %%px
def train_local(model, optimizer, loss_of, micro_batches, local_steps):
    for step, batch in enumerate(micro_batches, start=1):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0:
            for parameter in model.parameters():
                average(parameter.data)


def squared_error(model, batch):
    inputs, targets = batch
    return nn.functional.mse_loss(model(inputs), targets)


inputs = torch.randn(12, 16, 1, generator=torch.Generator().manual_seed(rank))
slopes = [(x, (1.5 + rank) * x) for x in inputs]


# %%
# %%px
def recorded(train, *more, samples=slopes):
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with RankRecorder(watch=lambda: model.weight.item()) as recorder:
        train(model, optimizer, squared_error, samples, *more)
    return recorder.record


alone = recorded(train_local, 100)

# %%
plot_drift(devices.pull("alone"), what="weight", title="Two replicas that never meet")

# %% [markdown]
# Both began at 0. From the first step on they see different samples, so they *drift* apart. You have two models now, each trained on half of the data, and neither has learned what all of it says.
#
# ## Drift and return
#
# Now average after every few steps. What is averaged are not the gradients this time, but the **parameters**. This is **Local SGD**; the number of steps between averages, `local_steps`, is called $H$. Twelve steps, $H = 5$:

# %%
# %%px
local = recorded(train_local, 5)

# %%
plot_drift(
    {"Two replicas that never meet": devices.pull("alone"), "H = 5": devices.pull("local")},
    what="weight",
)

# %% [markdown]
# Beside the picture from above, on its scale. Five steps apart, and back to one point: the mean of the two weights. From there they set off again.
#
# Why does the mean of two models help? With plain SGD each path is a sum of small steps, so the mean of the paths holds the steps of *both* ranks, at half the length: all samples count.
# But each gradient was computed where its own rank stood, not at the mean.
#
# Now look at the right end of the picture. The steps after the last average were never brought together: the ranks end with **two different models**. Whoever saves rank 0's throws away what rank 1 did last.
#
# **Predict.** So that the replicas end equal: how many averages do 12 steps with $H = 5$ need?

# %%
# BEGIN SOLUTION
my_guess = 2
# END SOLUTION
guess("averages for 12 steps with H = 5", my_guess, "averages")

# %% [markdown]
# Here is the loop with its **last average**. It also sends all parameters in one flat tensor: one call instead of one for each parameter tensor.


# %%
# %%px
def average_parameters(model):
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    average(flat)
    nn.utils.vector_to_parameters(flat, model.parameters())


def train_local_to_the_end(model, optimizer, loss_of, micro_batches, local_steps):
    for step, batch in enumerate(micro_batches, start=1):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == len(micro_batches):
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
# Both ranks share this computer, so your percentages depend on what else it is doing. Look at the pattern instead.
# With DDP the ranks meet in *every* step, and whoever is first waits. Local SGD waits only at the averages.
#
# ### Exercise: Local SGD
#
# *Difficulty* *** · *18 minutes* · *Why*: a forgotten last average raises no error, and you save one of several models.
#
# Write `train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps)`. Every rank calls it; `dist.get_rank()` and `dist.get_world_size()` tell who you are, and how many.
#
# - `micro_batches` is the list of *all* ranks' micro-batches. Rank $r$ of $N$ takes number $r$, $r + N$, $r + 2N$ and so on.
# - The models may *begin* with different weights. All must start from those of rank 0, frozen ones too. The collective for that is the *broadcast*: after `dist.broadcast(tensor, src=0)` every rank's tensor holds rank 0's numbers.
# - An optimizer step comes after `accumulation_steps` of the rank's micro-batches, with the gradient of their large batch. `loss_of(model, batch)` is the mean loss of one micro-batch. (Whether a window's micro-batches go backward one by one or together is up to you, here.) `micro_batches` stays as it is.
# - Between averages the ranks send nothing and wait for nobody, not even at a `dist.barrier()`, a collective that carries nothing. After every `local_steps` optimizer *steps*, and after the last one, all hold the mean of their parameters. (If you hook into the optimizer, take the hook off at the end.)
# - **All ranks make the same number of steps.** Micro-batches that do not fill a window on every rank are left out; with none left there is no step and no average.
#
# Write what you need into the cell: what `%%px` cells have defined is known to the ranks of this lesson only, and `check` takes others.


# %%
put_in_order("train_local_sgd")


# %% exercise="train_local_sgd" points=4
def train_local_sgd(model, optimizer, loss_of, micro_batches, accumulation_steps, local_steps):
    """Train this rank alone; average the replicas every local_steps steps and at the end."""
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
        if step % local_steps == 0 or step == steps:
            for parameter in model.parameters():
                dist.all_reduce(parameter.data)
                parameter.data /= world_size
    # END SOLUTION


# %% check="train_local_sgd"
check(train_local_sgd)

# %% [markdown]
# `check` lets two and three ranks train with your function, and compares every gradient and weight on every rank. If a rank would wait forever, `check` says so. `hint(train_local_sgd)` helps on request.
#
# **A good place to stop for today.** The loop is written. What follows is what it must agree with, and what happens when a rank never arrives.
#
# ## The same weights
#
# Later lessons do Local SGD with Accelerate and with the Trainer. All three must end with the same weights. The recipe: the small BERT, the first 64 reviews in their order, micro-batches of 4, two ranks, windows of 2, so 4 optimizer steps on each rank; $H = 3$.

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
print(f"norm {weights.norm():.4f}  moved by {(weights - start).norm():.4f}")

# %% [markdown]
# Length (norm) and distance moved are the fingerprint. Keep it for those lessons.
#
# ## Unequal data, and a rank that never arrives
#
# All ranks must call an all-reduce equally often. Data that does not divide evenly can give them unequal numbers of micro-batches. Give rank 0 four and rank 1 three, with $H = 2$:

# %%
# %%px
uneven = recorded(train_local_to_the_end, 2, samples=slopes[: 4 - rank])
print(
    f"{4 - rank} steps, averages after steps {uneven.averages}, weight {uneven.values[-1][1]:.3f}"
)

# %% [markdown]
# Nothing hangs. Each rank made two averages, but the second one after *different* steps: rank 0's fourth met rank 1's third. Nobody is told.
#
# So make the number of steps equal before you begin. The ranks can agree on the smallest number, with one all-reduce:

# %%
# %%px
number = torch.tensor(4 - rank)
dist.all_reduce(number, op=dist.ReduceOp.MIN)
even = recorded(train_local_to_the_end, 2, samples=slopes[:number])
print(f"{number} steps, averages after steps {even.averages}, weight {even.values[-1][1]:.3f}")

# %% [markdown]
# The price is that rank 0 leaves a micro-batch out.
#
# Now unequal numbers again, with an average after every step. Rank 0's fourth average has no partner:

# %% tags=["raises-exception"]
# %%px
never = recorded(train_local_to_the_end, 1, samples=slopes[: 4 - rank])

# %% [markdown]
# Here the wait was ended by the course's devices: the sentence names the rank that did not come, and the line where the other one waited.
#
# In a script of your own it depends on what the missing rank does instead. Here are two plain processes with *gloo*, a library that carries torch's messages between CPUs. Rank 1 makes one all-reduce less. Once its process ends at once, once it lives on for five seconds:

# %%
folder = Path(tempfile.mkdtemp())
(folder / "two_ranks.py").write_text(
    """
import sys, time
import torch
import torch.distributed as dist

rank, meeting_place, lives_on = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
dist.init_process_group("gloo", init_method=meeting_place, rank=rank, world_size=2)
dist.all_reduce(torch.ones(1))
if rank == 1:  # makes one all-reduce less
    time.sleep(lives_on)
    sys.exit()
start = time.perf_counter()
try:
    dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    print(time.perf_counter() - start, error)
"""
)


def two_ranks(lives_on):
    """Rank 0 and rank 1; rank 1 lives on for some seconds after its last all-reduce."""
    place = (folder / f"place_{lives_on}").as_uri()
    return [
        subprocess.Popen(
            [sys.executable, folder / "two_ranks.py", str(rank), place, str(lives_on)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in (0, 1)
    ]


waited = {}
for lives_on, processes in [(seconds, two_ranks(seconds)) for seconds in (0, 5)]:
    seconds, error = [process.communicate(timeout=100)[0] for process in processes][0].split(" ", 1)
    waited[lives_on] = float(seconds)
    words = re.search("Connection (closed|reset) by peer", error)
    print(f"rank 1 lives on for {lives_on} s; rank 0's error has the words 'by peer':", bool(words))
print("rank 0 waited longer for the rank that lived on:", waited[5] > waited[0] + 1)

# %% [markdown]
# When the other process **ends**, rank 0 fails. Its error says "Connection closed by peer" or "Connection reset by peer". That is not the cause: look into the *other* rank's log.
# While the other process **lives**, rank 0 waits. The default time-out of gloo:

# %%
print(dist.constants.default_pg_timeout)

# %% [markdown]
# (The devices of this lesson have ended. `start_devices(2)` would start new ones, which know nothing of the old ones' variables.)
#
# ## What to keep
#
# - An all-reduce leaves every rank with the sum. DDP takes the mean of the ranks' gradients at every step.
# - In a ring a rank sends less than two gradients, however many ranks there are; the number of messages grows. A driver's work grows with every rank.
# - Local SGD: every rank trains alone for $H$ optimizer *steps*, then all take the mean of their *parameters*; and once more at the end.
# - Equal starts, different data, equally many steps on every rank. An all-reduce ends when all have called it.
#
# Next: [Local SGD: averages and bytes](1b_averages_and_bytes.ipynb). There torch's own averager runs beside your loop, and you count what is sent and say when it pays to meet less often.
