# %% [markdown]
# # Where memory goes
#
# **You will be able to** say what fills memory during training, measure it on your own machine, and predict it for a model that does not fit there.
#
# **Minutes**: 50, with a place to stop · **Before this**: basic PyTorch (a module, an optimizer, `loss.backward()`).

# %% [markdown]
# ## A question
#
# In January 2022 Hugging Face published a measurement. BERT-large was trained on a graphics card with 16 GB, four sequences of 512 tokens at a time.
# Its weights take about 1.3 GB. The card reported 14,949 MB in use.
#
# Where is the rest? By the end of this lesson you can answer that, without the card.
#
# Training spends three things, and the course is about trading one for another:
#
# - **memory**: bytes that must be there at the same time,
# - **computation**: floating-point operations (FLOPs),
# - **communication**: bytes that several devices send each other. The course comes to it when you have two.

# %%
import torch
from trainlean import (
    Meter,
    batches,
    bert_large_config,
    check,
    explorer,
    format_bytes,
    guess,
    hint,
    load_reviews,
    load_tokenizer,
    measure,
    plot_memory,
    plot_timeline,
    predict_run,
    published_runs,
    put_in_order,
    reveal,
    small_bert,
    summary,
)

# %% [markdown]
# ## The data and the model
#
# You train on customer reviews. They were written by a program of this course, so nothing has to be downloaded (`data/README.md` tells how).

# %%
reviews = load_reviews()
print(len(reviews), "reviews")
for review in reviews[:3]:
    print(f"{review.stars} stars, label {review.label}: {review.text[:100]}")

# %% [markdown]
# The label is 1 for a positive review and 0 for a negative one. A tokenizer cuts the text into pieces, the *tokens*, and numbers them.
# `batches` does that, makes every review 64 tokens long (a longer one is cut, a shorter one filled up), and groups them.

# %%
tokenizer = load_tokenizer()
print(tokenizer.tokenize(reviews[0].text)[:12])
batch = batches(reviews[:16], 16, seed=0)[0]
print({name: tuple(tensor.shape) for name, tensor in batch.items()})

# %% [markdown]
# The model is a small BERT: the same architecture as BERT-large, with 4 layers instead of 24 and a width of 128 instead of 1024.
# Its weights start from random numbers with a fixed seed.

# %%
model = small_bert(seed=0)
parameters = sum(parameter.numel() for parameter in model.parameters())
weights = sum(parameter.nbytes for parameter in model.parameters())
print(f"{parameters:,} weights, {format_bytes(weights)}")

# %% [markdown]
# Each weight is a `float32`, and a `float32` takes 4 bytes. (A MiB is 1024 x 1024 bytes.)
#
# ## Predict
#
# You train this model for a few steps with AdamW, 16 reviews at a time. How much memory does the training need at its fullest moment, as a multiple of the weights?
# Write a number, then run the cell. It is kept and shown beside the measurement.

# %%
# BEGIN SOLUTION
my_guess = 4
# END SOLUTION
guess("peak memory as a multiple of the weights", my_guess, "times")

# %% [markdown]
# ## Measure
#
# `Meter` watches the training code that runs inside its `with` block. It notes when each tensor is created and freed, and sorts the bytes into five categories. (What an operation needs inside itself for a moment, without making a tensor, is not seen.)
# Two steps are enough here: the first creates the optimizer's state, the second begins with it.


# %%
def train(batch_size, steps=2, **settings):
    model = small_bert(seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, **settings)
    for batch in batches(reviews[: batch_size * steps], batch_size, seed=0):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


with Meter() as meter:
    train(batch_size=16)

for category, size in meter.peak.items():
    print(f"{category:16} {format_bytes(size):>10}  {size / weights:5.2f} x the weights")

# %%
reveal("peak memory as a multiple of the weights", round(meter.peak_bytes / weights, 2), "times")

