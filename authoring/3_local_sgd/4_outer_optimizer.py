# %% [markdown]
# # Local SGD: the outer optimizer
#
# **You will be able to** write DiLoCo, which hands the ranks' common change to a second optimizer; send that change in fewer bits without losing what was rounded off; and choose how seldom to meet on a given link.
#
# **Minutes**: 90, with a place to stop · **Before this**: [Local SGD: averages and bytes](1b_averages_and_bytes.ipynb). This lesson is optional.

# %% [markdown]
# ## A question
#
# Local SGD lets every rank train alone for $H$ steps, and then all take the mean of their parameters. With a large $H$ they meet seldom, and at equal samples the loss mostly ended higher.
#
# In the $H$ steps each rank has moved to a place of its own. The mean of these moves is a direction, as a gradient is. Local SGD goes exactly to its end. Must it? What if this direction is given to an *optimizer*, with a learning rate and momentum of its own?

# %%
import math
import os

import pandas as pd
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from trainlean import (
    LINKS,
    all_reduce_seconds,
    check,
    communication_table,
    dataset,
    ddp_step_seconds,
    guess,
    hint,
    load_reviews,
    load_tokenizer,
    local_sgd_step_seconds,
    plot_loss_against_bytes,
    recall,
    reveal,
    start_devices,
    stop_devices,
    put_in_order,
)

# %%
recall("3_local_sgd/4_outer_optimizer")

# %% [markdown]
# ## Two optimizers
#
# The method is DiLoCo, *distributed low-communication training* ([arXiv 2311.08105](https://arxiv.org/abs/2311.08105)):
#
# 1. All ranks hold the same weights. Each keeps a copy of them: the **start** of this round.
# 2. Each rank trains alone for $H$ steps with its **inner optimizer**, there AdamW.
# 3. The ranks average how far they have come, and go back to the start.
# 4. An **outer optimizer** makes one step from the start, with the average in place of the gradient. That is the start of the next round.
#
# The average of step 3 is called the *outer gradient*, or *pseudo-gradient*. Its sign deserves a moment. Here is one weight and two ranks:

# %%
start = torch.tensor([1.0])
ends = torch.tensor([1.2, 1.6])  # where the two ranks have come after H steps
outer = torch.optim.SGD([start], lr=1.0)

# %% [markdown]
# **Predict.** The weight began at 1.0, and both ranks say that it should be larger. Somebody takes the mean change, `(ends - start).mean()`, for the gradient and calls `outer.step()`. Where does the weight land?

# %%
# BEGIN SOLUTION
my_guess = 0.6
# END SOLUTION
guess("weight after that outer step", my_guess, "units")

# %%
start.fill_(1.0)  # however often this cell is run
start.grad = (ends - start).mean().view(1)
outer.step()
reveal("weight after that outer step", start.item(), "units")

# %% [markdown]
# An optimizer **subtracts** its gradient. A gradient points to where the loss *grows*, so the outer gradient must point back: from where the ranks have come to where they began, *start minus end*. With the other sign the outer step went as far in the wrong direction here.
#
# ### Exercise: the outer step
#
# *Difficulty* *** · *15 minutes* · *Why*: this step is all that DiLoCo adds to Local SGD.
#
# Write `train_diloco(model, inner, outer, loss_of, micro_batches, local_steps)`. Every rank calls it. `inner` and `outer` are both optimizers of torch over `model.parameters()`, `micro_batches` is this rank's own list; all ranks have equally many, and begin with equal weights and without gradients.
#
# - Each micro-batch makes one step of `inner`, with its own gradient.
# - After every `local_steps` of these, and after the last one, comes an outer step: every rank calls `outer.step()` once, **from the weights with which this round began**, and the gradient of each trained parameter is start minus end, averaged over the ranks (also of one that the last micro-batch did not use).
# - The weights after the outer step are the start of the next round, on all ranks.
# - In between the ranks send nothing, and wait for nobody. Afterwards the optimizers send nothing: leave no hook on them.
# - An outer gradient must not be left for the inner optimizer. What is frozen stays as it is, and so does `micro_batches`.


# %%
put_in_order("train_diloco")


# %% exercise="train_diloco" points=4
def train_diloco(model, inner, outer, loss_of, micro_batches, local_steps):
    """Train this rank alone, with one outer step together after every local_steps steps."""
    # BEGIN SOLUTION
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    start = [parameter.detach().clone() for parameter in trained]
    for step, batch in enumerate(micro_batches, start=1):
        inner.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        if step % local_steps == 0 or step == len(micro_batches):
            for parameter, before in zip(trained, start):
                parameter.grad = before - parameter.detach()
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
                parameter.data.copy_(before)
            outer.step()
            outer.zero_grad()
            start = [parameter.detach().clone() for parameter in trained]
    # END SOLUTION


