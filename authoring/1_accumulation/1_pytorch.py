# %% [markdown]
# # Gradient accumulation in PyTorch
#
# **You will be able to** train with a batch that does not fit into memory, write the loop without its usual mistakes, and prove that it is the same training.
#
# **Minutes**: 100, with two places to stop · **Before this**: [Where memory goes](../0_start/1_where_memory_goes.ipynb).

# %% [markdown]
# ## A question
#
# You want to train with 64 reviews for each update of the weights. Your memory holds 4.
#
# Can you feed 4 reviews sixteen times and end with *exactly* the weights that 64 at once would have given?
# And if so: what does it save, what does it cost, and where does it stop being the same?

# %%
from functools import partial
from itertools import zip_longest

import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, mse_loss
from trainlean import (
    Meter,
    batches,
    check,
    explorer,
    format_bytes,
    guess,
    hint,
    load_reviews,
    load_tokenizer,
    measure,
    measure_in_turn,
    player,
    plot_accumulation_window,
    plot_memory,
    published_runs,
    put_in_order,
    recall,
    record,
    reveal,
    small_bert,
    summary,
)

reviews = load_reviews()

# %%
recall("1_accumulation/1_pytorch")

# %% [markdown]
# ## Why a large batch
#
# You want to change the weights so that the loss falls for *all* reviews. The gradient over all of them says how; that of a batch is only an estimate.
# How good is the estimate? Take 64 reviews as "all", and compare the gradients of small batches with the gradient of the 64.
#
# The loss of a batch is the mean over its reviews, so its gradient is the mean of theirs. It is enough to compute the gradient of each review once.
# The *error* of a review is its gradient less the full one, a vector; the error of a batch is the mean of its reviews' errors.
#
# (Of the errors only their scalar products are kept, a table of 64 x 64: the squared length of a mean is the mean of the products of all pairs of its parts.)

# %%
model = small_bert(seed=0)


def gradient(model, batch):
    """The gradient of the batch's mean loss, as one long vector."""
    model.zero_grad()
    model(**batch).loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


alone = torch.stack(
    [gradient(model, batch) for batch in batches(reviews[:64], 1, max_length=32, shuffle=False)]
)
full = alone.mean(0)
print(f"{len(alone)} gradients of {full.numel():,} numbers")
alone -= full  # now the errors
products = alone @ alone.T
del alone  # it takes as much memory as 64 models

# %% [markdown]
# Now draw 10,000 batches of each size. (A review may be drawn more than once.) The *scatter* of a size is the length of a batch's error, relative to the length of the full gradient (root mean square over the drawn batches). A scatter of 1 is an error as long as the full gradient. The last column is what the rule "one over the square root of the batch" gives.

# %%
generator = torch.Generator().manual_seed(0)
for size in (1, 4, 16):
    drawn = torch.randint(64, (10_000, size), generator=generator)
    squares = products[drawn[:, :, None], drawn[:, None, :]].mean((1, 2))
    scatter = squares.mean().sqrt() / full.norm()
    single = scatter if size == 1 else single
    print(f"batch {size:2}: scatter {scatter:4.1f}, by the rule {single / size**0.5:4.1f}")

# %% [markdown]
# With four times as many reviews the scatter is half, as the rule says.
# So every halving costs four times the reviews for one step. What it costs in memory comes next.
#
# ## The memory of a large batch
#
# Two updates, each made with its whole batch at once. (Two, because AdamW's state is only there from the first step on.)