# %% [markdown]
# Read the five lines slowly. The course comes back to them.
#
# - **weights**: the model's parameters (and its buffers: tensors of the model that are not trained).
# - **gradients**: `parameter.grad`, here one number for every weight.
# - **optimizer state**: here AdamW's two running averages for every weight.
# - **activations**: what the forward pass leaves behind because the backward pass needs it.
# - **temporary**: what an operation needs for a moment only.
#
# The first three together are the *training state*: none of them grows with the batch.
#
# The peak is one moment. What is not alive at that moment does not count, which is why gradients are small in the table above.
# Look at the whole of it.
#
# ## Two training steps, operation by operation

# %%
plot_timeline(meter.timeline)

# %% [markdown]
# Follow the picture from left to right (*fwd* is forward, *bwd* backward). First the weights are made. In each forward pass the activations pile up, layer upon layer. In the backward pass they are used up in reverse order,
# and gradients grow in their place. The optimizer's step makes its state the first time; from then on the state stays.
#
# So there are two peaks to watch. One lies where forward turns into backward: activations are at their largest. The other lies in the optimizer's step: gradients and state are all there.
# Which one is higher depends on the batch, as you see now.
#
# ## What grows with the batch
#
# Train the same model with batches of 1, 4, 8, 16 and 32 reviews. `measure` calls a function that trains from scratch:
# once under the meter, then again with nothing attached, for the time. So counting does not slow down what is timed.

# %%
runs = [
    measure(
        lambda: train(size),
        name=f"batch {size}",
        repeats=3,
        model="small BERT",
        micro_batch=size,
        accumulation_steps=1,
        sequence_length=64,
    )
    for size in (1, 4, 8, 16, 32)
]
summary(runs)

# %% [markdown]
# A row is a `Run`: what was trained, and what it cost. Seconds are the median of three repeats, with the fastest and the slowest in brackets; yours differ from anyone else's.
# Memory, steps and FLOPs are counted, not timed. FLOPs are those of matrix products (a GFLOP is a thousand million).
# `benchmarks/on_a_gpu.py` compares the meter with a graphics card's allocator.

# %%
plot_memory(runs)

# %% [markdown]
# Weights and optimizer state keep their length. At the smallest batch the peak lies in the optimizer's step, where no layer's activations are left (what is still counted as such is the batch itself, the numbered reviews).
# From batch 4 on, activations double when the batch doubles. The numbers:

# %%
for run in runs[1:]:
    per_review = {
        category: format_bytes(run.peak[category] / run.settings["micro_batch"])
        for category in ("activations", "temporary")
    }
    print(f"{run.name:9} per review: {per_review}")
at_16 = sum(meter.moments["optimizer step"].values())  # the meter from above, with 16 reviews
print(
    f"in the optimizer's step: {format_bytes(runs[0].peak_bytes)} at batch 1, "
    f"{format_bytes(at_16)} at batch 16"
)

# %% [markdown]
# What is temporary at the turn grows with the batch as well; it is small. The optimizer's step needs the same at batch 1 and at batch 16, but for the numbered reviews.
#
# Two techniques begin here. **Memory that grows with the batch can be split into smaller portions** (accumulation, the next unit).
# **Activations that are kept for later can be thrown away and computed again** (checkpointing, the unit after it).
#
# The optimizer's step may need more than the training state. How much depends on how AdamW's update goes through the weights:

# %%
for settings in ({"foreach": False}, {"foreach": True}, {"fused": True}):
    with Meter() as one_way:
        train(batch_size=1, **settings)
    step = one_way.moments["optimizer step"]
    room, in_all = step["temporary"] / weights, 4 * sum(step.values()) / weights
    print(f"{settings}: temporary {room:.2f} x the weights, in all {in_all:.1f} bytes per weight")

