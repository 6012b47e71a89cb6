# %% [markdown]
# # Local SGD: averages and bytes
#
# **You will be able to** use torch's own averager without its surprises, say what an average leaves unequal, count what a training run sends without running it, and say when it pays to meet less often.
#
# **Minutes**: 65, with a place to stop · **Before this**: [Local SGD in PyTorch](1_pytorch.ipynb).

# %% [markdown]
# ## A question
#
# You have written Local SGD by hand: $H$ optimizer steps alone, then the mean of all parameters, and once more at the end. torch has parts for this loop.
#
# Do they train like yours? Does the mean of the *parameters* make the ranks equal in everything? And if $H$ may be chosen freely: how seldom should ranks meet, on which network?

# %%
import os

import pandas as pd
import torch
import torch.distributed as dist
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
    loss_sliders,
    plot_losses,
    recall,
    reveal,
    start_devices,
    stop_devices,
    put_in_order,
)

# %%
recall("3_local_sgd/1b_averages_and_bytes")

# %% [markdown]
# Two ranks again, two real processes on the CPU:

# %%
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # on the CPU, on machines with several GPUs too
devices = start_devices(2)

# %% [markdown]
# And what you have from the previous lesson: an average of tensors, an average of all parameters in one flat tensor, training with DDP, and training that averages every `local_steps` steps and at the end.


# %%
# %%px
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from trainlean import batches, load_reviews, measure, small_bert


def average(tensor):
    dist.all_reduce(tensor)
    tensor /= world_size


def average_parameters(model):
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    average(flat)
    nn.utils.vector_to_parameters(flat, model.parameters())


def train_ddp(model, optimizer, loss_of, micro_batches):
    for batch in micro_batches:
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_local_to_the_end(model, optimizer, loss_of, micro_batches, local_steps):
    for step, batch in enumerate(micro_batches, start=1):
        loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % local_steps == 0 or step == len(micro_batches):
            average_parameters(model)


def bert_loss(model, batch):
    return model(**batch).loss


mine = batches(load_reviews()[:96], 4, shuffle=False)[rank::world_size]
print(f"rank {rank} of {world_size} has {len(mine)} micro-batches")

# %% [markdown]
# ## What torch brings along
#
# `PeriodicModelAverager` counts and averages, and `PostLocalSGDOptimizer` calls it after each step. Eight steps, period 4. We ask after every step how far the replicas are apart:

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
# 2. **There is no last average.** The run ends with the replicas apart.
#
# torch's documentation shows the averager for *post-local SGD* ([arXiv 1808.07217](https://arxiv.org/abs/1808.07217)): first a *warm-up* of ordinary DDP steps, which the averager skips, then the averages begin. There, too, the first step behind the warm-up is followed by one.
#
# Both have a cure. The last average is yours to call. And `warmup_steps` makes the averager skip its first calls:

# %%
# %%px
gaps = gaps_with_torch(PeriodicModelAverager(period=4, warmup_steps=3))
if rank == 0:
    print(
        "equal after steps",
        [step for step, distance in enumerate(gaps, start=1) if distance < 1e-12],
    )

# %% [markdown]
# A third trap: the averager takes only parameters that *have a gradient* on this rank. After `zero_grad` there are none:

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
# *Difficulty* ** · *6 minutes* · *Why*: a loop with the averager alone can end with as many models as there are ranks.
#
# ```python
# def train(model, optimizer, loss_of, micro_batches, local_steps):
#     averager = PeriodicModelAverager(period=local_steps)
#     for batch in micro_batches:
#         optimizer.zero_grad()
#         loss_of(model, batch).backward()
#         optimizer.step()
#         averager.average_parameters(model.parameters())
# ```
# Write `train_with_averager(model, optimizer, loss_of, micro_batches, local_steps)`, the same without surprises. `micro_batches` is this rank's own list, which stays as it is; all ranks have equally many, and begin with equal weights. Every weight that is trained gets a gradient in every step.
#
# - The replicas are averaged after steps $H$, $2H$, $3H$ and so on (`local_steps` is $H$), and not before.
# - After the last step all hold the mean of their parameters, whatever the number of steps.
# - In between the ranks send nothing, and wait for nobody. Afterwards `optimizer.step()` sends nothing: leave no hook on it.
#
# Import the averager in your function, or count by hand.


# %%
put_in_order("train_with_averager")