# %%
def two_updates(batch_size):
    model = small_bert(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for batch in batches(reviews[: 2 * batch_size], batch_size):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


with Meter() as meter:
    two_updates(4)
for category, size in meter.peak.items():
    print(f"{category:16} {format_bytes(size):>10}")

# %% [markdown]
# **Predict.** With 64 reviews in the batch, how much will the activations need?

# %%
# BEGIN SOLUTION
my_guess = 150
# END SOLUTION
guess("activations at batch 64", my_guess, "MiB")

# %%
with Meter() as meter:
    two_updates(64)
for category, size in meter.peak.items():
    print(f"{category:16} {format_bytes(size):>10}")
reveal("activations at batch 64", round(meter.peak["activations"] / 2**20, 1), "MiB")

# %% [markdown]
# Sixteen times the batch, sixteen times the activations; the little that is temporary grew as much. Weights and optimizer state did not. (Of the gradients only the first few exist at this peak, where forward turns into backward.) So the plan:
# never hold the activations of 64 reviews at once, and still step with the gradient of 64.
#
# ## Two batches, by hand
#
# First on a model of one weight $w$, which should learn to double a number. Eight samples, $y = 2x$, and the loss is the mean of $(w x - y)^2$.
# The example is from Accelerate's documentation; you meet it again in the next lesson.

# %%
x = torch.arange(1.0, 9.0)
y = 2 * x
weight = torch.zeros(1, requires_grad=True)

loss = mse_loss(weight * x, y)
loss.backward()
print(
    f"gradient {weight.grad.item():.2f}, after a step with learning rate 0.02: "
    f"{0 - 0.02 * weight.grad.item():.5f}"
)

# %% [markdown]
# Check it on paper. One sample's gradient is $2(wx - y)x$. At $w = 0$ that is $-4x^2$. The mean of $x^2$ over 1 to 8 is 204 / 8 = 25.5, and $-4 \cdot 25.5 = -102$.
# That is the large batch. Remember its weight: **2.04000**.
#
# Now only the first four samples, as two *micro-batches* of two. The first one:

# %%
weight = torch.zeros(1, requires_grad=True)

first_loss = mse_loss(weight * x[0:2], y[0:2])
first_loss.backward()
print(f"after the first micro-batch:  {weight.grad.item():.2f}")

# %% [markdown]
# On paper: $-4 \cdot (1 + 4) / 2 = -10$. Now the second one. Nothing is reset in between.

# %%
second_loss = mse_loss(weight * x[2:4], y[2:4])
second_loss.backward()
print(f"after the second micro-batch: {weight.grad.item():.2f}")

# %% [markdown]
# The second one alone has $-4 \cdot (9 + 16) / 2 = -50$. `.grad` shows $-10 - 50 = -60$: **`backward()` does not set the gradient, it adds to it.**
# That is why a training loop calls `zero_grad()`. Here it is the whole trick: PyTorch does the adding up. (Run the last cell twice, and its micro-batch is added twice. The cell with the first one starts again.)
#
# And the activations? `backward()` frees them when it is through with them. When the second forward pass begins, those of the first are gone.
# (Adding up the *losses* and calling `backward()` once gives the same gradient, and keeps all activations until then.)
#
# ## Dividing the loss
#
# What would all four samples in one batch have given?

# %%
weight = torch.zeros(1, requires_grad=True)
mse_loss(weight * x[0:4], y[0:4]).backward()
print(f"large batch of four: {weight.grad.item():.2f}")

# %% [markdown]
# Half of it. The loss of a large batch is a *mean* over four samples. We added up two means over two. The mean of the two means is wanted, so each loss is divided by 2 before `backward()`:

# %%
weight = torch.zeros(1, requires_grad=True)
for inputs, targets in [(x[0:2], y[0:2]), (x[2:4], y[2:4])]:
    loss = mse_loss(weight * inputs, targets)
    (loss / 2).backward()
    print(f"{weight.grad.item():.2f}")

# %% [markdown]
# In general, with $k$ micro-batches of equal size:
#
# $$\nabla L = \frac{1}{k} \left( \nabla L_1 + \dots + \nabla L_k \right) = \nabla \frac{L_1}{k} + \dots + \nabla \frac{L_k}{k}$$
#
# **Predict.** All eight samples now: four micro-batches of two, and one step with learning rate 0.02. How many times too long is the step if you *forget* to divide?

# %%
# BEGIN SOLUTION
my_guess = 8
# END SOLUTION
guess("length of the undivided step", my_guess, "times the right one")

# %% [markdown]
# ## From two to k
#
# A *window* is the group of micro-batches that make one step; $k$ is the number of *accumulation steps*.
# Count the micro-batches from 1. A window is complete at $k$, $2k$, $3k$ and so on: when the number divided by $k$ leaves nothing, which is what the modulo `%` tells.


# %%
def train_toy(micro_batches, k, divisor):
    weight = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.02)
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = mse_loss(weight * inputs, targets)
        (loss / divisor).backward()
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    return weight.item()


in_twos = list(zip(x.split(2), y.split(2)))
print(f"with accumulation:    {train_toy(in_twos, k=4, divisor=4):.5f}")
print(f"without accumulation: {train_toy([(x, y)], k=1, divisor=1):.5f}")
undivided = train_toy(in_twos, k=4, divisor=1)
print(f"without dividing:     {undivided:.5f}")
reveal("length of the undivided step", round(undivided / 2.04, 3), "times the right one")

# %% [markdown]
# **2.04000** both ways. Undivided, `.grad` holds the sum of four means where one mean is wanted. The number of micro-batches decides, not the number of samples in them.
#
# Watch it run. `record` runs `train_toy` line by line over the data *twice* (two windows), and notes weight, gradient and micro-batch after every line.
# The player replays that recording: step forward and back, and look at the gradient when `zero_grad()` has run.

# %%
trace = record(
    train_toy,
    in_twos * 2,
    4,
    4,
    watch={
        "weight": lambda at: at["weight"],
        "gradient": lambda at: at["weight"].grad,
        "micro-batch": lambda at: at["number"],
    },
)
player(trace)

# %% [markdown]
# The gradient grows in four parts, and the weight moves once for four micro-batches. Before the second window the gradient is empty again. The parts of the first window:

# %%
weight = torch.zeros(1, requires_grad=True)
for inputs, targets in in_twos:
    before = 0.0 if weight.grad is None else weight.grad.item()
    (mse_loss(weight * inputs, targets) / 4).backward()
    print(f"{weight.grad.item() - before:6.1f} more, together {weight.grad.item():6.1f}")