# %% [markdown]
# With `foreach=False`, the default on a CPU, AdamW takes tensor after tensor: here with room for two copies of the largest. With `foreach=True`, the default on a graphics card, it takes all at once: here one more copy of the weights for a moment. The fused update needs none; transformers' `Trainer` asks for it by default.
#
# ## Exercise: the bytes of a training state
#
# *Difficulty* * · *8 minutes* · *Why*: the training state is there at every batch size. If it does not fit, no smaller batch helps.
#
# Write `training_state_bytes(model, optimizer_name)`. It returns the bytes of weights, gradients and optimizer state together (an `int`),
# as they lie in memory between `optimizer.step()` and `zero_grad()`.
#
# - `optimizer_name` is `"sgd"` (no state), `"momentum"` (SGD with momentum: one running sum per weight) or `"adamw"` (two averages).
# - Weights may be frozen (`requires_grad=False`), shared between layers, or `float64` (all of them or some). The models have no buffers: count parameters. Count what a step would leave: most models come without a `.grad`, one may have its gradients already. Leave the model as it is, its gradients too.
# - Leave out the optimizer's step counters; they are a few bytes.
#
# Before some exercises stands a puzzle: the lines of an answer, a few wrong ones among them, to be put in order. You may skip it.


# %%
put_in_order("training_state_bytes")


# %% exercise="training_state_bytes" points=2
def training_state_bytes(model, optimizer_name):
    """Bytes of weights, gradients and optimizer state, trained with sgd, momentum or adamw."""
    # BEGIN SOLUTION
    averages = {"sgd": 0, "momentum": 1, "adamw": 2}[optimizer_name]
    total = 0
    for parameter in model.parameters():
        copies = 1
        if parameter.requires_grad:
            copies += 1 + averages
        total += copies * parameter.nbytes
    return total
    # END SOLUTION


# %% check="training_state_bytes"
check(training_state_bytes)

# %% [markdown]
# Stuck? `hint(training_state_bytes)` shows a hint, and each call a little more. A wrong answer does no harm: `check` says what it saw. It tries your answer on random models; the *seed* behind its sentence draws the same ones again (`check(training_state_bytes, seed=...)`).
#
# ## Exercise: the peak at another batch size
#
# *Difficulty* * · *5 minutes* · *Why*: one measurement tells the peak at other batches.
#
# Write `peak_at_batch(peak, batch, new_batch)`. `peak` is a dictionary from category to bytes, measured with `batch` samples, with the keys
# `"weights"`, `"gradients"`, `"optimizer state"`, `"activations"` and `"temporary"` in any order. Return the dictionary for `new_batch` samples, and leave `peak` as it is.
# Assume that with `batch` samples and with `new_batch` samples the peak lies at the turn from forward to backward.


# %% exercise="peak_at_batch" points=2
def peak_at_batch(peak, batch, new_batch):
    """Bytes by category with new_batch samples, from those with batch samples."""
    # BEGIN SOLUTION
    grows = ("activations", "temporary")
    return peak | {category: peak[category] / batch * new_batch for category in grows}
    # END SOLUTION


# %% check="peak_at_batch"
check(peak_at_batch)

# %% [markdown]
# ## Exercise: the largest batch that fits
#
# *Difficulty* ** · *7 minutes* · *Why*: memory is given, and the batch must fit into it.
#
# Write `largest_batch(peak, step_bytes, batch, budget)`. It returns the largest whole number of samples with which training never needs more than `budget` bytes. If nothing fits, that is 0. Leave `peak` as it is.
#
# - `peak` is what was measured with `batch` samples at the turn from forward to backward, as in the last exercise.
# - `step_bytes` is the other peak, in the optimizer's step. It is the same at every batch.


# %%
put_in_order("largest_batch")


