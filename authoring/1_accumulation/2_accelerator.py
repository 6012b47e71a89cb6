# %% [markdown]
# # Gradient accumulation with Accelerate
#
# **You will be able to** convert a PyTorch loop to `Accelerator` in three small steps, say what each of them does, avoid what the documentation gets wrong, and count what two devices send each other.
#
# **Minutes**: 90, with a place to stop · **Before this**: [Gradient accumulation in PyTorch](1_pytorch.ipynb).

# %% [markdown]
# ## A question
#
# Your loop divides the loss, counts micro-batches, and steps when a window is complete. Accelerate promises to take all three off your hands, and to run the same lines on one device or on many.
#
# Is it then still *the same training*? To the last micro-batch, to the last learning rate, on every device?

# %%
import inspect
import math
import os
from contextlib import ExitStack, contextmanager, nullcontext

import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.scheduler import AcceleratedScheduler
from accelerate.utils import GradientAccumulationPlugin
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset
from trainlean import (
    check,
    dataset,
    guess,
    hint,
    load_reviews,
    plot_receipts,
    plot_synchronisation,
    put_in_order,
    recall,
    reveal,
    show_diff,
    small_bert,
    start_devices,
    stop_devices,
)

# %%
recall("1_accumulation/2_accelerator")

# %% [markdown]
# ## The loop, once more
#
# This is the loop of the last notebook. Two things are new. The micro-batches come from a `DataLoader`, and `loss_of(model, batch)` returns the mean loss of one micro-batch, so that the same loop trains a toy and BERT.


# %%
def train_pytorch(model, optimizer, dataloader, loss_of, accumulation_steps):
    for number, batch in enumerate(dataloader, start=1):
        loss = loss_of(model, batch)
        (loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown]
# ## A witness
#
# How do you find out which micro-batches stand behind an optimizer step, and how much each of them counts? Ask a model that can tell.
#
# The *witness* has one weight for each micro-batch. Micro-batch 3 is zero everywhere but in place 3, so its gradient touches weight 3 and no other. What the optimizer finds in `.grad` at a step is then a *receipt*: one number for each micro-batch, its share in this step.