# %% [markdown]
# Each part is a quarter of its micro-batch's gradient; together they are the $-102$ from above.
#
# ## Exercise: the loop
#
# *Difficulty* * · *7 minutes* · *Why*: the rest of the lesson builds on this loop.
#
# Write `train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps)`.
#
# - `micro_batches` is a list of `(inputs, targets)`, all of the same size. Their number is a multiple of `accumulation_steps`.
# - `loss_function(outputs, targets)` returns the mean over the micro-batch.
# - After each complete window the optimizer steps once, with the gradient that the large batch of the whole window would have.
# - Never hold the activations of more than one micro-batch for backward. The micro-batches themselves may be held; they and their list stay as they are.
# - Weights may be shared or frozen. Every `.grad` is `None` at the start of the training, and backward gives a frozen weight none. Nothing of a window is left for the next, nor for the next epoch, for which the function is called again.


# %%
put_in_order("train_accumulated")


# %% exercise="train_accumulated" points=3
def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):
    """Train on micro_batches, with one optimizer step for every accumulation_steps of them."""
    # BEGIN SOLUTION
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        (loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    # END SOLUTION


# %% check="train_accumulated"
check(train_accumulated)

# %% [markdown]
# `check` trains small models with your loop and with true large batches; `hint(train_accumulated)` helps.
# Where a message speaks of a *cosine*: at 1 two gradients point the same way, at 0 they are at right angles.
#
# ## The same training, on BERT
#
# One weight is no proof. Here is the loop again for the reviews, in the form that the rest of this lesson measures. BERT computes its own loss, a mean over the micro-batch.


# %%
def train_bert(
    micro_batch, accumulation_steps, optimizer_class=torch.optim.AdamW, lr=5e-4, samples=128
):
    model = small_bert(seed=0)
    optimizer = optimizer_class(model.parameters(), lr=lr)
    for number, batch in enumerate(batches(reviews[:samples], micro_batch, seed=0), start=1):
        loss = model(**batch).loss
        (loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


# %% [markdown]
# First the gradient of 64 reviews at once, and as 16 micro-batches of 4.

# %%
model = small_bert(seed=0)
large = gradient(model, batches(reviews[:64], 64, seed=0)[0])

model.zero_grad()
for batch in batches(reviews[:64], 4, seed=0):
    (model(**batch).loss / 16).backward()
accumulated = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

print(f"largest gradient entry {large.abs().max():.3f}")
print("largest difference < 1e-6:", bool((large - accumulated).abs().max() < 1e-6))

# %% [markdown]
# Now the weights, after two updates with plain SGD.


# %%
def largest_difference(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one.parameters(), other.parameters()))


at_once = train_bert(64, 1, torch.optim.SGD, lr=0.1)
in_parts = train_bert(4, 16, torch.optim.SGD, lr=0.1)
print(f"moved by training, at most: {largest_difference(at_once, small_bert(seed=0)):.3f}")
print("differ < 1e-6:", largest_difference(at_once, in_parts) < 1e-6)

# %% [markdown]
# The same training, up to rounding: the sums are taken in another order.

# %% [markdown]
# ## What it saves, what it costs
#
# Six ways to train. `4 x 16` means: micro-batches of 4, 16 accumulation steps. The first two step after every 4 reviews and see 32 of them, the other four step after every 64 and see 128.
# `measure_in_turn` counts the memory of each, and then times those that are to be compared in turn, again and again. So a passing disturbance is not in one row alone.


# %%
def training(micro_batch, accumulation_steps=1):
    """What trains, and what `measure` is told of it."""
    samples = max(32, 2 * micro_batch * accumulation_steps)  # the second update has the state
    said = {
        "name": f"{micro_batch} x {accumulation_steps}",
        "samples": samples,
        "model": "small BERT, accumulated",
        "micro_batch": micro_batch,
        "accumulation_steps": accumulation_steps,
        "sequence_length": 64,
    }
    return partial(train_bert, micro_batch, accumulation_steps, samples=samples), said


def measure_bert(micro_batch, accumulation_steps=1):
    train, said = training(micro_batch, accumulation_steps)
    return measure(train, **said)


# %% [markdown]
# **Batch 4 against 1 x 4**, the comparison that Hugging Face published for BERT-large:

# %%
small_runs = measure_in_turn([training(4, 1), training(1, 4)])
summary(small_runs)

# %%
plot_memory(small_runs)

# %% [markdown]
# The same optimizer steps, the same FLOPs, a little less memory. The layers' activations are gone from the peak of 1 x 4 (only the numbered reviews are left), but little is saved: its peak now lies in the optimizer's step, where gradients and temporary tensors take their place.
# For BERT-large, with 512 tokens a text, these figures were published (`1x4` is 1 x 4):

# %%
for run in published_runs()[:2]:
    print(f"{run.name:7} {run.peak_bytes / 2**20:6,.0f} MB  {run.seconds[0]:.2f} s")
seconds = [run.seconds[0] for run in published_runs()[:2]]
print(f"1x4 took {seconds[1] / seconds[0] - 1:.0%} longer")

# %% [markdown]
# There is a price, too. Gradients must now stay through the forward passes of the whole window; without accumulation `zero_grad()` had freed them before the next forward pass. It can be higher than what is saved:

# %%
for optimizer_class in (torch.optim.SGD, torch.optim.AdamW):
    for size in (2, 3, 4, 8):
        peaks = []
        for micro_batch, steps in ((size, 1), (1, size)):
            with Meter() as meter:
                train_bert(micro_batch, steps, optimizer_class, samples=2 * size)
            peaks.append(format_bytes(meter.peak_bytes))
        print(f"{optimizer_class.__name__:5}  {size} x 1 {peaks[0]:>8}   1 x {size} {peaks[1]:>8}")

one_review = small_runs[0].peak["activations"] / 4
gradients = sum(parameter.nbytes for parameter in small_bert(seed=0).parameters())
print(
    f"one review's activations {format_bytes(one_review)}, all gradients {format_bytes(gradients)}"
)

# %% [markdown]
# With SGD, 1 x 2 and 1 x 3 need *more* than the batch that they replace. Here $1 \times k$ pays once the activations of $k - 1$ reviews are more than one copy of the gradients.
# AdamW hides the price here: with 2 and 3 reviews the peak lies in the optimizer's step either way, so there is nothing to gain.
#
# **Accumulation reduces what grows with the batch: activations, and what is temporary beside them.** If weights, gradients and optimizer state alone do not fit, it cannot help.
#
# **4 x 16 against 1 x 64**, both with 64 reviews an update, beside the large batch itself:

# %%
large_runs = measure_in_turn([training(64, 1), training(16, 4), training(4, 16), training(1, 64)])
summary(large_runs)

# %%
plot_memory(large_runs)

# %% [markdown]
# From 64 at once down to 4 x 16, the bar shrinks to a fraction. From 4 x 16 to 1 x 64 little is left to gain:
# at 1 x 64 the peak has moved into the optimizer's step, where no layer's activations are left, only the numbered reviews.
# And 1 x 64 is the slowest of the four; compare the samples per second.
#
# So here **4 x 16, not 1 x 64**: the same batch in less time, for a little more memory.
#
# What about time? The FLOPs for a review are exactly the same in all of these runs:

# %%
runs = small_runs + large_runs
print("the same FLOPs for a review:", len({run.flops / run.samples for run in runs}) == 1)

# %% [markdown]
# (The meter counts matrix products. What the optimizer computes is not among them.)
# Accumulation does the same work in smaller pieces. So, compared with the *true* large batch, it saves no work, and pieces that are too small cost time here: look at 1 x 64.
# Among the larger pieces the differences are smaller. Three repeats are few, so run the cell that begins with `large_runs =` again, and believe a difference that comes back each time.
#
# Compared with `4 x 1`, `4 x 16` is another training run: sixteen times the batch.
#
# Which learning rate does the larger batch want? It takes one step where the small batch took sixteen. How far do 64 reviews move the weights with SGD?

# %%
untrained = torch.nn.utils.parameters_to_vector(small_bert(seed=0).parameters())
for micro_batch, steps, lr in ((4, 1, 0.005), (4, 16, 0.005), (4, 16, 16 * 0.005)):
    trained = train_bert(micro_batch, steps, torch.optim.SGD, lr=lr, samples=64)
    moved = torch.nn.utils.parameters_to_vector(trained.parameters()) - untrained
    print(f"{micro_batch} x {steps:2}, learning rate {lr:.3f}: moved by {moved.norm():.3f}")

# %% [markdown]
# With the old learning rate the weights move far less. With sixteen times the rate, one step goes further here than sixteen small ones.
#
# For SGD a usual first guess is a rate that grows with the batch and is reached little by little in the first steps, a *warm-up* (Goyal et al. 2017); for Adam, one that grows with the square root of the batch (Malladi et al. 2022).
# They are where a search begins, and no more.
#
# Try the points between. Choose one that was not run, and the button measures it here and now, with the loop above.

# %%
explorer(runs, measure=measure_bert)

# %% [markdown]
# **A good place to stop for today.** The loop, its proof and its costs are done. What follows are the cases that it does not cover yet: short windows, unequal micro-batches, and what belongs to a window.

# %% [markdown]
# ## The last, shorter window
#
# Data need not come in multiples. Ten micro-batches, four to a window:

# %%
plot_accumulation_window(4, 10)

# %% [markdown]
# The picture shows what should happen. The loop from above never makes step 3. What becomes of the micro-batches that are left? Take three, in windows of two:

# %%
weight = torch.zeros(1, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.02)
for number, (inputs, targets) in enumerate(in_twos[:3], start=1):
    (mse_loss(weight * inputs, targets) / 2).backward()
    if number % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()
print(f"weight {weight.item():.5f}, left in .grad: {weight.grad.item():.2f}")

# %% [markdown]
# The third one's gradient is computed, paid for, and left lying in `.grad`. Either it is lost (when the training ends, or to a `zero_grad()` at the start of an epoch),
# or it *leaks*: the next epoch's first window starts with it.
#
# And if you do step on it, look at the divisor. This window has one micro-batch, not two. The gradient left in `.grad` was divided by 2, so it is half of what a large batch of that one micro-batch has:

# %%
alone = weight.detach().clone().requires_grad_()
mse_loss(alone * in_twos[2][0], in_twos[2][1]).backward()
print(f"that micro-batch as a batch of its own: {alone.grad.item():.2f}")

# %% [markdown]
# ## Exercise: to the end
#
# *Difficulty* ** · *6 minutes* · *Why*: with a small data set and a large $k$, the last window is a good part of every epoch.
#
# Write `train_accumulated_to_the_end(model, optimizer, loss_function, micro_batches, accumulation_steps)`: as before, but the number of micro-batches need not be a multiple of `accumulation_steps`.
#
# - What is left makes one window of its own, with its own step, and its gradient is the mean over its own micro-batches.
# - If nothing is left, there is no extra step.
# - As before, one micro-batch's activations at a time, every `.grad` is empty at the start of the training, nothing is left for the next epoch, and the micro-batches and their list stay as they are.


# %%
put_in_order("train_accumulated_to_the_end")


# %% exercise="train_accumulated_to_the_end" points=3
def train_accumulated_to_the_end(
    model, optimizer, loss_function, micro_batches, accumulation_steps
):
    """Train on all micro_batches, one optimizer step per window; the last window may be shorter."""
    # BEGIN SOLUTION
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for inputs, targets in window:
            loss = loss_function(model(inputs), targets)
            (loss / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
    # END SOLUTION


# %% check="train_accumulated_to_the_end"
check(train_accumulated_to_the_end)

# %% [markdown]
# ## A published loop, with faults
#
# Amazon's library Ratex shows this loop in its document on gradient accumulation (`docs/grad_accumulation.md`). The names and the loop over epochs are ours:


# %%
def published_loop(model, optimizer, loss_function, micro_batches, accumulation_steps, epochs):
    optimizer.zero_grad()
    for epoch in range(epochs):
        for index, (inputs, targets) in enumerate(micro_batches):
            outputs = model(inputs)
            loss = loss_function(outputs) / accumulation_steps
            loss.backward()
            if index % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()


# %% [markdown]
# Run it, and one fault shows itself:

# %%
try:
    published_loop(
        nn.Linear(1, 1),
        torch.optim.SGD([weight], lr=0.02),
        mse_loss,
        [(x[:2, None], y[:2, None])],
        4,
        1,
    )
except TypeError as error:
    print("TypeError:", error)

# %% [markdown]
# The others do not. Over six micro-batches with $k = 4$ this loop makes two steps in an epoch, which is the right number.
# Ask instead *which micro-batches* stand behind each step, and by what each of their losses was divided. The loop once more, without the model, over two epochs. The micro-batches are numbered on from one epoch to the next:


# %%
def published_steps(micro_batches, accumulation_steps, epochs):
    """What each step of the published loop is made of, and what is left at the end."""
    steps, behind = [], {}
    for epoch in range(epochs):
        for index in range(micro_batches):
            # its number, and what its loss is divided by
            behind[epoch * micro_batches + index] = accumulation_steps
            if index % accumulation_steps == 0:
                steps.append(behind)
                behind = {}
    return steps, behind


steps, left = published_steps(6, 4, epochs=2)
for number, behind in enumerate(steps, start=1):
    print(f"step {number}: {behind}")
print(f"left:   {left}")

# %% [markdown]
# ## Exercise: read a run
#
# *Difficulty* ** · *8 minutes* · *Why*: counting the steps of a copied loop proves nothing.
#
# Write `first_wrong_step(steps, micro_batches, accumulation_steps, epochs)`, which reads a record like the one above.
#
# - `steps` has one dictionary for each optimizer step of the whole run: {number of a micro-batch: by what its loss was divided}, in whatever order. `micro_batches` is how many an epoch has. The record stays as it is.
# - In a right run every window of every epoch makes one step, with its own micro-batches and no others, each divided by how many they are. The last window of an epoch may be shorter than `accumulation_steps`. No window reaches over the end of an epoch.
# - It returns the number of the first step, counted from 1, that is not the step of a right run. A step that is missing at the end is wrong, and so is one too many. If all are right, it returns `None`.


# %%
put_in_order("first_wrong_step")


# %% exercise="first_wrong_step" points=2
def first_wrong_step(steps, micro_batches, accumulation_steps, epochs):
    """The number of the first wrong step of a recorded run, counted from 1; None in a right run."""
    # BEGIN SOLUTION
    right = []
    for epoch in range(epochs):
        numbers = range(epoch * micro_batches, (epoch + 1) * micro_batches)
        for start in range(0, micro_batches, accumulation_steps):
            window = numbers[start : start + accumulation_steps]
            right.append(dict.fromkeys(window, len(window)))
    for number, (found, wanted) in enumerate(zip_longest(steps, right), start=1):
        if found != wanted:
            return number
    return None
    # END SOLUTION


# %% check="first_wrong_step"
check(first_wrong_step)

# %% [markdown]
# What does it say of the published loop? With eight micro-batches no window is short:

# %%
for micro_batches in (6, 8):
    steps, _ = published_steps(micro_batches, 4, epochs=2)
    wrong = first_wrong_step(steps, micro_batches, 4, epochs=2)
    print(f"{micro_batches} micro-batches, {len(steps)} steps: the first wrong one is {wrong}")

# %% [markdown]
# The repair has three parts: the loss gets its targets, the condition is `(index + 1) % k == 0`, and what is left when an epoch ends makes a step of its own, with its own divisor.
# `train_accumulated_to_the_end`, called once for each epoch, is that loop.
#
# ## When micro-batches do not weigh the same
#
# The formula above asks for micro-batches *of equal size*. What counts is not the number of texts but the number of terms in the mean.
# For a review's label that is one term a review. For a language model it is one a token, and texts differ in length.
#
# A tiny language model on the reviews: it looks at one token and predicts the next. Position $t$ predicts the label at $t + 1$; a label of $-100$ (padding) is not predicted, `cross_entropy` leaves it out.

# %%
tokenizer = load_tokenizer()
language_model = nn.Sequential(nn.Embedding(len(tokenizer), 32), nn.Linear(32, len(tokenizer)))
generator = torch.Generator().manual_seed(0)
for parameter in language_model.parameters():
    nn.init.normal_(parameter, std=0.1, generator=generator)

window = []
for start in range(0, 8, 2):
    encoded = tokenizer(
        [review.text for review in reviews[start : start + 2]],
        padding=True,
        truncation=True,
        return_tensors="pt",
    )
    labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
    window.append({"input_ids": encoded["input_ids"], "labels": labels})
print(
    "targets in each micro-batch:",
    [labels["labels"][:, 1:].ne(-100).sum().item() for labels in window],
)

# %% [markdown]
# The large batch takes the mean over all these targets. Accumulation as you know it takes a mean in each micro-batch and averages the means.


# %%
def loss_of(model, micro_batch, reduction):
    logits, targets = model(micro_batch["input_ids"])[:, :-1], micro_batch["labels"][:, 1:]
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)


def collected(model):
    vector = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    model.zero_grad()
    return vector


losses = torch.cat(
    [
        loss_of(language_model, micro_batch, "none")[micro_batch["labels"][:, 1:].flatten() != -100]
        for micro_batch in window
    ]
)
losses.mean().backward()
large = collected(language_model)

for micro_batch in window:
    (loss_of(language_model, micro_batch, "mean") / len(window)).backward()
mean_of_means = collected(language_model)

print(f"length: {mean_of_means.norm() / large.norm():.3f} of the large batch's")
print(f"cosine: {torch.dot(mean_of_means, large) / (mean_of_means.norm() * large.norm()):.3f}")

# %% [markdown]
# It is another direction. The length alone tells little here: compare the *direction*, or better all entries.
# A token in a micro-batch of few targets counted for more than a token in one of many.
#
# ## Exercise: every token the same weight
#
# *Difficulty* *** · *8 minutes* · *Why*: the mean of means has just shown another direction.
#
# Write `token_weighted_backward(model, window)`.
#
# - `window` is a list of dictionaries with `input_ids` and `labels`, each `[texts, length]`; both numbers differ from one to the next. `model(input_ids)` returns logits `[texts, length, vocabulary]`.
# - Afterwards the parameters' `.grad` hold the gradient of the mean over *all prediction targets of the window*. Position $t$ predicts label $t + 1$; labels of $-100$ do not count, and a micro-batch may have no others.
# - Never hold the activations of more than one micro-batch for backward. There is no optimizer step here, and the window and the model's mode stay as they are. Every `.grad` is `None` at the start, and backward gives a frozen weight none.


# %%
put_in_order("token_weighted_backward")


# %% exercise="token_weighted_backward" points=3
def token_weighted_backward(model, window):
    """Leave in .grad the gradient of the mean loss over all prediction targets of the window."""
    # BEGIN SOLUTION
    targets_in_window = sum(micro_batch["labels"][:, 1:].ne(-100).sum() for micro_batch in window)
    for micro_batch in window:
        logits = model(micro_batch["input_ids"])[:, :-1]
        targets = micro_batch["labels"][:, 1:]
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        (loss / targets_in_window).backward()
    # END SOLUTION


# %% check="token_weighted_backward"
check(token_weighted_backward)

# %% [markdown]
# The divisor depends on the labels of the whole window, so count them first. (You may also add up undivided gradients, count along the way, and divide `.grad` before the step.)
#
# The short micro-batch at the end of an epoch (3 reviews instead of 4) is the same matter: weigh it by its samples.
#
# **A good place to stop for today.** What follows is where accumulation is not the same training, and what belongs to a window.
#
# ## Where it is not the same
#
# All this rests on a loss that is a mean over samples, each of them treated alone. Some things look beyond the single sample, and no divisor makes up for that: batch normalisation, and a loss over pairs. Dropout only looks different.
#
# **Batch normalisation** uses the mean and variance of the batch it sees. In micro-batches it sees fewer samples, and its running averages move $k$ times.


# %%
def layer_gradient(layer, parts):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), layer, nn.ReLU(), nn.Linear(16, 1))
    inputs, targets = torch.randn(16, 8), torch.randn(16, 1)
    for some_inputs, some_targets in zip(inputs.chunk(parts), targets.chunk(parts)):
        (mse_loss(model(some_inputs), some_targets) / parts).backward()
    return collected(model)