# %% exercise="train_with_averager" points=3
def train_with_averager(model, optimizer, loss_of, micro_batches, local_steps):
    """Train one rank with torch's averager: first after local_steps steps, last at the end."""
    # BEGIN SOLUTION
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    averager = PeriodicModelAverager(period=local_steps, warmup_steps=local_steps - 1)
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
# `hint(train_with_averager)` helps on request.
#
# ## Is H = 1 the same as every step?
#
# With $H = 1$ the ranks average their parameters after each step, instead of their gradients before it. Is that the same training? Try it with five optimizers, in 64-bit numbers, where rounding is small:


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
            f"{name:22} largest difference "
            f"{'< 1e-12' if difference < 1e-12 else f'{difference:.3f}'}"
        )

# %% [markdown]
# - **SGD** takes a step that is *proportional* to the gradient. The mean of the steps is then the step of the mean. Momentum and weight decay only add, and multiply by fixed numbers, so they do not change that.
# - **Clipping** shortens each rank's own gradient. The mean of shortened gradients need not be the shortened mean.
# - **AdamW** divides by the root of a running mean of squared gradients, and each rank squares its own.
#
# So "Local SGD with H = 1 is DDP" holds for the first three rows, and not for the last two. Those are not wrong trainings, only *other* ones.
#
# ## What is not averaged
#
# Averaging the parameters leaves everything else as it is. Here is a model with batch normalisation (batch norm), trained with momentum, right after an average:

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
# - The **optimizer state** (momentum, Adam's moments) stays on its rank. Sending it as well would cost as much again, for AdamW's two moments twice as much.
# - **Batch norm's running averages** are not parameters but *buffers*. Each rank has seen other data, so the ranks evaluate differently, although their parameters agree.
#   (DDP sent rank 0's buffers to all in each forward pass, as the previous lesson counted.)
#
# ### Resuming in the middle
#
# A long run is saved now and then, and goes on from there in new processes. What must each rank get back? Take 8 steps with AdamW and $H = 3$: averages after steps 3 and 6, and the last one after step 8. The run is saved after step 5, two steps behind an average, or after step 6, right after one.


# %%
# %%px
def train_resumed(stop, resume):
    """The weights after 8 steps; after `stop` of them a fresh model goes on with resume(saved)."""
    model, micro_batches = toy()
    optimizer, behind = AdamW(model.parameters(), lr=0.03), 0
    for step, (inputs, targets) in enumerate(micro_batches, start=1):
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        behind += 1  # steps since the last average
        if behind == 3 or step == len(micro_batches):
            average_parameters(model)
            behind = 0
        if resume and step == stop:
            saved = [None] * world_size  # what each rank saves
            dist.all_gather_object(saved, (model.state_dict(), optimizer.state_dict(), behind))
            weights, state, behind = resume(saved)
            model, _ = toy()
            optimizer = AdamW(model.parameters(), lr=0.03)
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


resumes = {
    "its own weights, state and count": lambda saved: saved[rank],
    "its own, but the count begins at 0": lambda saved: (*saved[rank][:2], 0),
    "its own weights, rank 0's state": lambda saved: (saved[rank][0], *saved[0][1:]),
    "rank 0's weights and state": lambda saved: saved[0],
}
begin = nn.utils.parameters_to_vector(toy()[0].parameters()).detach()
whole = train_resumed(0, None)
resumed = {
    (name, stop): ((train_resumed(stop, resume) - whole).norm() / (whole - begin).norm()).item()
    for name, resume in resumes.items()
    for stop in (5, 6)
}

# %% [markdown]
# How far from the uninterrupted run does it end, in percent of the way from the start? (*State* is the optimizer's, *count* the steps since the last average.)

# %%
table = pd.Series(devices.pull("resumed")[0]).map("{:.0%}".format).unstack(sort=False)
table.rename(columns="saved after step {}".format).rename_axis("each rank gets back")

# %% [markdown]
# Here three things belong to each rank: its weights, its optimizer state, and how many steps it is behind the last average. Right after an average the weights are equal and the count is 0, so that is the moment to save. The optimizer states differ even then. Accelerate's `save_state` and the Trainer write rank 0's only, by default; so here each rank saves its own.
#
# ### Exercise: all that should be equal
#
# *Difficulty* * · *5 minutes* · *Why*: with the parameters alone averaged, every rank may evaluate differently.
#
# Write `average_replicas(model)`. Every rank calls it. Afterwards, on every rank,
#
# - every parameter holds the mean over the ranks, frozen or not, with or without a gradient in its `.grad`,
# - every floating-point *buffer* does, too,
# - buffers of whole numbers, gradients, `requires_grad` and train or eval mode are as they were.


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
# **A good place to stop for today.**
#
# ## What is sent
#
# Now count. Six optimizer steps on the small BERT: one device alone, DDP, and Local SGD with several $H$. `measure` counts each of them; only the first one is timed, for the explorer at the end.


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
    repeats = 1 if name == "alone" else 0  # the explorer models the other times from this one
    return measure(run, name=name, repeats=repeats, progress=False, **settings)