# %%
def make_witness(micro_batches):
    model = nn.Linear(micro_batches, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    dataloader = DataLoader(torch.eye(micro_batches), batch_size=1)
    receipts = []
    optimizer.register_step_pre_hook(
        lambda *_: receipts.append(model.weight.grad[0].clone())
    )  # called just before each step
    return model, optimizer, dataloader, receipts


def output(model, batch):
    return model(batch).mean()


def print_receipts(receipts):
    for step, receipt in enumerate(receipts, start=1):
        shares = " ".join(f"{share:4.2f}" if share else "   ." for share in receipt.tolist())
        print(f"step {step}: {shares}   sum {receipt.sum():.2f}")


# %% [markdown]
# Eight micro-batches, windows of four:

# %%
model, optimizer, dataloader, receipts = make_witness(8)
train_pytorch(model, optimizer, dataloader, output, accumulation_steps=4)
print_receipts(receipts)

# %% [markdown]
# Read it line by line. Step 1 holds micro-batches 1 to 4, a quarter each. Step 2 holds 5 to 8. The shares of a window add up to 1, as they must for a mean.
#
# Each of the three changes that follow must leave this receipt as it is.
#
# ## First change: `prepare`


# %%
def train_prepared(model, optimizer, dataloader, loss_of, accumulation_steps):
    accelerator = Accelerator(cpu=True)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for number, batch in enumerate(dataloader, start=1):
        loss = loss_of(model, batch)
        (loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown]
# What changed? `show_diff` only displays: green lines were added, red ones removed.


# %%
show_diff(train_pytorch, train_prepared)

# %% [markdown]
# Two lines were added, none removed. `cpu=True` keeps this lesson on the CPU. What does `prepare` give back?

# %%
accelerator = Accelerator(cpu=True)
before = make_witness(8)[:3]
after = accelerator.prepare(*before)
for name, old, new in zip(("model", "optimizer", "data loader"), before, after):
    print(f"{name:12} {type(old).__name__:12} -> {type(new).__name__}")

# %% [markdown]
# - The **data loader** moves each batch to the device, gives every device its own share, and notices its last batch. That will matter.
# - The **optimizer** ignores `step` and `zero_grad` while the accelerator says that a window is not complete. So far nobody has told the accelerator of windows, and the optimizer does what it always did.
# - The **model** moves to the device. Here it stays what it was; on two devices it becomes a `DistributedDataParallel` (further below).
#
# So on one device nothing may change yet:


# %%
def receipts_of(train, micro_batches=8, accumulation_steps=4):
    model, optimizer, dataloader, receipts = make_witness(micro_batches)
    train(model, optimizer, dataloader, output, accumulation_steps)
    return receipts


print_receipts(receipts_of(train_prepared))

# %% [markdown]
# ## Second change: `backward`


# %%
def train_backward(model, optimizer, dataloader, loss_of, accumulation_steps):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for number, batch in enumerate(dataloader, start=1):
        loss = loss_of(model, batch)
        accelerator.backward(loss)
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


show_diff(train_prepared, train_backward)
print_receipts(receipts_of(train_backward))

# %% [markdown]
# The division is gone and the shares are still quarters: `accelerator.backward` divides, because the `Accelerator` now knows the accumulation steps.
#
# **Keep your own division and you divide twice:**


# %%
def train_divided_twice(model, optimizer, dataloader, loss_of, accumulation_steps):
    train_backward(
        model,
        optimizer,
        dataloader,
        lambda *args: loss_of(*args) / accumulation_steps,
        accumulation_steps,
    )


print_receipts(receipts_of(train_divided_twice))

# %% [markdown]
# Sixteenths, and nothing is raised.
#
# ## Third change: `accumulate`


# %%
def train_accumulating(model, optimizer, dataloader, loss_of, accumulation_steps):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


show_diff(train_backward, train_accumulating)
print_receipts(receipts_of(train_accumulating))

# %% [markdown]
# The counter and the `if` are gone. `step` and `zero_grad` are *called* for every micro-batch and *happen* at the end of a window. One flag decides, and you can read it:

# %%
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model, optimizer, dataloader, receipts = make_witness(8)
model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
for number, batch in enumerate(dataloader, start=1):
    with accelerator.accumulate(model):
        accelerator.backward(output(model, batch))
        optimizer.step()
        optimizer.zero_grad()
        print(
            f"micro-batch {number}: sync_gradients {accelerator.sync_gradients!s:5}  steps so far "
            f"{len(receipts)}"
        )

# %% [markdown]
# `accumulate` counts how often its block is entered, and sets `sync_gradients` at the beginning of the block. The flag stays as it is until the next block, so `step` and `zero_grad` may stand after the block too. The forward pass must stand inside; on two devices you will see why.

# %%
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
model, optimizer, dataloader, receipts = make_witness(8)
model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
for batch in dataloader:
    with accelerator.accumulate(model):
        accelerator.backward(output(model, batch))
    optimizer.step()
    optimizer.zero_grad()
print_receipts(receipts)

# %% [markdown]
# The toy of the last notebook must give its **2.04000** with all four loops.

# %%
x = torch.arange(1.0, 9.0)[:, None]
for train in (train_pytorch, train_prepared, train_backward, train_accumulating):
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    pairs = DataLoader(TensorDataset(x, 2 * x), batch_size=2)
    squared_error = lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1])
    train(model, torch.optim.SGD(model.parameters(), lr=0.02), pairs, squared_error, 4)
    print(f"{train.__name__:20} weight {model.weight.item():.5f}")

# %% [markdown]
# ### Exercise: convert a loop
#
# *Difficulty* ** · *8 minutes* · *Why*: a loop that you convert may have more in it than the one above.
#
# Somebody wrote this. For whole windows it is correct:
# ```python
# def train(model, optimizer, dataloader, loss_of, accumulation_steps, max_norm):
#     for index, batch in enumerate(dataloader):
#         if index % accumulation_steps == 0:
#             optimizer.zero_grad()
#         loss = loss_of(model, batch) / accumulation_steps
#         loss.backward()
#         if index % accumulation_steps == accumulation_steps - 1 or index == len(dataloader) - 1:
#             nn.utils.clip_grad_norm_(model.parameters(), max_norm)
#             optimizer.step()
# ```
# Write `train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm)`, which does the same for whole windows with `prepare` and `accumulate`. How a last, shorter window is divided and clipped is left to you; its division comes further below.
#
# - `accelerator` comes with the right `gradient_accumulation_steps`. Model, optimizer and data loader are plain.
# - Each complete window steps with the gradient of the large batch. Its length, over all parameters together, is clipped to `max_norm`. No micro-batch is left without a step.
# - The activations of one micro-batch are held at a time. Every `.grad` is `None` at the start, and backward gives a frozen weight none.
# - `accelerator.clip_grad_norm_(model.parameters(), max_norm)` clips at once, whenever it is called. It does not wait for the end of the window as `step` does.