for name, make in {"layer norm": nn.LayerNorm, "batch norm": nn.BatchNorm1d}.items():
    cosine = cosine_similarity(layer_gradient(make(16), 1), layer_gradient(make(16), 4), dim=0)
    print(f"{name}: cosine of 16 x 1 and 4 x 4 is {cosine:.3f}")

# %%
for parts in (1, 4):
    layer = nn.BatchNorm1d(16)
    layer_gradient(layer, parts)
    print(
        f"{16 // parts:2} x {parts}: moves of the running averages: "
        f"{layer.num_batches_tracked.item()}"
    )

# %% [markdown]
# Layer normalisation works inside each sample, so it is the same; that is what BERT uses.
#
# **Dropout** does not look beyond the sample. But with the same seed the random numbers are drawn in another order, so the masks are not the same:


# %%
def dropout_gradient(parts, seed):
    model = small_bert(seed=0, dropout=0.1)
    torch.manual_seed(seed)
    for batch in batches(reviews[:16], 16 // parts):
        (model(**batch).loss / parts).backward()
    return collected(model)


at_once = dropout_gradient(parts=1, seed=0)
print(
    "16 x 1 with the same seed again: equal",
    torch.equal(at_once, dropout_gradient(parts=1, seed=0)),
)
for name, other in {
    "4 x 4 with the same seed": dropout_gradient(4, 0),
    "16 x 1 with another seed": dropout_gradient(1, 1),
}.items():
    print(f"{name}: cosine above 0.99: {bool(cosine_similarity(at_once, other, dim=0) > 0.99)}")

# %% [markdown]
# Both differ from the first by the masks that were drawn. To *test* equality, switch dropout off, as this course does.
#
# **A loss over pairs** is another such case. A contrastive loss (as in CLIP) asks each sample to find its partner among all the others *of its batch*. In a micro-batch there are fewer others to choose from:


# %%
def contrastive_gradient(parts):
    torch.manual_seed(0)
    model, texts = nn.Linear(8, 16), torch.randn(16, 8)
    partners = texts + 0.5 * torch.randn(16, 8)
    for some_texts, some_partners in zip(texts.chunk(parts), partners.chunk(parts)):
        scores = cosine_similarity(model(some_texts)[:, None], model(some_partners)[None], dim=2)
        (cross_entropy(10 * scores, torch.arange(len(some_texts))) / parts).backward()
    return collected(model)


whole = contrastive_gradient(1)
for parts in (4, 8, 16):
    other = contrastive_gradient(parts)
    print(
        f"{16 // parts} x {parts:2}: {other.norm() / whole.norm():.2f} times as long, "
        f"cosine {cosine_similarity(whole, other, dim=0):.2f}"
    )

# %% [markdown]
# With micro-batches of one there is nobody else, and the gradient is zero. Such losses cannot be accumulated by this loop. (GradCache computes the embeddings in portions, takes the loss over all of them, and runs each portion again: see the [museum of bugs](../6_your_own/2b_bug_museum_recomputed.ipynb).)
#
# ## Once per window
#
# Whatever the large batch does once, the loop does once per window, when the gradient is complete: `scheduler.step()`, the update of averaged weights (EMA), and the following.
#
# **Clipping** limits the length of the gradient. Done after every micro-batch it cuts the sum before it is complete:

# %%
model = nn.Linear(8, 1)
generator = torch.Generator().manual_seed(1)
nn.init.normal_(model.weight, generator=generator), nn.init.zeros_(model.bias)
parts = [
    (torch.randn(4, 8, generator=generator), torch.randn(4, 1, generator=generator))
    for _ in range(4)
]

for inputs, targets in parts:
    (mse_loss(model(inputs), targets) / 4).backward()
nn.utils.clip_grad_norm_(model.parameters(), 0.05)
once = collected(model)

for inputs, targets in parts:
    (mse_loss(model(inputs), targets) / 4).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)
