# %% [markdown]
# # The published table, restored
#
# **You will be able to** predict the memory of every row of a published benchmark without its graphics card, say what such a table can and cannot tell, and choose a setting from one.
#
# **Minutes**: 70, with a place to stop · **Before this**: [Where memory goes](../0_start/1_where_memory_goes.ipynb) and the units on accumulation and checkpointing.

# %% [markdown]
# ## A question
#
# In January 2022 a page of the transformers documentation trained BERT-large on one graphics card of 16 GB and showed what each saving brings.
# The table below is from that page. (*Vanilla* is the row without any saving, `batch 4`. What the page calls MB are MiB.) In June 2023 the figures were taken out of it.
#
# How much of the table can you get back without the card?

# %%
import json
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pandas as pd
import torch
from accelerate.commands.estimate import estimate_training_usage
from IPython.display import display
from trainlean import (
    CATEGORIES,
    CONTEXT,
    CURVE,
    PUBLISHED,
    ROWS,
    Meter,
    Outcome,
    bert_large_config,
    check,
    explorer,
    find_rows,
    guess,
    hint,
    measure,
    measure_rows,
    measured_table,
    plot_micro_batches,
    plot_table,
    predict_row,
    predict_run,
    prediction_table,
    published_runs,
    recall,
    recorded_runs,
    reveal,
    small_bert,
    summary,
    put_in_order,
)