# %%
put_in_order("train_with_accelerator")


# %% exercise="train_with_accelerator" points=3
def train_with_accelerator(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    """One pass over the data loader, accumulating as the accelerator was told; clip each window."""
    # BEGIN SOLUTION
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            optimizer.zero_grad()
    # END SOLUTION


# %% check="train_with_accelerator"
check(train_with_accelerator)

# %% [markdown]
# Stuck? `hint(train_with_accelerator)` tells a little more each time.
#
# ## One forward and one backward in a block
#
# The accelerator counts blocks, not backward passes. What if a block holds two micro-batches?


# %%
def train_two_a_block(model, optimizer, dataloader, loss_of, accumulation_steps):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    batches = list(dataloader)
    for first, second in zip(batches[::2], batches[1::2]):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, first))
            accelerator.backward(loss_of(model, second))
            optimizer.step()
            optimizer.zero_grad()


print_receipts(receipts_of(train_two_a_block))

# %% [markdown]
# Half the steps, and a gradient twice as large: eight quarters in one window. The rule is **one forward and one backward in each block**.
#
# **Two models** that train together under one loss (an encoder and a decoder, say) share one block. (Here the second one only stands beside the first.) With two blocks a micro-batch is counted twice:


# %%
def train_two_models(accumulate):
    def train(model, optimizer, dataloader, loss_of, accumulation_steps):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
        second = nn.Linear(1, 1)
        prepared = accelerator.prepare(model, second, optimizer, dataloader)
        model, second, optimizer, dataloader = prepared
        for batch in dataloader:
            with accumulate(accelerator, model, second):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()

    return train


@contextmanager
def a_block_each(accelerator, *models):
    with ExitStack() as blocks:
        for model in models:
            blocks.enter_context(accelerator.accumulate(model))
        yield


print("a block for each model")
print_receipts(receipts_of(train_two_models(a_block_each)))
print("one block, accumulate(model, second)")
print_receipts(receipts_of(train_two_models(Accelerator.accumulate)))

# %% [markdown]
# With a block each, the windows of four are cut in half, and their shares are still quarters.
#
# Cutting a batch of the data loader into pieces inside the block is the same mistake as two micro-batches in it. Give the data loader the size of a micro-batch instead.
#
# ## One Accelerator at a time
#
# <div style="border-left:4px solid #b3541e;background:#fff7ed;color:#1f2937;padding:8px 14px;max-width:720px"><b>Warning.</b> An <code>Accelerator</code> looks like an object of its own. It has its own counter of steps; but all Accelerators of a process share the accumulation settings, the flag <code>sync_gradients</code>, the device and the precision.</div>

# %%
first = Accelerator(cpu=True, gradient_accumulation_steps=4)
print("first, when made:                ", first.gradient_accumulation_steps)
second = Accelerator(cpu=True)
print("first, after a second was made:  ", first.gradient_accumulation_steps)
try:
    Accelerator(cpu=True, mixed_precision="bf16")
except ValueError as error:
    print("with another precision:          ", str(error).split(".")[0])

# %% [markdown]
# The second one, which was told nothing, set the first one back to 1: for accumulation the newest one decides. The precision is decided by the first, and asking for another is an error. In a notebook a second one is made whenever a cell that makes one is run again. Make the `Accelerator` right before the loop that uses it, as every function here does.
#
# ## The last window
#
# Now ten micro-batches, and windows of four. The data loader was prepared, so the accelerator knows when the last micro-batch has come. Which shares will the last two have?
#
# **Predict.** How large will the gradient of the last step be, compared with the right one (the mean of the last two micro-batches)?

# %%
# BEGIN SOLUTION
my_guess = 1
# END SOLUTION
guess("last gradient with Accelerate", my_guess, "times the right one")

# %%
as_it_is = receipts_of(train_accumulating, micro_batches=10)
print_receipts(as_it_is)
reveal("last gradient with Accelerate", as_it_is[-1].sum().item(), "times the right one")