every_time = collected(model)
print(
    f"lengths {once.norm():.3f} and {every_time.norm():.3f}, cosine "
    f"{cosine_similarity(once, every_time, dim=0):.3f}"
)

# %% [markdown]
# Again the lengths agree and the directions do not.
#
# **The gradient scaler** of mixed precision in fp16 multiplies the loss, to keep small gradients from being rounded to zero. `scale(loss)` belongs to each micro-batch; `unscale_`, clipping, `step` and `update` to the window. A second `unscale_` before `update` raises an error. With `update` after every micro-batch no error comes in the loop below, and the gradients that were there already are divided again:


# %%
def scaled_gradient(unscale_every):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (inputs, targets) in enumerate(parts, start=1):
        scaler.scale(mse_loss(model(inputs), targets) / 4).backward()
        if number % unscale_every == 0:
            scaler.unscale_(optimizer)
            scaler.update()
    return collected(model)


for inputs, targets in parts:
    (mse_loss(model(inputs), targets) / 4).backward()
plain = collected(model)
for name, every in {"once per window": 4, "every micro-batch": 1}.items():
    found = scaled_gradient(every)
    print(
        f"unscaled {name:18} {found.norm() / plain.norm():.3f} times as long, cosine "
        f"{cosine_similarity(plain, found, dim=0):.3f}"
    )