runs = [
    measured("alone", train_ddp, devices=1),
    measured("DDP", train_ddp, wrap=DistributedDataParallel, devices=world_size),
]
runs += [
    measured(f"H = {H}", train_local_to_the_end, H, devices=world_size, local_steps=H)
    for H in (1, 2, 4)
]

# %%
runs = devices.pull("runs")[0]
communication_table(runs[1:], by_kind=False)

# %% [markdown]
# (DDP also sends the buffers, and the model once before it begins, so that all start alike.)
#
# With $H = 1$ nothing is saved: a parameter is as large as its gradient. From there on the bytes of a step fall with $H$. They fall to an $H$-th only where the number of steps is a multiple of $H$; else the last, shorter stretch costs a whole average, too.
#
# Accumulation saves bytes as well: with $k$ micro-batches for each step there are $k$ times fewer steps to meet at. But it makes the batch $k$ times larger. Local SGD keeps the batch.
#
# What it does **not** save is memory: the whole model stays on every rank. (DDP takes more than one device alone here: its buckets hold the gradients once more.)
#
# ### Exercise: count without running
#
# *Difficulty* ** · *6 minutes* · *Why*: you can know this before a run is started.
#
# Write `communication(model, micro_batches, devices, accumulation_steps, local_steps=None)`. It returns two whole numbers for **one rank** and the whole training: how many all-reduces, and the payload that it hands to them, in bytes.
#
# - `micro_batches` counts those of all `devices` together, and fills whole windows everywhere.
# - `local_steps=None`: at every optimizer step the gradients go in one flat tensor. A number $H$: Local SGD; what is averaged goes in one flat tensor after every $H$ steps, and after the last one.
# - Only what training changes is sent: no frozen parameters, no buffers. Weights need not have 4 bytes (`element_size()`).