# %% [markdown]
# There is a third step, so nothing is left over. But the last two micro-batches have a quarter each, where the mean of two has a half. Accelerate 1.15 says why in two places. When to step:

# %%
print(inspect.getsource(Accelerator._do_sync))

# %% [markdown]
# At the end of the data loader the window is closed, however many micro-batches it holds. (So the pieces of a batch, as above, cannot have a block each: `end_of_dataloader` is true for *every* piece of the last batch, and each becomes a step of its own.) And what the loss is divided by:

# %%
print(
    "\n".join(
        line for line in inspect.getsource(Accelerator.backward).splitlines() if "loss / " in line
    )
)

# %% [markdown]
# By `gradient_accumulation_steps`, in the last window too. The prepared data loader looks only one batch ahead, to see the end.
#
# The first `if` of `_do_sync` also asks for `sync_with_dataloader`. It is one of the settings that a `GradientAccumulationPlugin` can hold, in place of the plain number:


# %%
def steps_in_two_epochs(**settings):
    plugin = GradientAccumulationPlugin(num_steps=4, **settings)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model, optimizer, dataloader, receipts = make_witness(10)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for _ in range(2):
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(output(model, batch))
                optimizer.step()
                optimizer.zero_grad()
    accelerator.sync_gradients = True  # all Accelerators share it; in an open window it is False
    return receipts


for value in (True, False):
    print(f"sync_with_dataloader={value}")
    print_receipts(steps_in_two_epochs(sync_with_dataloader=value))

# %% [markdown]
# With `False`, step 3 is made of micro-batches 9 and 10 of the first epoch and 1 and 2 of the second. No window is short: twenty micro-batches happen to fill five. With ten micro-batches in all, two would be left over after the last epoch and never get their step. So this is not the cure.
#
# The cure is to undo the wrong division before it happens: multiply the loss by a factor, and `accelerator.backward` divides it back. Which factor that is, you will say in the exercise. Here is what should come out:

# %%
right = [receipt / receipt.sum() for receipt in as_it_is]
plot_receipts({"Accelerate 1.15 as it is": as_it_is, "cured": right})

# %% [markdown]
# In this training run one window in three is affected.

# %% [markdown]
# ### Exercise: every window its mean
#
# *Difficulty* ** · *5 minutes* · *Why*: the last window is short wherever the accumulation steps do not divide the micro-batches.
#
# Write `loss_factor(index, micro_batches, accumulation_steps)`. The loop around it you have written often enough; it stands below and uses your function.
#
# - `index` is the number of a micro-batch in its epoch, counted from 0; `micro_batches` is how many there are, `len(dataloader)`. All hold equally many samples.
# - It returns the number by which this micro-batch's loss is multiplied before `accelerator.backward` divides it by `accumulation_steps`. Then every window, the last one too, steps with the mean of its own micro-batches.
# - `accumulation_steps` may be 1, and it may be more than `micro_batches`.


# %% exercise="loss_factor" points=2
def loss_factor(index, micro_batches, accumulation_steps):
    """By what to multiply the loss of a micro-batch, so that its window becomes a mean."""
    # BEGIN SOLUTION
    in_whole_windows = micro_batches // accumulation_steps * accumulation_steps
    if index < in_whole_windows:
        return 1.0
    return accumulation_steps / (micro_batches - in_whole_windows)
    # END SOLUTION


# %% check="loss_factor"
check(loss_factor)


# %%
def train_cured(model, optimizer, dataloader, loss_of, accumulation_steps):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for index, batch in enumerate(dataloader):
        with accelerator.accumulate(model):
            factor = loss_factor(index, len(dataloader), accumulation_steps)
            accelerator.backward(factor * loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()


show_diff(train_accumulating, train_cured)
print_receipts(receipts_of(train_cured, micro_batches=10))

# %% [markdown]
# Log the loss as it was before it was multiplied.
#
# **A good place to stop for today.** The loop is converted, to its last window. What follows are the learning rate's schedule and two devices.
#
# ## How long is a learning rate schedule?
#
# Suppose that the learning rate is to fall in a straight line to zero. The scheduler must know after how many steps: its *length*. What is a step now, a micro-batch or a window? Accelerate's own text says:

# %%
text = " ".join(AcceleratedScheduler.__doc__.split())
print(text[text.index("When performing") : text.index(" Args:")])

# %% [markdown]
# "Should not be changed": so 10 micro-batches, length 10. Let us follow the learning rate through one epoch. `scheduler.step()` stands where it should, in the block after `optimizer.step()`.


# %%
def learning_rates(length, prepare_scheduler=True, **settings):
    plugin = GradientAccumulationPlugin(num_steps=4, **settings)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model, optimizer, dataloader, _ = make_witness(10)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / length))
    if prepare_scheduler:
        scheduler = accelerator.prepare(scheduler)
    rates = []
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(output(model, batch))
            if accelerator.sync_gradients:
                rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return [*rates, optimizer.param_groups[0]["lr"]]