# %% [markdown]
# **A saved checkpoint** from the middle of a window: neither the model's `state_dict()` nor the optimizer's holds what `.grad` has added up so far. The toy again, stopped after its second micro-batch and started from what was saved:

# %%
for stop in (None, 2):
    weight = torch.zeros(1, requires_grad=True)
    for number, (inputs, targets) in enumerate(in_twos, start=1):
        (mse_loss(weight * inputs, targets) / 4).backward()
        if number == stop:
            weight = weight.detach().clone().requires_grad_()  # saved and loaded
    print(f"stopped after micro-batch {stop}: gradient at the step {weight.grad.item():6.1f}")

# %% [markdown]
# The first half of the window is lost, and the divisor still counts it. So save where a window ends, or save the gradients too.
#
# **Logging**: the loss of a step is the mean over its window. The last micro-batch's loss is that of a part, and `loss / k` a smaller number.
#
# ## Exercise: every line in its place
#
# *Difficulty* *** · *8 minutes* · *Why*: a line in the wrong place may raise nothing.
#
# A training run with a scaler, clipping, a schedule and a log. All lines are here, in no order. `size` is the number of micro-batches of the window that is being trained on, of the last, shorter one too; `window_loss` begins as 0.0 and every `.grad` as None.

# %%
lines = {
    "add": "window_loss += loss.item()",
    "backward": "scaler.scale(loss).backward()",
    "clip": "nn.utils.clip_grad_norm_(model.parameters(), max_norm)",
    "divide": "loss = loss / size",
    "forward": "loss = loss_function(model(inputs), targets)",
    "report": "reported.append(window_loss); window_loss = 0.0",
    "schedule": "scheduler.step()",
    "step": "scaler.step(optimizer)",
    "unscale": "scaler.unscale_(optimizer)",
    "update": "scaler.update()",
    "zero": "optimizer.zero_grad()",
}
for name, line in lines.items():
    print(f"{name:9} {line}")