# %% check="train_diloco"
check(train_diloco)

# %% [markdown]
# `hint(train_diloco)` helps on request.
#
# ## On two ranks and on four
#
# Now the same without an optimizer of torch, to see what the outer optimizer does: the weights in one flat vector, and *Nesterov momentum* by hand, as `torch.optim.SGD(..., nesterov=True)` has it: a velocity adds up the gradients of all rounds, older ones weaker, and the step is the gradient plus the momentum's share of the velocity. Four real processes, in a group of two and in one of four; 64-bit numbers, so that rounding plays no part. (`vector_to_parameters` makes the parameters *views* of the vector. Without `.clone()` the inner steps would change the start of the round as well.)

# %%
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # on the CPU, on machines with several GPUs too
devices = start_devices(4)

# %%
# %%px
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from trainlean import Meter


def flat_weights(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().clone()


def mean_over(tensor, group):
    dist.all_reduce(tensor, group=group)
    return tensor / dist.get_world_size(group)


def local_sgd(inner, local_steps):
    def after(step, model, group, state):
        if step % local_steps == 0:
            mean = mean_over(flat_weights(model), group)
            nn.utils.vector_to_parameters(mean, model.parameters())

    return inner, after


def diloco(inner, local_steps, outer_lr, momentum):
    def after(step, model, group, state):
        if step % local_steps == 0:
            start = state["common"]
            gradient = mean_over(start - flat_weights(model), group)
            state["velocity"] = momentum * state.get("velocity", 0) + gradient
            state["common"] = start - outer_lr * (gradient + momentum * state["velocity"])
            nn.utils.vector_to_parameters(state["common"].clone(), model.parameters())

    return inner, after


def toy(group, dtype=torch.float64, width=8):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1)).to(dtype)
    generator = torch.Generator().manual_seed(dist.get_rank(group))
    return model, [torch.randn(6, 5, generator=generator).to(dtype) for _ in range(12)]


def trained(method, group, **how):
    (make_inner, after), (model, batches) = method, toy(group, **how)
    inner, state = make_inner(model.parameters()), {"common": flat_weights(model)}
    for step, batch in enumerate(batches, start=1):
        nn.functional.mse_loss(model(batch[:, :4]), batch[:, 4:]).backward()
        inner.step()
        inner.zero_grad()
        after(step, model, group, state)
    return flat_weights(model)


# %% [markdown]
# **Predict.** The inner optimizer is AdamW, $H = 3$. The outer one has learning rate 1 and no momentum. By how much do the weights differ from those of Local SGD?

# %%
# BEGIN SOLUTION
my_guess = 0
# END SOLUTION
guess("DiLoCo (outer learning rate 1, no momentum) against Local SGD", my_guess, "apart")


# %%
# %%px
def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.03)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


pairs = {
    "outer lr 1, no momentum, against Local SGD": (diloco(adamw, 3, 1.0, 0.0), local_sgd(adamw, 3)),
    "outer lr 0.7, momentum 0.9, against Local SGD": (
        diloco(adamw, 3, 0.7, 0.9),
        local_sgd(adamw, 3),
    ),
}
apart = {}
for members in ([0, 1], [0, 1, 2, 3]):
    group = dist.new_group(members)
    if rank in members:
        for name, (one, other) in pairs.items():
            difference = (trained(one, group) - trained(other, group)).abs().max().item()
            apart[name, f"{len(members)} ranks"] = difference

# %%
apart = devices.pull("apart")[0]
exact = [difference for (name, _), difference in apart.items() if "no momentum" in name]
reveal(
    "DiLoCo (outer learning rate 1, no momentum) against Local SGD",
    0 if max(exact) < 1e-12 else max(exact),
    "apart",
)
shown = {place: "0" if value < 1e-12 else f"{value:.3f}" for place, value in apart.items()}
pd.Series(shown).unstack(sort=False).rename_axis("largest difference between the weights")

# %% [markdown]
# Exactly Local SGD again: start minus (start minus mean) is the mean. So whatever DiLoCo does better or worse comes from two numbers, the outer learning rate and the momentum.
#
# What does the momentum do? Take the other end: $H = 1$, and an inner SGD with learning rate 0.1. Then start minus end is 0.1 times the gradient, and the outer optimizer sees every step. DiLoCo with outer learning rate 0.7 and momentum 0.9 should be data-parallel SGD with Nesterov momentum and the learning rate 0.07:


# %%
# %%px
def train_every_step(group):
    model, batches = toy(group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.7 * 0.1, momentum=0.9, nesterov=True)
    for batch in batches:
        nn.functional.mse_loss(model(batch[:, :4]), batch[:, 4:]).backward()
        for parameter in model.parameters():
            parameter.grad = mean_over(parameter.grad, group)
        optimizer.step()
        optimizer.zero_grad()
    return flat_weights(model)


everybody = dist.group.WORLD
difference = (trained(diloco(sgd, 1, 0.7, 0.9), everybody) - train_every_step(everybody)).abs()
if rank == 0:
    print("weights differ < 1e-12:", bool(difference.max() < 1e-12))

# %% [markdown]
# The outer momentum remembers the direction of earlier *rounds*, as momentum in ordinary training remembers earlier steps. With these two numbers a direction that the ranks take in every round is followed further than they went.
#
# What it costs: each rank keeps two more copies of the weights, the start and the velocity. Both are needed only once a round, so they may lie in the processor's memory.
#
# ## Bytes and time
#
# What goes over the network is one flat tensor in each round, as in Local SGD. Count it, on the four ranks, for 12 steps of a wider toy in 32-bit numbers:


# %%
# %%px
wide = {"dtype": torch.float32, "width": 256}


def counted(train):
    with Meter() as meter:
        train()
    return {"collectives": meter.collectives, "optimizer_steps": 12}