# %% [markdown]
# **Predict.** The rate starts at 1. What is it at the end, with length 10?

# %%
# BEGIN SOLUTION
my_guess = 0
# END SOLUTION
guess("learning rate at the end, length 10", my_guess, "of the first")

# %%
rates = learning_rates(10)
print([round(rate, 2) for rate in rates])
reveal("learning rate at the end, length 10", round(rates[-1], 4), "of the first")

# %% [markdown]
# Three steps were taken, with the first three of these rates; the fourth is what is left afterwards. So the line moved by three tenths and stayed there. The prepared scheduler moves **once per optimizer step** here, so the length must be changed after all.
#
# The plugin has a setting for this, `adjust_scheduler`, which is on by default. Let us turn it on and off and look:

# %%
for value in (True, False):
    given = GradientAccumulationPlugin(num_steps=4, adjust_scheduler=value)
    at_the_end = learning_rates(10, adjust_scheduler=value)[-1]
    print(
        f"adjust_scheduler={value!s:5}: at the end {at_the_end:.2f}; passed on: {given.to_kwargs()}"
    )

# %% [markdown]
# No difference. The plugin passes on only what differs from its default. `True` *is* the default, so the accelerator is told nothing and assumes `False`: a bug in Accelerate 1.15. Told `True`, it would change nothing here: within a window the prepared scheduler only raises a counter, which does not move this rate.
#
# Here are the ways side by side. The last column should be 0.

# %%
ways = {
    "length 10 (micro-batches), prepared": learning_rates(10),
    "length 10, scheduler not prepared": learning_rates(10, prepare_scheduler=False),
    "length 3, scheduler not prepared": learning_rates(3, prepare_scheduler=False),
    "length 3, prepared": learning_rates(math.ceil(10 / 4)),
}
rounded = [[f"{rate:.2f}" for rate in rates] for rates in ways.values()]
pd.DataFrame(rounded, index=ways, columns=["step 1", "step 2", "step 3", "afterwards"])

# %% [markdown]
# A scheduler that was not prepared moves with every micro-batch. With length 10 it does end at zero, but its first optimizer step no longer has the full rate. With length 3 it had reached zero before the first optimizer step came, and nothing would have been learned.
#
# So for a prepared scheduler the length is counted in optimizer steps. One thing is still missing: several devices. This is what the prepared scheduler does at the end of a window:

# %%
lines = inspect.getsource(AcceleratedScheduler.step).splitlines()
start = next(number for number, line in enumerate(lines) if "split_batches" in line)
print("\n".join(lines[start:]))

# %% [markdown]
# On two devices the scheduler moves twice in each optimizer step, unless `split_batches=True`. (The *prepared* data loader, in turn, is as long as its device's share.)

# %% [markdown]
# ### Exercise: a line that ends at zero
#
# *Difficulty* *** · *8 minutes* · *Why*: a learning rate that never comes down raises no error.
#
# Write `linear_decay(accelerator, optimizer, dataloader, epochs)`. It returns a *prepared* scheduler with which the learning rate falls in a straight line: unchanged at the first optimizer step, 0 after the last one of the last epoch. How long is the line? Four facts from above decide it: whether a window goes on from one epoch into the next, whether a shorter window makes a step, whose share `len(dataloader)` is, and how often the scheduler moves.
#
# `optimizer` and `dataloader` are prepared. The loop that uses your scheduler calls `scheduler.step()` in every `accumulate` block. `accelerator` knows `gradient_accumulation_steps` and `num_processes`, the number of devices. `check` also calls your function with an accelerator whose `num_processes` is 2.