# %% exercise="communication" points=3
def communication(model, micro_batches, devices, accumulation_steps, local_steps=None):
    """All-reduces and payload bytes of one rank in a whole training, as two whole numbers."""
    # BEGIN SOLUTION
    steps = micro_batches // (devices * accumulation_steps)
    times = steps if local_steps is None else -(-steps // local_steps)
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
# That is a question for the loss. To train BERT until its loss has fallen would take too long here, so a much smaller model stands in: the mean of a review's word vectors, and one linear layer.
# And eight replicas, not two. They are trained one after the other in this process; the arithmetic is the same.

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


def in_order(seed, size=16):
    """The reviews for training, mixed three times, in batches of this size."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(for_training, generator=generator) for _ in range(3)])
    return [encoded[part] for part in order.split(size)]


micro_batches = in_order(0)[: replicas * steps]
print(f"{replicas} replicas, {steps} steps each, {len(micro_batches)} micro-batches of 16 reviews")


# %%
def loss_curve(local_steps, lr=0.03, micro_batches=micro_batches):
    """The loss on held-out reviews at the averages, as (step, loss) pairs."""
    models = [BagOfWords() for _ in range(replicas)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=lr, fused=True) for model in models]
    curve = [(0, models[0](held_out).item())]
    for step in range(1, steps + 1):
        for model, optimizer, batch in zip(
            models, optimizers, micro_batches[replicas * (step - 1) :]
        ):
            model(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            with torch.no_grad():
                for copies in zip(*(model.parameters() for model in models)):
                    mean = torch.stack(copies).mean(0)
                    for copy in copies:
                        copy.copy_(mean)
            if step % 8 == 0:
                curve.append((step, models[0](held_out).item()))
    return curve


curves = {H: loss_curve(H) for H in (1, 8, 32, 160)}


def loss_of_one(batches, lr=0.03):
    """The loss at the end of one model, trained on these batches."""
    model = BagOfWords()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    for batch in batches:
        model(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model(held_out).item()


begin, best = curves[1][0][1], curves[1][-1][1]
ends = {f"H = {H}": curve[-1][1] for H, curve in curves.items()}
ends |= {"the start": begin, "one replica alone": loss_of_one(micro_batches[::replicas])}
pd.DataFrame(
    {
        "averages": [*(-(-steps // H) for H in curves), 0, 0],
        "loss at the end": [f"{loss:.3f}" for loss in ends.values()],
        "share of H = 1's gain": [
            f"{(begin - loss) / (begin - best):.0%}" for loss in ends.values()
        ],
    },
    index=ends.keys(),
)

# %% [markdown]
# **At equal samples** meeting less often cost something here. Read it against the two ends of the table: with $H = 32$ most of the gain is there, with one average at the very end about half, and a replica that never meets the others has about a fifth.
#
# Does Local SGD want another learning rate than DDP? Here are the losses at the end with three of them, each for three orders of the reviews. DDP is one model, for which a step's eight micro-batches are one large batch.

# %%
rates, ends = (0.01, 0.03, 0.1), {}
for seed in range(3):
    for lr in rates:
        ends[f"DDP, order {seed}", lr] = loss_of_one(in_order(seed, 16 * replicas)[:steps], lr)
        ends[f"H = 32, order {seed}", lr] = loss_curve(32, lr, in_order(seed))[-1][1]
pd.Series(ends).map("{:.3f}".format).unstack(0).rename_axis(index="learning rate")

# %% [markdown]
# One order does not decide it: DDP is best at 0.1 in the first and at 0.01 in the other two. But $H = 32$ ends at 0.01 far above what it reaches at 0.03, in all three. So a learning rate that is good for DDP may be too small for Local SGD: try larger ones, too.
#
# **At equal time** the order may be reversed. What is a step's time on a network that you do not have? The bytes are counted; a model of the *link* turns them into time:
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


def over_time(link, devices=replicas):
    """The curves as (modelled second, loss) pairs, without their beginning."""
    second = {H: local_sgd_step_seconds(0.005, payload, devices, link, H) for H in curves}
    return {
        f"H = {H}": [(step * second[H], loss) for step, loss in curve[1:]]
        for H, curve in curves.items()
    }


plot_losses(
    {"at equal samples": {f"H = {H}": curve for H, curve in curves.items()}}
    | {str(link): over_time(link) for link in (LINKS[1], LINKS[4])}
)

# %% [markdown]
# In the data centre $H = 1$ and $H = 8$ are nearly one line, and larger $H$ stay behind: there is little waiting to be saved. Between continents it is reversed: when $H = 1$ has its first point, $H = 32$ has finished.
# The single average at the end comes even earlier there, and nothing else is as low so soon. But there it ends, and $H = 32$ goes on below it.
#
# Choose a network of your own. (The number of devices changes the modelled time only. The losses stay those of the eight replicas that were trained.)

# %%
loss_sliders(over_time, devices=replicas, start=LINKS[2])

# %% [markdown]
# Now a large model: BERT-large, one second of computing for each step (an assumption, too), from 8 devices to 4096. The table shows the modelled seconds of *one optimizer step*.

# %%
payload = 4 * 335_143_938  # BERT-large with its classification head
rows = {}
for link in (LINKS[1], LINKS[4]):
    for count in (8, 64, 4096):
        seconds = {"DDP": ddp_step_seconds(1.0, payload, count, link)}
        seconds |= {
            f"H = {H}": local_sgd_step_seconds(1.0, payload, count, link, H)
            for H in (1, 8, 64, 512)
        }
        rows[f"{link.name}, {count:,} devices"] = {
            name: f"{value:,.1f} s" for name, value in seconds.items()
        }
print(f"payload {payload / 2**30:.2f} GiB")
pd.DataFrame(rows).T

# %% [markdown]
# - In a data centre and with few devices, DDP hides most of its sending behind the backward pass. Local SGD as written here hides nothing, so $H = 1$ is *slower* than DDP there.
# - Between continents, a step of one second takes minutes, or even hours, where the ranks meet at every one.
# - From 64 to 4096 devices the bytes of a rank hardly grow, the messages do. That is the price of the modelled ring.
# - $H = 1$ sends one flat buffer, and DDP an all-reduce for each of its many buckets. Where latency rules, that is why $H = 1$ is the faster of the two.
#
# What the table does not know is the loss. The curves above are those of 8 replicas; nothing here was trained with 4096.
#
# **How to choose $H$**: take the smallest for which the averages cost little time on your link (the table above, with your numbers). A larger one saves little more time, and may raise the loss.
#
# ## Memory, speed and communication
#
# Here are the runs that you measured. The explorer takes their counted bytes and models the time of a step. Choose devices and a link, or move latency and bandwidth yourself. (DDP's bytes include the model, which it sends once before it begins; here only six steps share it.)
# From which link on is DDP good enough? And what does $H$ change in memory?

# %%
explorer(runs, budget=18 * 2**20)

# %%
stop_devices()

# %% [markdown]
# ## What to keep
#
# - torch's averager (2.13) averages right after the first step, and makes no last average of its own.
# - With $H = 1$ Local SGD is DDP for SGD, with momentum and weight decay, too; not with clipping, and not for AdamW. Optimizer state and buffers are not averaged.
# - Resuming: save right after an average, with every rank's optimizer state.
# - The bytes of a step fall with $H$; memory does not.
# - At equal samples a larger $H$ ended with a higher loss here. At equal modelled time the best one depended on the network.
#
# Next: [Local SGD with Accelerate](2_accelerator.ipynb), where a context manager does this, and counts what you may not expect.