def train_ddp(hook=None):
    model, batches = toy(everybody, **wide)
    wrapped = DistributedDataParallel(model)
    if hook:
        wrapped.register_comm_hook(*hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Meter() as meter:
        for batch in batches:
            nn.functional.mse_loss(wrapped(batch[:, :4]), batch[:, 4:]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return {"collectives": meter.collectives, "optimizer_steps": meter.optimizer_steps}


counts = {
    "DDP": train_ddp(),
    "Local SGD, H = 6": counted(lambda: trained(local_sgd(sgd, 6), everybody, **wide)),
    "DiLoCo, H = 6": counted(lambda: trained(diloco(sgd, 6, 0.7, 0.9), everybody, **wide)),
}

# %%
from types import SimpleNamespace


def as_runs(counts):
    return {name: SimpleNamespace(**count) for name, count in counts.items()}


communication_table(as_runs(devices.pull("counts")[0]))

# %% [markdown]
# DiLoCo sends as many bytes as Local SGD with the same $H$. What it may win is a *larger* $H$ at the same loss. So the question is what $H$ is worth, on which link.
#
# Take a decoder with a billion weights, eight devices, 32-bit numbers, and one second of computing for each step (an assumption). With the link model of [averages and bytes](1b_averages_and_bytes.ipynb), a step takes this many seconds:

# %%
payload, compute, world_size = 4 * 10**9, 1.0, 8
seconds = {
    link.name: {"DDP": ddp_step_seconds(compute, payload, world_size, link)}
    | {
        f"H = {H}": local_sgd_step_seconds(compute, payload, world_size, link, H)
        for H in (10, 100, 500)
    }
    for link in LINKS
}
pd.DataFrame(seconds).T.map("{:,.2f} s".format).rename_axis("modelled seconds of a step")

# %% [markdown]
# By this model there is nothing to win within a server. In the data centre the smallest $H$ takes away most of the waiting; over the last two links even $H = 500$ leaves the devices waiting for more than half of the time.
#
# ### Exercise: choose H for a link
#
# *Difficulty* ** · *8 minutes* · *Why*: a larger $H$ than the link needs saves little more time, and may raise the loss.
#
# Write `choose_local_steps(compute, payload, world_size, link, share)`. It returns the smallest whole number $H$ with which communication takes at most the `share` (between 0 and 1) of **all the time** of a run of Local SGD or DiLoCo: computing and averages together.
#
# - `compute` is the seconds of one step's computation, `payload` the bytes that are averaged after every $H$ steps, in one all-reduce that everybody waits for.
# - `link` has a `latency` in seconds and a `bandwidth` in bytes/second. `all_reduce_seconds(payload, world_size, link)` of `trainlean` gives the seconds of an all-reduce; or write the ring yourself.
# - $H$ is at least 1.


# %% exercise="choose_local_steps" points=2
def choose_local_steps(compute, payload, world_size, link, share):
    """The smallest H with which the averages take at most `share` of the time."""
    # BEGIN SOLUTION
    average = all_reduce_seconds(payload, world_size, link)
    return max(1, math.ceil(average * (1 - share) / (share * compute)))
    # END SOLUTION


# %% check="choose_local_steps"
check(choose_local_steps)

# %% [markdown]
# **A good place to stop for today.**
#
# ## Fewer bits
#
# A change of the weights need not be sent in 32 bits. *Quantised* to 8 bits, each number becomes a whole number from -127 to 127, its *code*, times one scale for all of them: the largest absolute value divided by 127. That is a quarter of the bytes. What is rounded off is at most half a scale for each number.
#
# Sums of such codes need not fit into 8 bits, and every rank has its own scale. So a plain all-reduce cannot add them up. A way around: every rank sends its codes and its scale to all (an *all-gather*), and each takes the mean itself.


# %%
# %%px
def mean_of_codes(change, group):
    """The ranks' mean change, sent in 8 bits."""
    largest = change.abs().max()
    codes = (change / largest * 127).round().to(torch.int8)
    everybodys = [torch.empty_like(codes) for _ in range(world_size)]
    scales = [torch.empty_like(largest) for _ in range(world_size)]
    dist.all_gather(everybodys, codes, group=group)
    dist.all_gather(scales, largest / 127, group=group)
    return sum(one * scale for one, scale in zip(everybodys, scales)) / world_size


generator = torch.Generator().manual_seed(rank)
change = torch.randn(1000, generator=generator)
with Meter() as in_32_bits:
    exact = mean_over(change.clone(), everybody)
with Meter() as in_8_bits:
    rounded = mean_of_codes(change, everybody)
counts = {
    name: {"collectives": meter.collectives, "optimizer_steps": 0}
    for name, meter in {"32 bits": in_32_bits, "8 bits": in_8_bits}.items()
}
if rank == 0:
    off = ((rounded - exact).norm() / exact.norm()).item()
    print(f"off by {off:.1%} of the mean's length")

# %%
communication_table(as_runs(devices.pull("counts")[0])).drop(
    columns=["optimizer steps", "bytes per step"]
)

# %% [markdown]
# The payload is a quarter, but look at the bytes *sent*. In a ring all-reduce a rank sends $2(N-1)/N$ payloads. In an all-gather it passes on everybody's codes: $N-1$ payloads, and each is a quarter as large.
#
# **Predict.** From how many ranks on does the all-gather in 8 bits send no fewer bytes than the all-reduce in 32 bits?

# %%
# BEGIN SOLUTION
my_guess = 8
# END SOLUTION
guess("ranks from which 8 bits save nothing", my_guess, "ranks")

# %%
ranks = 2
while (ranks - 1) / 4 < 2 * (ranks - 1) / ranks:
    ranks += 1
reveal("ranks from which 8 bits save nothing", ranks, "ranks", "predicted")

# %% [markdown]
# With more ranks the sum itself may travel in 8 bits: each rank is sent everybody's codes of one $N$-th of the numbers, adds them up, quantises the sum again, and sends that to all. Then the quarter holds for any number of ranks, at the price of a second rounding.
#
# ### What is rounded off
#
# The scale is set by the largest number. A small number, less than half a scale, becomes 0. If it is small in *every* round, it is never sent: the ranks want to move that weight, round after round, and it stays.
#
# A cure is **error feedback**: keep what was rounded off, and add it to the next change before that is quantised. What is too small to be sent waits until it is large enough.
#
# Here is one number that wants to move by 0.3 in each of ten rounds, while another one moves by 100:

# %%
rows = {}
for feedback in (False, True):
    error, received = torch.zeros(2), torch.zeros(2)
    for _ in range(10):
        wanted = torch.tensor([0.3, 100.0]) + (error if feedback else 0)
        scale = wanted.abs().max() / 127
        arrived = (wanted / scale).round() * scale
        error = wanted - arrived
        received += arrived
    rows["with error feedback" if feedback else "without"] = [f"{one:.2f}" for one in received]
pd.DataFrame(rows, index=["wants 10 times 0.3", "wants 10 times 100"]).T.rename_axis("received")

# %% [markdown]
# What is missing now comes later, and what is too much now is taken back. The sum of what was received differs from the sum of what was wanted by the error that is kept at the moment, however many rounds there are.
#
# ### Exercise: quantise with error feedback
#
# *Difficulty* ** · *10 minutes* · *Why*: these few lines are all that the method adds to a round.
#
# Write `quantise(change, error)`, one rank's part of a round. Both are tensors of the same shape, in float32 or float64; `error` is what earlier rounds have left. Return three things:
#
# - the codes that are sent: a tensor of `torch.int8`, of the same shape, from -127 to 127, rounded to the *nearest*,
# - the scale, a number: receivers multiply the codes by it. It is the largest absolute value of what is to be sent, divided by 127,
# - the error for the next round: what receivers are missing now, in no fewer bits than `change` has.
#
# Where there is nothing to send, all codes and errors are 0 (and none is `nan`); the scale does not matter then. `change` and `error` stay as they are.


# %% exercise="quantise" points=3
def quantise(change, error):
    """Codes of 8 bits, their scale, and the error that is left for the next round."""
    # BEGIN SOLUTION
    wanted = change + error
    scale = wanted.abs().max().item() / 127 or 1.0  # 1.0 where there is nothing to send
    codes = (wanted / scale).round().to(torch.int8)
    return codes, scale, wanted - codes * scale
    # END SOLUTION


# %% check="quantise"
check(quantise)

# %% [markdown]
# ## Loss against bytes
#
# Is any of this worth it? That is a question for the loss, which depends on chance: on the start, and on the order of the reviews. So every training runs with **five seeds**, and a difference is only believed where it is larger than their spread (the number after ±: the standard deviation over the seeds).
#
# The model is a small one again. Its input is 300 numbers for each review: the shares of the 300 most common tokens. A layer of 8 units follows. There are four replicas of it for each of five seeds. They are trained *at once*: `local` has one row of weights for each seed and replica, and an operation works on all of them. AdamW treats each number for itself, so this is the same as twenty training runs.

# %%
tokenizer = load_tokenizer()
encoded = dataset(load_reviews(), tokenizer)[:]
ids, labels = encoded["input_ids"], encoded["labels"]
words = torch.zeros(len(ids), len(tokenizer)).scatter_add_(
    1, ids, (ids != tokenizer.pad_token_id).float()
)
words = words[:, words.sum(0).topk(300).indices]
words /= words.sum(1, keepdim=True).clamp(min=1)

seeds, replicas, steps, hidden = 5, 4, 240, 8
numbers = 300 * hidden + hidden + 2 * hidden
generators = [torch.Generator().manual_seed(seed) for seed in range(seeds)]
begin = torch.stack([0.3 * torch.randn(1, numbers, generator=one) for one in generators])
order = torch.stack(
    [torch.randint(len(words) - 1000, (steps, replicas, 16), generator=one) for one in generators]
)


def losses(weights, rows):
    """The mean loss of each row of weights on its own reviews."""
    first, bias, last = weights.split([300 * hidden, hidden, 2 * hidden], -1)
    inside = torch.tanh(words[rows] @ first.unflatten(-1, (300, hidden)) + bias.unsqueeze(-2))
    scores = inside @ last.unflatten(-1, (hidden, 2))
    return (
        F.cross_entropy(scores.flatten(0, -2), labels[rows].flatten(), reduction="none")
        .unflatten(0, rows.shape)
        .mean(-1)
    )


print(f"{seeds} seeds, {replicas} replicas, {steps} steps each, {numbers:,} weights")

# %% [markdown]
# The training is DiLoCo by hand as above, and has everything in it: $H$ (`None`: gradients are averaged in every step, as DDP does), the outer optimizer, and a function that makes of a change what is received. (`parts` and `late` are for a section below, on fragments. Take an $H$ that divides the steps: there is no last, shorter round here.)


# %%
def received_whole(change, error):
    return change, error


def in_bits(bits, feedback):
    """A function that makes of a change what is received of it in so many bits."""
    largest_code = 2 ** (bits - 1) - 1

    def received(change, error):
        wanted = change + error
        scale = wanted.abs().amax(-1, keepdim=True) / largest_code
        arrives = (wanted / scale).round() * scale
        return arrives, (wanted - arrives) * feedback

    return received


def train(lr, H=None, outer_lr=1.0, momentum=0.0, received=received_whole, parts=1, late=0):
    """Losses on held-out reviews at the end, one for each seed."""
    common = begin.clone()
    local = nn.Parameter(common.repeat(1, replicas, 1))  # [seeds, replicas, numbers]
    optimizer = torch.optim.AdamW([local], lr=lr, fused=True)
    velocity, error = torch.zeros_like(common), torch.zeros_like(local)
    under_way = {}
    for step in range(1, steps + 1):
        losses(local, order[:, step - 1]).sum().backward()
        if H is None:
            local.grad.copy_(local.grad.mean(1, keepdim=True).expand_as(local))
        optimizer.step()
        optimizer.zero_grad()
        if H is None:
            continue
        with torch.no_grad():
            if step % (H // parts) == 0:  # one part sets off
                part = torch.arange(numbers).chunk(parts)[step // (H // parts) % parts]
                part = slice(part[0], part[-1] + 1)
                change = common[..., part] - local[..., part]
                change, error[..., part] = received(change, error[..., part])
                under_way[step + late] = part, change.mean(1, keepdim=True)
            if step in under_way:  # and arrives
                part, gradient = under_way.pop(step)
                velocity[..., part] = momentum * velocity[..., part] + gradient
                common[..., part] -= outer_lr * (gradient + momentum * velocity[..., part])
                mixed = (local[..., part] + common[..., part]) / 2 if late else common[..., part]
                local[..., part] = mixed.expand_as(local[..., part])
    with torch.no_grad():
        held_out = torch.arange(len(words) - 1000, len(words)).expand(seeds, 1, -1)
        return losses(common if H else local[:, :1], held_out).flatten()


def shown(of_seeds):
    return f"{of_seeds.mean():.3f} ± {of_seeds.std():.3f}"


methods = {
    "DDP": {},
    "Local SGD, H = 12": {"H": 12},
    "DiLoCo, H = 12, outer 0.7, momentum 0.5": {"H": 12, "outer_lr": 0.7, "momentum": 0.5},
    "DiLoCo, H = 12, outer 0.7, momentum 0.9": {"H": 12, "outer_lr": 0.7, "momentum": 0.9},
    "Local SGD, H = 60": {"H": 60},
    "DiLoCo, H = 60, outer 0.7, momentum 0.5": {"H": 60, "outer_lr": 0.7, "momentum": 0.5},
    "DiLoCo, H = 60, outer 0.7, momentum 0.9": {"H": 60, "outer_lr": 0.7, "momentum": 0.9},
}
results = {
    (name, lr): train(lr, **how) for name, how in methods.items() for lr in (0.01, 0.03, 0.1)
}
payloads = {name: 4 * numbers * steps // (how.get("H") or 1) for name, how in methods.items()}
table = pd.Series({key: shown(value) for key, value in results.items()}).unstack(sort=False)
table = table.rename(columns="inner learning rate {}".format)
table.insert(0, "payload of a rank", [f"{size:,}" for size in payloads.values()])
table.rename_axis("loss at the end, mean ± spread")

# %% [markdown]
# Read the first column of losses alone, and momentum seems to win: at the same bytes DiLoCo is ahead of Local SGD. Read the row from left to right, and the gain is gone: with a larger *inner* learning rate Local SGD comes to the same place. Is the best of DiLoCo better than the best of Local SGD, seed by seed?

# %%
best = {}
for (name, lr), of_seeds in results.items():
    if name not in best or of_seeds.mean() < best[name][1].mean():
        best[name] = lr, of_seeds
rows = {}
for name in (name for name in methods if name.startswith("DiLoCo")):
    difference = best[name][1] - best[f"Local SGD, H = {methods[name]['H']}"][1]
    rows[name] = {
        "its best inner learning rate": best[name][0],
        "loss minus Local SGD's": f"{difference.mean():+.3f} ± {difference.std():.3f}",
        "seeds in which it is lower": f"{int((difference < 0).sum())} of {seeds}",
    }
pd.DataFrame(rows).T

# %% [markdown]
# With either $H$, no difference is larger than its spread, before rounding.
#
# **This is a toy, and proves nothing for large models.** It has 240 steps and 2,424 weights. What it shows is how to compare: the same bytes, each method with its own learning rate, several seeds.
#
# ### Fewer bits, the same loss?
#
# Local SGD with $H = 12$ and learning rate 0.03, its changes sent in 8, 4 and 2 bits (in 2 bits: -1, 0 and 1), without error feedback and with it:

# %%
whole = payloads["Local SGD, H = 12"]
in_fewer_bits = {
    how: {
        f"{bits} bits": (whole * bits // 32, train(0.03, H=12, received=in_bits(bits, feedback)))
        for bits in (8, 4, 2)
    }
    for how, feedback in {"without error feedback": False, "with error feedback": True}.items()
}
rows = {"32 bits": {"payload of a rank": f"{whole:,}"}}
rows["32 bits"]["without error feedback"] = shown(results["Local SGD, H = 12", 0.03])
for how, points in in_fewer_bits.items():
    for bits, (size, of_seeds) in points.items():
        rows.setdefault(bits, {"payload of a rank": f"{size:,}"})[how] = shown(of_seeds)
pd.DataFrame(rows).T.fillna("–")

# %% [markdown]
# Here 8 bits cost nothing, with or without feedback, and 4 bits do not either. In 2 bits every change below half of the largest is rounded to nothing; there error feedback brings back most of what was lost.
#
# Everything on one plane: each method at the best of the inner learning rates that it was given above, with the spread of its seeds, over the bytes that a rank hands over. (What has equally many bytes stands side by side.)

# %%
methods_drawn = {"DDP": {"every step": (payloads["DDP"], best["DDP"][1].tolist())}}
for method in ("Local SGD", "DiLoCo, outer 0.7, momentum 0.5", "DiLoCo, outer 0.7, momentum 0.9"):
    kind, *outer = method.split(", ", 1)
    names = {H: ", ".join([kind, H, *outer]) for H in ("H = 60", "H = 12")}
    methods_drawn[method] = {H: (payloads[one], best[one][1].tolist()) for H, one in names.items()}
for how, points in in_fewer_bits.items():
    methods_drawn[f"Local SGD, H = 12,\n{how}"] = {
        bits: (size, of_seeds.tolist()) for bits, (size, of_seeds) in points.items()
    }
plot_loss_against_bytes(methods_drawn)

# %% [markdown]
# From right to left the bytes become fewer by more than two powers of ten, and for most methods the loss hardly rises above the spread of the seeds. One point stands out: 2 bits without feedback. (Momentum 0.9 with $H = 60$ lies higher, too, but its seeds are far apart.)
#
# ## Fragments, sent in turn and while computing
#
# So far everybody stops once a round, and the whole change goes over the link at once. *Streaming DiLoCo* ([arXiv 2501.18512](https://arxiv.org/abs/2501.18512)) does two things about it:
#
# - **Fragments**: the weights are divided into $P$ parts, for instance layers. Every $H/P$ steps one part is sent. The bytes of a round are the same, the most at once is a $P$-th.
# - **Overlap**: nobody waits. The part is on its way while the ranks go on for $\tau$ steps, and what arrives is mixed with what each rank has learned meanwhile (half and half, here).
#
# On the four ranks, with the toy from above: `async_op=True` starts an all-reduce and returns at once, `wait()` ends, here with gloo, when the sum is there. A part sets off $\tau$ steps before its turn is over, so that nothing is under way at the end; $\tau$ is less than $H/P$.


# %%
# %%px
def in_fragments(inner, local_steps, outer_lr, momentum, parts, late):
    every = local_steps // parts

    def after(step, model, group, state):
        weights, common = flat_weights(model), state["common"]
        velocity = state.setdefault("velocity", torch.zeros_like(common))
        if (step + late) % every == 0:  # one part sets off
            part = torch.arange(len(weights)).chunk(parts)[(step + late) // every % parts]
            gradient = common[part] - weights[part]
            work = dist.all_reduce(gradient, group=group, async_op=True)
            state["under way"] = part, gradient, work
        if step % every == 0:  # and arrives
            part, gradient, work = state.pop("under way")
            work.wait()
            gradient /= dist.get_world_size(group)
            velocity[part] = momentum * velocity[part] + gradient
            common[part] -= outer_lr * (gradient + momentum * velocity[part])
            weights[part] = (weights[part] + common[part]) / 2 if late else common[part]
            nn.utils.vector_to_parameters(weights, model.parameters())

    return inner, after


whole = trained(in_fragments(sgd, 6, 0.7, 0.9, parts=1, late=0), everybody)
difference = (whole - trained(diloco(sgd, 6, 0.7, 0.9), everybody)).abs()
counts = {
    f"DiLoCo, H = 6, P = {parts}, τ = {late}": counted(
        lambda: trained(in_fragments(sgd, 6, 0.7, 0.9, parts, late), everybody, **wide)
    )
    for parts, late in ((1, 0), (2, 0), (2, 1))
}
if rank == 0:
    print("P = 1, τ = 0: weights differ from DiLoCo's < 1e-12:", bool(difference.max() < 1e-12))

# %%
communication_table(as_runs(devices.pull("counts")[0]))

# %% [markdown]
# The same bytes, in calls of half the size. With $\tau = 1$ the ranks compute a step while a part is on its way.
#
# In the link model a part makes a rank wait only for what is left of its all-reduce after $\tau$ steps of computing. The decoder with a billion weights again, $H = 100$:

# %%
H, rows = 100, {}
for link in LINKS[1:]:
    row = {}
    for parts, late in ((1, 0), (1, 4), (20, 0), (20, 4)):
        average = all_reduce_seconds(payload / parts, world_size, link)
        waiting = max(0, average - late * compute)
        row[f"P = {parts}, τ = {late}"] = f"{compute + parts * waiting / H:,.2f} s"
    rows[link.name] = row
pd.DataFrame(rows).T.rename_axis("modelled seconds of a step, H = 100")

# %% [markdown]
# Over the slower links fragments alone win nothing in time, and overlap alone little: the whole change does not arrive in four steps. Together they take away all of the waiting where a part arrives within $\tau$ steps, as in the office. Over the last two links even a part takes longer, and most of the waiting remains.
#
# And the loss? Four fragments, without delay and two steps late (what is still under way at the end is thrown away):

# %%
at_once = results["Local SGD, H = 12", 0.03]
pd.Series(
    {
        "all at once": shown(at_once),
        "4 fragments in turn": shown(train(0.03, H=12, parts=4)),
        "4 fragments, 2 steps late": shown(train(0.03, H=12, parts=4, late=2)),
    },
    name="loss at the end",
).to_frame()

# %% [markdown]
# ## torch's own pieces
#
# | by hand | in torch 2.13 |
# |---|---|
# | Local SGD | `PeriodicModelAverager`, `PostLocalSGDOptimizer` (in [averages and bytes](1b_averages_and_bytes.ipynb)), `HierarchicalModelAverager` for several periods in several groups |
# | fewer bytes | the communication hooks of DDP: `powerSGD_hook`, with error feedback; `default_hooks.fp16_compress_hook`, without |
#
# A *communication hook* is a function that DDP calls with each bucket of gradients in place of its all-reduce. PowerSGD ([arXiv 1905.13727](https://arxiv.org/abs/1905.13727)) sends two thin matrices in place of one of gradients, here where they are less than half as large. Their product stands for it, and error feedback is switched on (`use_error_feedback=True`). It meets in every step. Here is the wide toy under DDP with it, and what torch counts of it:

# %%
# %%px
state = powerSGD_hook.PowerSGDState(
    None, matrix_approximation_rank=1, start_powerSGD_iter=2, use_error_feedback=True
)
train_ddp((state, powerSGD_hook.powerSGD_hook))
_, whole, sent = state.compression_stats()
if rank == 0:
    print(f"10 of 12 steps compressed: {4 * sent:,} bytes handed over in place of {4 * whole:,}")

# %% [markdown]
# The first two steps go whole (`start_powerSGD_iter`).
#
# An outer step is in [torchft](https://github.com/meta-pytorch/torchft), not installed here: `torchft.local_sgd.DiLoCo`.
#
# ## What was published for large models
#
# None of this was measured here.
#
# | source | what it reports |
# |---|---|
# | DiLoCo, [arXiv 2311.08105](https://arxiv.org/abs/2311.08105) (2023) | language models on C4, 8 workers: "performs as well as fully synchronous optimization while communicating 500 times less" |
# | OpenDiLoCo, [arXiv 2407.07852](https://arxiv.org/abs/2407.07852) (2024) | a replication on two continents with 90 to 95 % of the time spent computing; changes sent in 16 bits without loss of quality |
# | INTELLECT-1, [arXiv 2412.01152](https://arxiv.org/abs/2412.01152) (2024) | 10 billion weights, 10^12 tokens, up to 14 nodes on 3 continents; an all-reduce in 8 bits; 400 times less to send than data-parallel training |
# | Streaming DiLoCo, [arXiv 2501.18512](https://arxiv.org/abs/2501.18512) (2025) | fragments, overlap, 4 bits: similar quality, two orders of magnitude less bandwidth |
# | Scaling laws for DiLoCo, [arXiv 2503.09799](https://arxiv.org/abs/2503.09799) (2025) | models of 35 million to 2.4 billion weights: "when well-tuned, DiLoCo scales better than data-parallel training with model size, and can outperform data-parallel training even at small model sizes" |

# %%
stop_devices()

# %% [markdown]
# ## What to keep
#
# - DiLoCo: $H$ inner steps alone, then one step of an outer optimizer from the start of the round. Its gradient is **start minus end**, averaged over the ranks.
# - With outer learning rate 1 and without momentum it is Local SGD, exactly. With $H = 1$ and SGD inside it is data-parallel SGD with momentum.
# - It sends what Local SGD sends. It costs two more copies of the weights.
# - Choose the smallest $H$ with which the averages take little of the time. 8 bits are a quarter of the payload; error feedback keeps what is rounded off for the next round.
# - Fragments send less at once. Together with overlap they shortened the modelled waiting.
# - Compare methods at equal bytes, each with its own learning rate, over several seeds.
#
# Next: [Sharding](5_sharding.ipynb), where ranks stop keeping everything.