# %% exercise="largest_batch" points=2
def largest_batch(peak, step_bytes, batch, budget):
    """The largest batch that fits into budget bytes, at the turn and in the optimizer's step."""
    # BEGIN SOLUTION
    if step_bytes > budget:
        return 0
    fixed = peak["weights"] + peak["gradients"] + peak["optimizer state"]
    grows = peak["activations"] + peak["temporary"]
    return max(0, (budget - fixed) * batch // grows)
    # END SOLUTION


# %% check="largest_batch"
check(largest_batch)

# %% [markdown]
# Does such a prediction hold? From the run with 16 reviews alone, the peaks at batch 4, 8 and 32, beside those that were measured:

# %%
measured = {run.settings["micro_batch"]: run for run in runs}
for size in (4, 8, 32):
    predicted_bytes = sum(
        number * (size / 16 if category in ("activations", "temporary") else 1)
        for category, number in measured[16].peak.items()
    )
    print(
        f"batch {size:2}: predicted {format_bytes(predicted_bytes):>9}, "
        f"measured {format_bytes(measured[size].peak_bytes):>9}"
    )

# %% [markdown]
# **A good place to stop for today.** What follows is the same with the `Trainer`, and the question about BERT-large.
#
# ## The same with transformers' `Trainer`
#
# Instead of writing the loop you can call `Trainer`. The meter watches it in the same way.

# %%
import tempfile

from trainlean import dataset
from transformers import PrinterCallback, Trainer, TrainingArguments


def train_with_trainer(batch_size, steps=4):
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=batch_size,
        num_train_epochs=1,
        learning_rate=5e-4,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
    )
    data = dataset(reviews[: batch_size * steps])
    trainer = Trainer(model=small_bert(seed=0), args=arguments, train_dataset=data)
    trainer.remove_callback(PrinterCallback)  # it would print a line with seconds at the end
    trainer.train()


trainer_run = measure(
    lambda: train_with_trainer(16),
    name="Trainer, batch 16",
    repeats=3,
    model="small BERT",
    micro_batch=16,
    accumulation_steps=1,
    sequence_length=64,
    trainer=True,
)
summary(trainer_run)

# %% [markdown]
# Compare the Trainer's memory with the hand-written loop's:

# %%
by_hand = next(run for run in runs if run.settings["micro_batch"] == 16)
for category, size in trainer_run.peak.items():
    print(
        f"{category:16} {format_bytes(by_hand.peak[category]):>10} by hand "
        f"{format_bytes(size):>10} with Trainer"
    )

# %% [markdown]
# Nearly the same at this peak, whoever writes the loop.
#
# ## Memory against speed
#
# Every run is a point: to the right is faster, lower is leaner. The stairs join the runs within the budget that no other such run beats (is better in one, and at least as good in the other); this line is called the *Pareto front*.
#
# - **budget**: what lies above the line does not fit.
# - **compare at fixed batch**: only runs with the same *effective batch* (samples to an optimizer step) as the chosen one are drawn in full colour. The others are pale.
# - **compare at fixed memory**: all runs that fit into the budget, whatever their batch.
#
# Here each batch is a step of its own, so the micro-batch is the effective batch: `16×1` in the picture is the batch of 16. Choose one that was not measured yet, and press the button to measure it here and now.


# %%
def measure_point(micro_batch):
    return measure(
        lambda: train(micro_batch),
        name=f"batch {micro_batch}",
        model="small BERT",
        micro_batch=micro_batch,
        accumulation_steps=1,
        sequence_length=64,
    )


explorer(runs, measure=measure_point)

# %% [markdown]
# ## BERT-large, without the card
#
# Now the question from the start. You do not need BERT-large's bytes to count them.
# PyTorch has *fake tensors*: they have a shape, a type and no memory. `predict_run` trains a BERT-large of 2 layers and one of 3 layers with fake tensors under the same meter, on sequences of 512 tokens.
# What the third layer adds is taken for each further one, up to 24.
#
# The published rows are: 4 sequences at once; 1 at a time with accumulation over 4; and that with checkpointing. You meet both techniques soon.

# %%
config = bert_large_config()
predicted = [
    predict_run(config, name=name, micro_batch=micro_batch, sequence_length=512, **more)
    for name, micro_batch, more in (
        ("batch 4", 4, {}),
        ("1 x 4", 1, {"accumulation_steps": 4}),
        ("1 x 4, checkpointed", 1, {"accumulation_steps": 4, "checkpointing": True}),
    )
]
plot_memory(predicted)