# %% exercise="linear_decay" points=2
def linear_decay(accelerator, optimizer, dataloader, epochs):
    """A prepared scheduler that takes the learning rate in a straight line to 0 at the end."""
    # BEGIN SOLUTION
    steps_an_epoch = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps)
    num_training_steps = steps_an_epoch * epochs * accelerator.num_processes
    return accelerator.prepare(
        LambdaLR(optimizer, lambda step: max(0.0, 1 - step / num_training_steps))
    )
    # END SOLUTION


# %% check="linear_decay"
check(linear_decay)

# %% [markdown]
# A schedule that is too long never reaches zero; one that is too short spends the rest of the training at zero. On two real devices you will see that in a moment.
#
# ## Two devices
#
# Until now one process trained. With two devices, two processes train *copies* of the model, each on its own share of the data. Each process is called a *rank*: rank 0 and rank 1. So that the copies stay equal, they must step with the same gradient: the mean over both ranks.
#
# `DistributedDataParallel` (DDP) does that. During the backward pass it starts an **all-reduce** of the gradients: every rank gives what it has, every rank gets the sum. DDP divides by the number of ranks, so here it is the mean.
#
# The next line starts two real processes. A cell that begins with `%%px` runs on both of them, not here. There `rank` and `world_size`, the number of ranks, are set already.

# %%
os.environ["CUDA_VISIBLE_DEVICES"] = (
    ""  # the witnesses below live on the CPU, on machines with several GPUs too
)
devices = start_devices(2)

# %%
# %%px
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader
from trainlean import Meter, batches, load_reviews, small_bert

print(f"rank {rank} of {world_size}")

# %% [markdown]
# What does `prepare` do here that it did not do on one device?

# %%
# %%px
accelerator = Accelerator(cpu=True)
model, dataloader = nn.Linear(8, 1, bias=False), DataLoader(torch.eye(8), batch_size=1)
model, prepared = accelerator.prepare(model, dataloader)
print(
    type(model).__name__,
    "| length",
    len(dataloader),
    "->",
    len(prepared),
    "| my micro-batches:",
    [batch.argmax().item() + 1 for batch in prepared],
)

# %% [markdown]
# The model became a DDP model, and each rank sees every second micro-batch.
#
# ### When are gradients synchronised?
#
# Let each rank accumulate 4 micro-batches. The result is needed once, at the end. But plain DDP does not know that you accumulate. How often does it synchronise? Here is the loop. Its `yield` lets us look at a counter after every micro-batch:


# %%
# %%px
def plain_ddp(witness, micro_batches):
    model = DistributedDataParallel(witness)
    for micro_batch in micro_batches:
        loss = model(micro_batch).mean() / 4
        loss.backward()
        yield


# %% [markdown]
# To try it out, each rank gets a witness with eight weights. Micro-batches 1 to 4 go to rank 0, and 5 to 8 to rank 1. So the receipt also tells *whose* micro-batches are in a gradient. `Meter` counts the all-reduces.


# %%
# %%px
def try_out(way):
    witness = nn.Linear(8, 1, bias=False)
    nn.init.zeros_(witness.weight)
    mine = torch.eye(8)[4 * rank : 4 * rank + 4].split(1)
    with Meter() as meter:
        counts = [meter.all_reduces for _ in way(witness, mine)]
    gradient = witness.weight.grad[0].clone()
    torch.optim.SGD(witness.parameters(), lr=1.0).step()
    return {
        "all-reduces": counts,
        "gradient": gradient.tolist(),
        "weights": witness.weight[0].tolist(),
    }


result = try_out(plain_ddp)
print("all-reduces so far:", result["all-reduces"], "receipt:", result["gradient"])

# %% [markdown]
# All eight micro-batches are in both ranks' gradient, and plain DDP synchronises in every backward pass. DDP has a context manager that keeps the gradients local: `no_sync`. The gradients are sent in the backward pass, so one may think that it belongs there. The last micro-batch stays outside:


# %%
# %%px
def no_sync_around_backward(witness, micro_batches):
    model = DistributedDataParallel(witness)
    for number, micro_batch in enumerate(micro_batches, start=1):
        loss = model(micro_batch).mean() / 4
        with nullcontext() if number == 4 else model.no_sync():
            loss.backward()
        yield


# %% [markdown]
# **Predict.** How many all-reduces does this make for the four micro-batches?

# %%
# BEGIN SOLUTION
my_guess = 1
# END SOLUTION
guess("all-reduces with no_sync around backward", my_guess, "all-reduces")