# %% [markdown]
# Put each of the eleven names into one of two lists, in the order in which the lines run: `"micro-batch"` runs for every micro-batch, `"window"` once, after the last micro-batch of a window.
# Each window must step as its large batch would: with the gradient of the mean, clipped as a whole to the length `max_norm`, at the learning rate that the schedule gives to this step; and `reported` gets one number for each step, the mean loss of its window.
#
# It looks like this, with all the names: `places = {"micro-batch": ["forward", ...], "window": [...]}`.

# %% exercise="places" points=3
# BEGIN SOLUTION
places = {
    "micro-batch": ["forward", "divide", "add", "backward"],
    "window": ["unscale", "clip", "step", "update", "schedule", "zero", "report"],
}
# END SOLUTION

# %% check="places"
check(places=places)

# %% [markdown]
# `check` runs your lines on small models and compares every step with the large batch's.
# (More than one order is right: `zero`, `schedule` and `report`, for instance, may change places.)
#
# ## What to keep
#
# - `backward()` adds to `.grad` and frees the activations: a large batch's gradient in small portions of memory.
# - Divide each mean by the number of micro-batches in the window; where they hold different numbers of targets, take sums and divide by the window's number of targets. Step, clip, log and zero once per window; the last window is a window too.
# - Only what grows with the batch shrinks. The gradients must wait, which for a small batch can cost more than is saved. FLOPs stay the same, so compared with the true large batch no work is saved.
# - A loss over pairs in the batch and batch normalisation are not the same in micro-batches.
# - 4 x 16, not 1 x 64: here it was faster, for a little more memory.
# - To test such a loop, ask which micro-batches stand behind a step, and compare directions; counting steps and measuring lengths is not enough.
#
# Next: [Gradient accumulation with Accelerate](2_accelerator.ipynb), the same loop converted in three small steps.