# %% [markdown]
# So, by the prediction, most of the rest at batch 4 is activations.
#
# Put the numbers beside the published ones. Those were read from the card's *driver*, the program that runs the card.
# The driver also counts the *CUDA context*, what CUDA itself needs on the card: 1,343 MB on that machine. What the source calls MB are MiB.

# %%
CONTEXT = 1343  # MiB, measured by the authors of the table with a single number on the card
published = published_runs()[:3]
for ours, theirs in zip(predicted, published, strict=True):
    peak = ours.peak_bytes / 2**20 + CONTEXT
    read = theirs.peak_bytes / 2**20
    print(
        f"{ours.name:20} predicted {peak - CONTEXT:7,.0f} + context {CONTEXT:,} = {peak:7,.0f} MiB "
        f"  published {read:7,.0f} MiB   difference {peak - read:+7,.0f} MiB "
        f"({peak / read - 1:+.1%})"
    )

# %% [markdown]
# All three predictions are too low, the first one most. They are for today's PyTorch on a CPU, with the fused AdamW; the table was made in 2022 on a card.
# And the driver counts what PyTorch's *allocator* holds, the part that asks the card for memory in large pieces and hands out portions of them, not only what tensors use.
# How many bytes these differences make is worked out in [the lesson on the published table](../4_whole_picture/1_published_table.ipynb).
#
# The training state of BERT-large, from the row 1 x 4, where all gradients are there at the peak:

# %%
one_weight = predicted[1].peak
for category in ("weights", "gradients", "optimizer state"):
    print(
        f"{category:16} {format_bytes(one_weight[category]):>10}  "
        f"{one_weight[category] / one_weight['weights']:.2f} x the weights"
    )

# %% [markdown]
# With *mixed precision* (`bf16=True` in the `Trainer`), matrix products run in 16 bits, while weights that were loaded in 32 bits stay there, and so does their update. Does the training state get smaller?

# %%
mixed = predict_run(
    config, name="1 x 4, bf16", micro_batch=1, accumulation_steps=4, precision="bf16"
)
for run in (predicted[1], mixed):
    state = sum(run.peak[category] for category in ("weights", "gradients", "optimizer state"))
    print(f"{run.name:12} {4 * state / run.peak['weights']:.0f} bytes of training state per weight")

# %% [markdown]
# No: per weight it stays the same.

# %% [markdown]
# ## One word for one thing
#
# The course uses these words from here on. Each is explained again where it is first needed.
#
# | word | means |
# |---|---|
# | micro-batch | the samples of one forward and backward pass |
# | accumulation steps, $k$ | the micro-batches of one optimizer step; together they are its *window* |
# | `4 x 16` | micro-batches of 4, accumulated over 16 (the published table writes `4x16`) |
# | effective batch | samples to an optimizer step: micro-batch x accumulation steps x devices |
# | checkpointing | throwing activations away and computing them again (also *gradient* or *activation checkpointing*); what is written to disk is a *saved* checkpoint |
# | segment, boundary | what is checkpointed as one piece; the tensor that goes into it, which is kept |
# | device, rank | something that trains, and its number; `world_size` is how many there are |
# | replica | a rank's copy of the model |
# | all-reduce | a call of all ranks that leaves the sum of their tensors with each of them |
# | payload | the bytes that a rank hands to such calls |
# | local steps, $H$ | optimizer steps of a rank between two averages of the weights |
#
# ## What to keep
#
# - Training memory is weights, gradients, optimizer state, activations, and a little that is temporary.
# - With `float32` weights, all trained with AdamW, the first three take 16 bytes per weight in the optimizer's step, in mixed precision too. With `foreach=True`, the default on a card, it is 4 more for a moment.
# - Activations grow with the batch. They are what two of the three techniques of this course make smaller.
# - A peak is a moment. Here it lay at the turn from forward to backward, or in the optimizer's step.
# - A training run fits only if both peaks fit; on a card the context takes some more.
#
# Next: [Gradient accumulation in PyTorch](../1_accumulation/1_pytorch.ipynb), a large batch in small portions.