# %% [markdown]
# Three more ways: around forward *and* backward; around everything, the last micro-batch too; and Accelerate's `accumulate`.


# %%
# %%px
def no_sync_around_both(witness, micro_batches):
    model = DistributedDataParallel(witness)
    for number, micro_batch in enumerate(micro_batches, start=1):
        with nullcontext() if number == 4 else model.no_sync():
            loss = model(micro_batch).mean() / 4
            loss.backward()
        yield


def no_sync_always(witness, micro_batches):
    model = DistributedDataParallel(witness)
    for micro_batch in micro_batches:
        with model.no_sync():
            loss = model(micro_batch).mean() / 4
            loss.backward()
        yield


def accumulate(witness, micro_batches):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = accelerator.prepare(witness)
    for micro_batch in micro_batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(micro_batch).mean())
        yield


# %% [markdown]
# Now all five:

# %%
# %%px
ways = [plain_ddp, no_sync_around_backward, no_sync_around_both, no_sync_always, accumulate]
results = {way.__name__: try_out(way) for way in ways}
for name, result in results.items():
    print(f"{name:24} all-reduces so far: {result['all-reduces']}")

# %% [markdown]
# Bring the results here. The reference is the large batch over both ranks, in which all eight micro-batches count one eighth. *Off by* is the largest difference between rank 0's gradient and the reference, *apart by* the largest difference between the two ranks' weights after one step.

# %%
on_rank_0, on_rank_1 = devices.pull("results")
rows = {}
for name, result in on_rank_0.items():
    gradient, weights = torch.tensor(result["gradient"]), torch.tensor(result["weights"])
    other_weights = torch.tensor(on_rank_1[name]["weights"])
    rows[name] = {
        "all-reduces": result["all-reduces"][-1],
        "gradient off by": f"{(gradient - 1 / 8).abs().max():.3f}",
        "ranks apart by": f"{(weights - other_weights).abs().max():.3f}",
    }
reveal(
    "all-reduces with no_sync around backward",
    rows["no_sync_around_backward"]["all-reduces"],
    "all-reduces",
)
pd.DataFrame(rows).T

# %% [markdown]
# The same as a picture. On the left, each box is a micro-batch and each red line an all-reduce. On the right, the gradient with which each rank steps.

# %%
plot_synchronisation(on_rank_0, on_rank_1)

# %% [markdown]
# - **Plain DDP** is right, and pays for every micro-batch.
# - **Around backward only** is right, and saves *nothing*: DDP decides in the *forward* pass whether the coming backward pass will synchronise.
# - **Around both** pays once. So does **`accumulate`**: it does this for you, which is why the forward pass must stand in its block.
# - **Always** sends nothing. Each rank steps with its own four micro-batches, and the copies of the model drift apart. No error is raised.

# %% [markdown]
# One backward pass of the witness, which has one weight tensor, made one all-reduce. Of a larger model DDP collects the gradients in *buckets*, and sends these. The small BERT, every backward pass synchronised:

# %%
# %%px
bert = DistributedDataParallel(small_bert(seed=0))
batch = batches(load_reviews()[:4], 4)[0]
with Meter() as meter:
    for _ in range(3):
        before = meter.all_reduces
        bert(**batch).loss.backward()
        print("all-reduces in this backward pass:", meter.all_reduces - before)

# %% [markdown]
# Here the first synchronised backward pass sent all gradients in one piece, and from the second on there are two buckets. So "one" synchronisation is one all-reduce *for each bucket*. Do not take the second bucket for a broken `no_sync`.
#
# We count instead of timing: here both ranks share one machine, and a time would say nothing about a network.
#
# In a script of your own a launcher starts the processes, for instance `torchrun --nproc_per_node 2 train.py`, on a CPU with `ACCELERATE_USE_CPU=true` before it. A process learns from torchrun's environment variables that there are others; started with plain `python train.py`, it believes that it is alone. So print `accelerator.num_processes` first.

# %% [markdown]
# ### The schedule on two devices
#
# As promised: 14 micro-batches, 7 for each rank, windows of 4. Each rank takes 2 steps. Once with length 2, once with length 2 × 2:

# %%
# %%px
for length in (2, 2 * world_size):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = nn.Linear(14, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / length))
    model, optimizer, dataloader, scheduler = accelerator.prepare(
        model, optimizer, DataLoader(torch.eye(14), batch_size=1), scheduler
    )
    rates = []
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean())
            if accelerator.sync_gradients:
                rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    print(
        f"length {length}: {len(dataloader)} micro-batches, learning rates {rates}, afterwards "
        f"{optimizer.param_groups[0]['lr']}"
    )

# %% [markdown]
# With length 2 the second step had a learning rate of zero. The factor `num_processes` belongs there. A warm-up given in steps needs it as well.
#
# The devices are no longer needed.

# %%
stop_devices()

# %% [markdown]
# ### Exercise: synchronise once
#
# *Difficulty* ** · *8 minutes* · *Why*: without Accelerate this is in your hands.
#
# Write `train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps)` in plain PyTorch.
#
# - `model` is a `DistributedDataParallel` model, perhaps with shared weights, or with frozen ones, whose `.grad` stays `None`. Your function runs on two ranks at once; `micro_batches` is this rank's list, as long as the other rank's; it stays as it is. Afterwards the model synchronises as before.
# - Each window takes one optimizer step, with the gradient of the large batch over both ranks, and is synchronised **once**: one all-reduce for this small model, whose gradients fit into one bucket.
# - The last window may be shorter. It is a window like the others: its own mean, its all-reduce, its step.
# - The activations of one micro-batch are held at a time; every `.grad` is empty at the start. You may also use `torch.distributed` yourself, as long as each window sends all its gradients in one call.


# %%
put_in_order("train_synchronised_once")


# %% exercise="train_synchronised_once" points=3
def train_synchronised_once(model, optimizer, loss_of, micro_batches, accumulation_steps):
    """Train a DDP model on this rank's micro-batches, with one all-reduce for each window."""
    # BEGIN SOLUTION
    for start in range(0, len(micro_batches), accumulation_steps):
        window = micro_batches[start : start + accumulation_steps]
        for number, batch in enumerate(window, start=1):
            with nullcontext() if number == len(window) else model.no_sync():
                loss = loss_of(model, batch) / len(window)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    # END SOLUTION


# %% check="train_synchronised_once"
check(train_synchronised_once)

# %% [markdown]
# ## The same weights
#
# The witness agrees. Now the small BERT: the first 64 reviews in their order, micro-batches of 4, windows of 4, one epoch, so 4 optimizer steps. Once with the PyTorch loop, once with Accelerate. Length (norm) and distance moved are a fingerprint of all weights together. The next notebook trains the same with the `Trainer`, and must arrive at the same fingerprint.


# %%
def train_reviews(train):
    model = small_bert(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    dataloader = DataLoader(dataset(load_reviews()[:64], max_length=64), batch_size=4)
    train(model, optimizer, dataloader, lambda model, batch: model(**batch).loss, 4)
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


start = torch.cat([parameter.detach().flatten() for parameter in small_bert(seed=0).parameters()])
weights = {train.__name__: train_reviews(train) for train in (train_pytorch, train_accumulating)}
for name, vector in {"before training": start, **weights}.items():
    moved = (vector - start).double().norm()
    print(f"{name:20} norm {vector.double().norm():.4f}  moved by {moved:.4f}")
difference = (weights["train_pytorch"] - weights["train_accumulating"]).abs().max()
print(f"largest difference < 1e-6: {bool(difference < 1e-6)}")

# %% [markdown]
# Every weight agrees, to 1e-6. On one device, with whole windows, Accelerate's loop trained here as the PyTorch loop did.
#
# ## What to keep
#
# - `prepare` model, optimizer, data loader and scheduler; `accelerator.backward` divides; one forward and one backward in each `accumulate` block; clip only when `accelerator.sync_gradients`.
# - Here `backward` divides by $k$ always: in a short last window, multiply the loss by $k$ / its micro-batches.
# - The schedule's length: $\lceil$ micro-batches of a device / $k \rceil$ × epochs × devices; a warm-up in steps is multiplied by the devices, too. Trust neither 1.15's docstring nor its `adjust_scheduler`.
# - `no_sync` goes around forward *and* backward, for all micro-batches of a window but its last. `accumulate` does that. One synchronisation is one all-reduce for each bucket.
# - One `Accelerator` in a process: the newest one sets the accumulation for all, the first one the precision.
#
# Next: [Gradient accumulation with the Trainer](3_trainer.ipynb), where the loop disappears altogether.