MiB = 2**20
published = published_runs()
pd.DataFrame(
    {
        "run": [run.name for run in published],
        "seconds": [run.median_seconds for run in published],
        "MB": [run.peak_bytes // MiB for run in published],
        "time / vanilla": [
            None if not run.seconds else round(run.median_seconds / published[0].median_seconds, 2)
            for run in published
        ],
        "memory / vanilla": [
            round(run.peak_bytes / published[0].peak_bytes, 2) for run in published
        ],
    }
).astype(object).fillna("–")

# %%
recall("4_whole_picture/1_published_table")

# %% [markdown]
# `1x4` is micro-batches of 1, accumulated over 4. *fp16* is mixed precision: the large multiplications are done with numbers of 2 bytes, while the weights keep their 4.
# *Adafactor* and *8-bit Adam* are optimizers with a smaller state. The last row was written with Accelerate, and only its memory was noted.
#
# Where does it come from, and what is wrong with it? The file of the course keeps both.

# %%
source = json.loads(PUBLISHED.read_text(encoding="utf-8"))
print(source["source"])
print(source["hardware"], "·", source["data"])
for fault in source["faults"]:
    print("-", fault)

# %% [markdown]
# ## Read the ratios correctly
#
# The memory is that of the *whole device*. On that machine the CUDA context, which is what CUDA keeps for itself, took 1,343 MB (read while the card held a single number). We take it to be the same in every row. What the training needs is the rest.
# Times can only be compared for equal work. All rows of this table trained on 512 samples; the rows of another table may not have.
#
# ### Exercise: ratios of a table
#
# *Difficulty* * · *6 minutes* · *Why*: a ratio with the context in it makes every saving look smaller than it is.
#
# Write `ratios(rows, context)`. Each row is a dictionary with `"name"`, `"seconds"`, `"samples"` and `"memory"` (of the whole device); the first row is vanilla.
# Return a list with a pair `(time, memory)` for each row, in order: the time **for one sample** and the memory **without the context**, both divided by vanilla's. Leave `rows` as they are.


# %%
put_in_order("ratios")


# %% exercise="ratios" points=2
def ratios(rows, context):
    """Pairs (time, memory) as multiples of the first row's, for one sample, without the context."""
    # BEGIN SOLUTION
    vanilla = rows[0]
    pairs = []
    for row in rows:
        time = (row["seconds"] / row["samples"]) / (vanilla["seconds"] / vanilla["samples"])
        memory = (row["memory"] - context) / (vanilla["memory"] - context)
        pairs.append((time, memory))
    return pairs
    # END SOLUTION


# %% check="ratios"
check(ratios)

# %% [markdown]
# (`hint(ratios)` helps.) Apply it to the published table. The last row has no time and is left out.

# %%
timed = [
    {
        "name": run.name,
        "seconds": run.median_seconds,
        "samples": run.samples,
        "memory": run.peak_bytes,
    }
    for run in published
    if run.seconds
]
pairs = ratios(timed, CONTEXT)
pd.DataFrame(
    {
        "run": [row["name"] for row in timed],
        "time": [f"{time:.2f}" for time, _ in pairs],
        "memory": [f"{memory:.2f}" for _, memory in pairs],
        "with the context": [f"{memory:.2f}" for _, memory in ratios(timed, 0)],
    }
)

# %% [markdown]
# Compare the last two columns: the leaner the row, the further they are apart.

# %% [markdown]
# ## What a card of 2022 held
#
# Now the bytes. In the first lesson the prediction for vanilla was too low. It counted the tensors that today's PyTorch keeps on a CPU. A card of 2022 kept others, and the difference can be named:
#
# - On CUDA the mask of a dropout has 1 byte for each number, not 4. That is *less*.
# - The softmax of torch 1.10 also kept its input until the backward pass (pull request 66018 removed that).
# - `zero_grad` set gradients to zero and kept their memory; today's default frees them.
# - The allocator hands out blocks: sizes are rounded up, and what lies between blocks may fit nothing.
#
# `predict_run(..., device=...)` takes these differences into account. With "gpu" it traces what CUDA keeps today, with "gpu of 2022" what it kept then.
# Then it replays every birth and death of a tensor through the allocator's rules (`trainlean/costs/allocator.py`, about 100 lines). No card is involved.
#
# First today's CPU:

# %%
steps = {"cpu": predict_run(bert_large_config(), micro_batch=4)}
print(f"tensors of vanilla on a CPU of today: {steps['cpu'].peak_bytes / 2**30:.1f} GiB")

# %% [markdown]
# **Predict.** How many GiB were there on the card of 2022?

# %%
# BEGIN SOLUTION
my_guess = 12.5
# END SOLUTION
guess("tensors of vanilla on a card of 2022", my_guess, "GiB")

# %%
steps |= {
    device: predict_run(bert_large_config(), micro_batch=4, device=device)
    for device in ("gpu", "gpu of 2022")
}
reveal(
    "tensors of vanilla on a card of 2022",
    round(steps["gpu of 2022"].peak_bytes / 2**30, 1),
    "GiB",
    "predicted",
)
pd.DataFrame(
    {
        device: {category: round(run.peak[category] / MiB) for category in CATEGORIES}
        | {"tensors": round(run.peak_bytes / MiB)}
        for device, run in steps.items()
    }
)

# %% [markdown]
# From the first column to the second the masks shrink, and activations with them. From the second to the third the gradients stay, and the softmax's inputs come on top.
# With the allocator and the context:

# %%
reserved = steps["gpu of 2022"].device_bytes["allocator_reserved"]
told = published[0].peak_bytes
print(
    f"allocator {reserved / MiB:,.0f} + context {CONTEXT / MiB:,.0f} = "
    f"{(reserved + CONTEXT) / MiB:,.0f} MiB; published {told / MiB:,.0f}: "
    f"{(reserved + CONTEXT) / told - 1:+.1%}"
)

# %% [markdown]
# ### Reading an out-of-memory message
#
# Such a message names, among others, three numbers: what was asked for, what is *allocated by PyTorch*, and what is *reserved by PyTorch but unallocated*. The replay knows the last two. Here are two training runs of the same model, each with the peak of what is allocated and how much higher the peak of what is reserved is:

# %%
for name, run in {
    "vanilla": steps["gpu"],
    "batch 1": predict_run(bert_large_config(), micro_batch=1, device="gpu"),
}.items():
    allocated = run.device_bytes["allocator_peak"]
    idle = run.device_bytes["allocator_reserved"] - allocated
    print(
        f"{name:8} allocated {allocated / MiB:6,.0f} MiB at most,"
        f" {idle / MiB:4,.0f} MiB more reserved ({idle / allocated:.1%})"
    )

# %% [markdown]
# Here little is reserved and idle. If what is allocated is near the card's memory, the training itself is too large. If much is reserved but unallocated, the message recommends `PYTORCH_ALLOC_CONF=expandable_segments:True` (in older versions `PYTORCH_CUDA_ALLOC_CONF`).

# %% [markdown]
# ## Every row
#
# The same for all rows. *all* stands for 1x4, checkpointed, with fp16. What is modelled in each:
#
# - *fp16*: `autocast`, which lets each operation choose its type. Weights, gradients and state stay `float32`; a half-size copy of each linear layer's weights joins the activations, and CUDA's softmax and normalisation work in `float32`.
# - *Adafactor*: the optimizer of transformers itself, traced. For a matrix it keeps one number for each row and column.
# - *8-bit Adam*: it is computed by *kernels* (programs that run on the card) of another library, which cannot be traced, so its state is a formula: two averages of 1 byte a weight, each with a scale of 4 bytes for every 2,048 weights (tensors of fewer than 4,096 weights keep theirs in `float32`).
#
# The last column is the error in what the training itself takes, so the context is left out on both sides. The prediction for vanilla is the one from above.

# %%
predicted = {"vanilla": steps["gpu of 2022"]}
predicted |= {
    row.key: predict_row(row) for row in find_rows(["accumulation", "checkpointing", "adam8bit"])
}

# %%
predicted |= {row.key: predict_row(row) for row in find_rows(["fp16", "adafactor", "all"])}

# %%
predicted |= {row.key: predict_row(row) for row in find_rows(["all-adafactor", "all-adam8bit"])}
rows = [row for row in ROWS if row.key in predicted]
prediction_table(rows, [predicted[row.key] for row in rows])

# %% [markdown]
# All in MiB. No number was fitted. The facts about 2022 come from the libraries' own history, and the allocator's rules from its documentation and source.
# Still it is an inference. We looked for such facts because vanilla came out too low, so vanilla proves less than the rows after it.
# And the published table does not divide its numbers into parts: two errors that cancel would not be seen.
# The tenth row, the Accelerate loop, has the settings of the ninth; its prediction is the same, and so was its measurement.
#
# ## Rules of thumb
#
# What would other estimates have said? Three of them:
#
# - **16 bytes a weight**: 4 each for weight and gradient, 8 for the state of AdamW. No activations.
# - **`accelerate estimate-memory`**: only its formula is called here. It is for a batch of 1 and leaves activations out too.
# - **The activations of Korthikanti et al.** (2022) on top of the 16 bytes: in each layer $sbh(34 + 5as/h)$ bytes for numbers of 2 bytes, with $s$ tokens in each of $b$ sequences, width $h$ and $a$ attention heads; twice the sizes, but not the masks, make that $sbh(66 + 9as/h)$ for 4. Checkpointed, a layer keeps its input only.

# %%
with torch.device("meta"):
    from transformers import BertForSequenceClassification

    weights = sum(
        parameter.numel()
        for parameter in BertForSequenceClassification(bert_large_config()).parameters()
    )
s, h, a, layers = 512, 1024, 16, 24


def sixteen_bytes(row):
    return 16 * weights


def accelerate_estimate(row):
    return max(
        estimate_training_usage(
            4 * weights, "float16" if row.precision == "fp16" else "float32"
        ).values()
    )


def with_activations(row):
    size = 2 if row.precision == "fp16" else 4
    layer = s * row.micro_batch * h * (34 + 5 * a * s / h if size == 2 else 66 + 9 * a * s / h)
    boundary = s * row.micro_batch * h * size
    return 16 * weights + (layers * boundary + layer if row.checkpointing else layers * layer)


def meter(row):
    return predicted[row.key].device_bytes["allocator_reserved"]


# %%
truth = {
    row.key: next(run for run in published if run.name == row.published).peak_bytes - CONTEXT
    for row in rows
}
errors = {
    rule.__name__: {row.key: rule(row) / truth[row.key] - 1 for row in rows}
    for rule in (sixteen_bytes, accelerate_estimate, with_activations, meter)
}
frame = pd.DataFrame(errors)
frame.loc["mean absolute error"] = frame.abs().mean()
frame.map(lambda error: f"{error:+.1%}").replace("-0.0%", "+0.0%")

# %% [markdown]
# The first two know nothing of activations, so they come near only where few are left, and with fp16 the second takes Adam's state alone for the whole. The third is too low where its state is right (AdamW), and it meets 8-bit Adam's row to a tenth of a percent, although it counts 16 bytes a weight where that row takes fewer. So its errors must cancel there. Take them apart:

# %%
row = find_rows(["adam8bit"])[0]
parts = predicted["adam8bit"].peak
rule_activations = with_activations(row) - sixteen_bytes(row)
state_error = sixteen_bytes(row) - (
    parts["weights"] + parts["gradients"] + parts["optimizer state"]
)
print(f"its 16 bytes a weight less the predicted: {state_error / MiB:+6,.0f} MiB")
print(
    "its activations less the traced ones:     "
    f"{(rule_activations - parts['activations']) / MiB:+6,.0f} MiB"
)
rest = meter(row) - parts["weights"] - parts["gradients"] - parts["optimizer state"]
print(f"what it does not know of, the rest:       {(parts['activations'] - rest) / MiB:+6,.0f} MiB")

# %% [markdown]
# The rule's state is too large. Its activations are too small (those of 2022 held the softmax's input, too), and it knows nothing of temporary tensors and of the allocator's blocks. The errors nearly cancel. A total that agrees proves nothing about its parts. All three take Adam's state, whatever the optimizer.
#
# ## Rows of today
#
# The table is of 2022. What would you add now? Four settings, predicted for a card and a PyTorch of today:
#
# - *bf16*: numbers of 2 bytes with the range of `float32`.
# - *sdpa*: scaled dot-product attention in one operation, whose fused kernels never keep the scores of all pairs of tokens.
# - *selective*: checkpointing that keeps the results of the linear layers and computes the rest again, with 1x4.
# - *compile*: `torch.compile`, whose kernels do several small operations in one go. Its own *partitioner*, the part that decides what the forward pass keeps, is asked. This prediction has not been compared with a GPU, and the allocator's overhead is taken over from vanilla's.

# %%
today = {"vanilla": steps["gpu"]}
today |= {
    row.key: predict_row(row, device="gpu")
    for row in find_rows(["accumulation", "bf16", "sdpa", "selective"])
}

# %%
today["compile"] = predict_row(find_rows(["compile"])[0], device="gpu")
pd.DataFrame(
    {
        "activations": [round(run.peak["activations"] / MiB) for run in today.values()],
        "tensors": [round(run.peak_bytes / MiB) for run in today.values()],
        "allocator": [
            round(run.device_bytes["allocator_reserved"] / MiB) for run in today.values()
        ],
        "TFLOP a step": [round(run.flops / 1e12, 2) for run in today.values()],
    },
    index=today.keys(),
)

# %% [markdown]
# In MiB; compare *selective* with *accumulation*, the others with *vanilla*. Here *sdpa* saves more than *bf16*, which shrinks activations only: weights, gradients and state stay `float32`. By this prediction *compile* saves nothing.
#
# Why does *sdpa* take a little more FLOPs? It keeps no scores, so its backward pass computes them **again**: it is checkpointing, inside one kernel. Here are both together, with micro-batches of 4:

# %%
both = {}
for attention, off in (("eager", today["vanilla"]), ("sdpa", today["sdpa"])):
    both[f"{attention}, off"] = off
    both[f"{attention}, every layer"] = predict_run(
        bert_large_config(),
        micro_batch=4,
        device="gpu",
        attention=attention,
        checkpointing=True,
    )
pd.DataFrame(
    {
        "activations MiB": [round(run.peak["activations"] / MiB) for run in both.values()],
        "TFLOP a step": [round(run.flops / 1e12, 2) for run in both.values()],
    },
    index=both.keys(),
)

# %% [markdown]
# With *sdpa* there is less to save, but here checkpointing still takes most of what is left.
#
# Why do the activations shrink so little with *bf16*, and not to half? On a card autocast leaves norms, softmax and the sums that pass from layer to layer in `float32`, as with fp16, and the copies of the linear layers' weights in 2 bytes join the activations. On a CPU it leaves the softmax in the type of its input, and one more thing decides, well hidden. Eager attention adds the padding mask to its scores, and the mask is `float32`; bf16 plus `float32` is `float32`.
# transformers (5.23) leaves a mask out that hides nothing. So hide one token in one of four texts, and look at a step of the small model:


# %%
def train_in_bf16(hidden, steps=2):
    ids = torch.randint(1000, (4, 128), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, 128 - hidden :] = 0
    model = small_bert(seed=0, attn_implementation="eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(
                input_ids=ids, attention_mask=mask, labels=torch.zeros(4, dtype=torch.int64)
            ).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


for hidden in (0, 1):
    with Meter() as counted:
        train_in_bf16(hidden)
    print(
        f"{hidden} tokens hidden: activations {counted.peak['activations'] / MiB:.1f} MiB of "
        f"{counted.peak_bytes / MiB:.1f}"
    )

# %% [markdown]
# On a card the softmax is `float32` with a mask and without, so there the mask hardly shows. BERT-large in bf16, predicted:

# %%
masked = predict_run(
    bert_large_config(), micro_batch=4, device="gpu", precision="bf16", padded=True
)
for name, run in {"nothing hidden": today["bf16"], "a token hidden": masked}.items():
    print(f"{name}: activations {run.peak['activations'] / MiB:,.0f} MiB")

# %% [markdown]
# All these are predictions. What a GPU measured is shown where the course has it on file:

# %%
known = {row.key: row for row in (*ROWS, *CURVE)}
on_gpu = [
    run
    for run in recorded_runs()
    if run.settings.get("model") == "bert-large-uncased" and run.name in known
]
today |= {
    name: predict_row(known[name], device="gpu")
    for name in dict.fromkeys(run.name for run in on_gpu)
    if name not in today
}
cards = {}  # the rows of each: a card is compared with itself
for run in on_gpu:
    cards.setdefault(run.machine["device"], {})[run.name] = run
for card, rows in cards.items():
    print("Measured on", card, "with torch", next(iter(rows.values())).machine["torch"])
    display(measured_table([Outcome(known[name], run) for name, run in rows.items()], today))
if not cards:
    print(
        "No file in data/measurements/ holds BERT-large measured on a GPU of today: nothing is "
        "known here of its times."
    )

# %% [markdown]
# The last column first: it compares what the allocator handed out (`peak MiB`). Nothing in the predictions was fitted to the H100. Where does the rest come from? Measured less predicted, in MiB, and last what the whole device held beside the reserved:


# %%
def beyond(name, run):
    seen, told = run.device_bytes, today[name].device_bytes
    return {
        "handed out": seen["allocator_peak"] - told["allocator_peak"],
        "reserved": seen["allocator_reserved"] - told["allocator_reserved"],
        "whole device - reserved": seen["whole_device"] - seen["allocator_reserved"],
    }


for card, rows in cards.items():
    print(card)
    more = pd.DataFrame({name: beyond(name, run) for name, run in rows.items()}).T
    display((more / MiB).round().astype(int))

# %% [markdown]
# On the H100 64 MiB and little more were handed out beyond the prediction in every row. We take the 64 for the workspaces of cuBLAS, which multiplies the matrices: no trace sees them.
#
# What is reserved has to fit. Six rows are nearly as close there; *adafactor* needed 230 MiB more than predicted and *sdpa* 494, so leave room.
#
# The third column would be one number if it were the context alone. The driver counts all processes on the card, so leave `whole device` out when you compare.
#
# Now the times. `time/vanilla` is far from the published one in each of the other rows that have one, and most where the micro-batch is 1. So ratios of times did not carry over from that card and its software to this one; nothing here measures why. These are one epoch of each row on one machine, so read the large differences only.
#
# (`TRAINLEAN_DEVICE=cuda trainlean measure --record data/measurements/NAME.json`, run on a machine with a GPU, writes such a file.)
#
# **A good place to stop for today.**
#
# ## On your machine
#
# `trainlean measure` measures the whole table: every row in a fresh process, warmed up, three times. On the CPU it takes the small model; with `TRAINLEAN_DEVICE=cuda` it takes BERT-large on a GPU.
# Two rows of it are enough here. A row that cannot run on a machine says why, like the third.

# %%
outcomes = measure_rows(
    find_rows(["vanilla", "checkpointing", "fp16"]), "small", device="cpu", repeats=2
)
runs = {outcome.row.key: outcome.run for outcome in outcomes if outcome.run}
predicted_here = {
    key: predict_row(next(row for row in ROWS if row.key == key), "small", "cpu") for key in runs
}
measured_table(outcomes, predicted_here).drop(columns="time/vanilla")

# %% [markdown]
# Here the prediction meets the meter's bytes or comes close: both count tensors. The ratios are not BERT-large's, and they need not be: the small model has its own proportions.
# The time's ratio is in the picture, because it differs from run to run:

# %%
plot_table(runs)

# %% [markdown]
# ## The largest micro-batch first
#
# A batch of 64 can be taken as 64x1, 16x4, 4x16 or 1x64. The FLOPs are the same. Is the speed?

# %%
ids = torch.randint(1000, (64, 16), generator=torch.Generator().manual_seed(0))
SIZES = (1, 4, 16, 64)


def train(micro_batch, steps=2):
    model = small_bert(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for _ in range(steps):
        for part in ids.split(micro_batch):
            labels = torch.zeros(len(part), dtype=torch.int64)
            (model(input_ids=part, labels=labels).loss * len(part) / 64).backward()
        optimizer.step()
        optimizer.zero_grad()


curve = [
    measure(
        partial(train, size),
        name=f"{size}x{64 // size}",
        repeats=2,
        model="small BERT",
        micro_batch=size,
        accumulation_steps=64 // size,
        sequence_length=16,
    )
    for size in SIZES
]
summary(curve)

# %% [markdown]
# Here each larger micro-batch is faster, at equal FLOPs. So of these settings we take the largest micro-batch that fits.
#
# What fits BERT-large on a card of 16 GB (it has 16,160 MiB; the context is taken to be the V100's)? Here is the same curve, predicted for a card of today, plain and with every layer checkpointed:

# %%
CARD = 16160 * MiB


@cache
def on_card(micro_batch, accumulation_steps, checkpointing):
    return predict_run(
        bert_large_config(),
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
        checkpointing=checkpointing,
        device="gpu",
    )


def needed(run):
    return run.device_bytes["allocator_reserved"] + CONTEXT


batch_of_64 = {"plain": [on_card(size, 64 // size, False) for size in SIZES]}

# %%
batch_of_64["checkpointed"] = [on_card(size, 64 // size, True) for size in SIZES]
memory = {way: [needed(run) for run in runs] for way, runs in batch_of_64.items()}
pd.DataFrame(
    {f"{way}, MiB": [round(size / MiB) for size in sizes] for way, sizes in memory.items()}
    | {
        f"{way}, TFLOP": [round(run.flops / 1e12, 1) for run in runs]
        for way, runs in batch_of_64.items()
    },
    index=[run.name for run in curve],
)

# %%
plot_micro_batches(curve, memory, CARD)

# %% [markdown]
# (The scale of memory doubles from mark to mark.) Plain, 4x16 is below the line and 16x4 is not. Beside 1x64, 4x16 has the same FLOPs and a quarter of the passes through the model.
# Checkpointed, even 64x1 is below it, and nothing is left to accumulate. Its FLOPs are in the last column.
#
# Which of the two is faster, 4x16 plain or 64x1 checkpointed? The lesson on [checkpointing with the Trainer](../2_checkpointing/3_trainer.ipynb) asked that of the small model and measured it. For BERT-large it takes a GPU:

# %%
sizes_on_gpu = [run for run in on_gpu if run.name in {row.key for row in CURVE}]
if sizes_on_gpu:
    display(summary(sizes_on_gpu))
else:
    print(
        "No file in data/measurements/ holds BERT-large's speed for micro-batches from 1x64 to "
        "64x1: that curve is not measured."
    )

# %% [markdown]
# ### Exercise: the largest micro-batch
#
# *Difficulty* ** · *8 minutes* · *Why*: above, the largest one was the fastest at equal FLOPs.
#
# Write `largest_micro_batch(peak, effective_batch, budget, context)`. `peak(micro_batch)` predicts the peak in bytes, without the context; a larger micro-batch never needs less.
# Return the pair `(micro_batch, accumulation_steps)` with the largest micro-batch whose peak and context together are at most `budget`. The product of the two is exactly `effective_batch`. If nothing fits, return `(0, 0)`.


# %% exercise="largest_micro_batch" points=2
def largest_micro_batch(peak, effective_batch, budget, context):
    """(micro_batch, accumulation_steps) with the largest micro-batch that fits, or (0, 0)."""
    # BEGIN SOLUTION
    for micro_batch in range(effective_batch, 0, -1):
        if effective_batch % micro_batch == 0 and peak(micro_batch) + context <= budget:
            return micro_batch, effective_batch // micro_batch
    return 0, 0
    # END SOLUTION


# %% check="largest_micro_batch"
check(largest_micro_batch)

# %% [markdown]
# Let it choose for BERT-large on two cards. Between the sizes of the table `peak` draws a straight line:

# %%
for card in (16160, 12000):
    for way, sizes in memory.items():
        micro_batch, accumulation = largest_micro_batch(
            lambda size: np.interp(size, SIZES, sizes) - CONTEXT, 64, card * MiB, CONTEXT
        )
        print(f"{card:6,} MiB, {way:12} {micro_batch}x{accumulation}")

# %% [markdown]
# The choice had to divide 64. What is the largest micro-batch of all, if every one makes a step of its own?
# Predict two sizes, see where the line through them meets the card, and try the sizes there. Plain:


# %%
def total(sequences, checkpointing):
    return needed(on_card(sequences, 1, checkpointing))


def largest_that_fits(checkpointing, sizes):
    """The most sequences at once that fit the card, searched from the line through two sizes."""
    one, other = (total(size, checkpointing) for size in sizes)
    each = (other - one) / (sizes[1] - sizes[0])
    size = sizes[1] + int((CARD - other) // each)
    while total(size, checkpointing) > CARD:
        size -= 1
    while total(size + 1, checkpointing) <= CARD:
        size += 1
    for tried in (size, size + 1):
        mib = total(tried, checkpointing) / MiB
        print(f"{tried} sequences: {mib:,.0f} of {CARD / MiB:,.0f} MiB")
    return size


plain_size = largest_that_fits(False, (4, 6))

# %% [markdown]
# **Predict.** How many sequences at once does the same card hold with every layer checkpointed?

# %%
# BEGIN SOLUTION
my_guess = 70
# END SOLUTION
guess("sequences at once with checkpointing", my_guess, "sequences")

# %%
checkpointed_size = largest_that_fits(True, (32, 64))
print(f"{checkpointed_size / plain_size:.1f} times as many as without")
reveal("sequences at once with checkpointing", checkpointed_size, "sequences", "predicted")

# %% [markdown]
# A checkpointed layer keeps only its input of each sequence; in the backward pass one layer at a time has all of its activations again. Checkpointing costs one more forward pass, in the table above a third more FLOPs.
#
# ### Exercise: choose a row
#
# *Difficulty* * · *6 minutes* · *Why*: a table is there to decide something.
#
# Write `choose_row(rows, budget, context)`. Each row is a dictionary with `"name"`, `"speed"` (samples per second, or `None` where nobody timed it) and `"memory"` without the context.
# Return the name of the row to take: of those that were timed and fit, with the context, into the budget, the fastest. If there is none, return `None`. Leave `rows` as they are.


# %% exercise="choose_row" points=2
def choose_row(rows, budget, context):
    """The name of the fastest timed row that fits into the budget, or None."""
    # BEGIN SOLUTION
    fitting = [
        row for row in rows if row["speed"] is not None and row["memory"] + context <= budget
    ]
    if not fitting:
        return None
    return max(fitting, key=lambda row: row["speed"])["name"]
    # END SOLUTION


# %% check="choose_row"
check(choose_row)

# %% [markdown]
# Apply it to the published table: what would you have taken on cards of three sizes?

# %%
choices = [
    {"name": run.name, "speed": run.samples_per_second, "memory": run.peak_bytes - CONTEXT}
    for run in published
]
for size in (16160, 10000, 6000):
    print(f"{size:6,} MiB: {choose_row(choices, size * MiB, CONTEXT)}")

# %% [markdown]
# ## All points
#
# Last, two questions for the whole course. Which techniques does the fastest point under each budget use? And how far is each prediction from its published twin? Set the budget to 16,000 MiB, move it down, and see.
#
# A prediction has no seconds: it stands at the speed of its published twin, and gets the allocator's part and the context, as the graphics driver counts them. Choose the small model to see your own runs.


# %%
def on_a_card(run, context=0):
    held = run.device_bytes["allocator_reserved"] + context
    return replace(run, peak=run.peak | {"not tensors": held - run.peak_bytes})


explorer(
    [
        *published,
        *(on_a_card(run, CONTEXT) for run in predicted.values()),
        *runs.values(),
        *curve,
    ],
    budget=10000 * MiB,
)

# %% [markdown]
# A speed is measured on one card, so the H100 has an explorer of its own. Its rows and their predictions have what the allocator reserved, without a context; a prediction stands at the speed of its measured row. (Of the tensors at a measured peak only weights and optimizer state are known apart; the others are *not divided*.)

# %%
for rows in cards.values():
    display(
        explorer(
            [on_a_card(run) for name, one in rows.items() for run in (one, today[name])],
            budget=10000 * MiB,
        )
    )

# %% [markdown]
# ## What to keep
#
# - Take the context out before you divide memories; divide seconds by samples before you compare them.
# - A device's figure is tensors, the allocator's blocks around them, and the context. The first two were predicted without the device. The context is read on it, with no other process there.
# - What a library keeps changes with its version: the softmax's input was there in 2022 and is gone today.
# - The rules of thumb here leave out the batch or the optimizer, or both. Know what one leaves out before you trust it.
# - At equal FLOPs the largest micro-batch was the fastest here: take the largest that fits, and accumulation supplies the rest. Checkpointing moves that limit far up, for one more forward pass: here a third more FLOPs. Which of the two is faster, only the clock tells.
#
# `trainlean progress` shows which exercises are still open.
#
# Next: [Decoders in PyTorch](../5_decoders/1_pytorch.ipynb), where a large vocabulary takes most of the memory.
