# %% [markdown]
# # Gradient checkpointing with the Trainer
#
# **You will be able to** switch checkpointing on in the `Trainer`, choose how many layers take part, predict the memory of BERT-large for every choice, and say when checkpointing makes training slower and when faster.
#
# **Minutes**: 70, with two places to stop · **Before this**: [Gradient checkpointing with Accelerate](2_accelerator.ipynb) and [Gradient accumulation with the Trainer](../1_accumulation/3_trainer.ipynb).

# %% [markdown]
# ## A question
#
# The published table has three rows that you know by now. They train BERT-large on a card with 16 GB: 4 sequences at once, then 1 at a time accumulated over 4, then with checkpointing on top. Each row takes less memory than the one before, and each is slower.
#
# Must it? People say that checkpointing makes training slower, and others say that it made theirs faster. Who is right?

# %%
import dataclasses
import inspect
import math
import tempfile
from functools import partial

import pandas as pd
import torch
from accelerate import Accelerator
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Subset
from transformers import PrinterCallback, Trainer, TrainingArguments
from trainlean import (
    Meter,
    answer_of,
    bert_large_config,
    check,
    dataset,
    explorer,
    find_exercise,
    format_bytes,
    guess,
    hint,
    judge,
    load_reviews,
    measure,
    measure_in_turn,
    plot_checkpointed_layers,
    plot_memory,
    plot_race,
    predict_run,
    published_runs,
    recall,
    reveal,
    small_bert,
    summary,
)

torch.set_num_threads(1)  # for a model this small, threads mostly wait for each other
folder = tempfile.TemporaryDirectory()
reviews = dataset(load_reviews()[:64], max_length=64)

# %%
recall("2_checkpointing/3_trainer")

# %% [markdown]
# ## The argument
#
# In transformers 5.23 it is `activation_checkpointing=True`, with a dictionary `activation_checkpointing_kwargs` for the details. Until 5.22 the names were `gradient_checkpointing` and `gradient_checkpointing_kwargs`. The older ones still work with a warning and go with version 6. These two helpers ask which names there are, so that the course runs with both. The second one is the model's own switch, as in the previous lesson:

# %%
NAME = (
    "activation_checkpointing"
    if "activation_checkpointing" in inspect.signature(TrainingArguments).parameters
    else "gradient_checkpointing"
)


def checkpointing_arguments(**details):
    return {NAME: True, f"{NAME}_kwargs": details or None}


def switch_on(model, **details):
    getattr(model, f"{NAME}_enable")(**details)


print(checkpointing_arguments(every_n_layers=2))

# %% [markdown]
# The rest is what you wrote in the accumulation unit: the recipe as arguments, the classifier's cure, and a Trainer that prints nothing.


# %%
def arguments(micro_batch, accumulation_steps, **changes):
    recipe = {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulation_steps,
        "num_train_epochs": 1,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0,
        "train_sampling_strategy": "sequential",
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(folder.name, **recipe | changes)


def bert():
    model = small_bert(seed=0, use_cache=False)
    model.accepts_loss_kwargs = False  # else accumulated gradients come out k times too large
    return model


def train(args, model=None, data=reviews):
    trainer = Trainer(model=model or bert(), args=args, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer.model


# %% [markdown]
# ## Three rows
#
# *Vanilla* (the whole batch at once and nothing else), accumulation, accumulation with checkpointing, in the order of the published table. Here with AdamW, as there.

# %%
ROWS = [
    ("vanilla, 16 x 1", 16, 1, {}),
    ("accumulation, 4 x 4", 4, 4, {}),
    ("accumulation + checkpointing, 4 x 4", 4, 4, checkpointing_arguments()),
]
adamw = {"optim": "adamw_torch", "learning_rate": 5e-4}
half = Subset(reviews, range(32))

runs = [
    measure(
        lambda: train(arguments(micro_batch, steps, **adamw, **more), data=half),
        name=name,
        repeats=1,
        micro_batch=micro_batch,
        accumulation_steps=steps,
        checkpointing="every layer" if more else "off",
        model="small BERT, Trainer",
        sequence_length=64,
    )
    for name, micro_batch, steps, more in ROWS
]
summary(runs)

# %%
plot_memory(runs)

# %% [markdown]
# Accumulation takes the activations down to a quarter. (In exchange the gradients are there at the peak: they wait for the last micro-batch of the window.) Checkpointing takes them down so far that the peak *moves*: in the third row it lies in the optimizer's step, where no layer's activations are left, only the window's micro-batches themselves, token numbers and masks. From there on, no further saving of activations would help.
# The times say little here: each was taken once. Speed gets its own section below.
#
# The FLOPs rise in the third row only: accumulation computes nothing twice, checkpointing does.
#
# Beside them, BERT-large: predicted with fake tensors as in the first lesson, and published. The 1,343 MB of the CUDA context that the authors measured are added to the prediction.

# %%
config = bert_large_config()
vanilla, plain, every_layer = predicted = [
    predict_run(config, name="vanilla", micro_batch=4),
    predict_run(config, name="accumulation", micro_batch=1, accumulation_steps=4),
    predict_run(
        config,
        name="accumulation + checkpointing",
        micro_batch=1,
        accumulation_steps=4,
        checkpointing=True,
    ),
]
MiB, CONTEXT = 2**20, 1343
published = published_runs()[:3]
pd.DataFrame(
    {
        "small BERT, measured MiB": [round(run.peak_bytes / MiB, 1) for run in runs],
        "BERT-large, predicted MiB": [round(run.peak_bytes / MiB) + CONTEXT for run in predicted],
        "published MB": [round(run.peak_bytes / MiB) for run in published],
        "published samples/s": [round(run.samples / run.seconds[0], 2) for run in published],
    },
    index=[run.name for run in predicted],
)

# %% [markdown]
# (The authors' MB are of 1024 x 1024 bytes, so the two columns can be compared.) The last two rows come out within a few percent of the published figures. The first is too low. As in the first lesson, the prediction is for today's PyTorch on a CPU, and the table is from a card and the PyTorch of 2022. [A later lesson](../4_whole_picture/1_published_table.ipynb) finds out what differs.
#
# What did checkpointing cost the authors? Their text gives a rule of thumb, "about 20%". Their last two rows, in samples a second and in seconds:

# %%
slower = published[2].seconds[0] / published[1].seconds[0]
more_flops = every_layer.flops / plain.flops
print(
    f"published: {1 / slower - 1:+.0%} samples a second, which is {slower - 1:+.0%} seconds; "
    f"predicted: {more_flops - 1:+.0%} FLOPs"
)

# %% [markdown]
# Fewer samples a second and more seconds are the same fact in two numbers. Both are called "slower", so say which you mean; "about 20%" is nearer to the first. Compare the predicted FLOPs with the seconds.
#
# ## Not all layers
#
# If checkpointing every layer frees more than you need, some of the recomputation was for nothing. `every_n_layers` is the setting in between. What does it do? Ask the layers:


# %%
def checkpointed_layers(model):
    return "".join(
        "c" if layer.gradient_checkpointing else "-" for layer in model.bert.encoder.layer
    )


few = Subset(reviews, range(4))
for details in ({}, {"every_n_layers": 2}, {"every_n_layers": 3}, {"every_n_layers": 8}):
    model = small_bert(num_hidden_layers=8, use_cache=False)
    trained = train(arguments(4, 1, **checkpointing_arguments(**details)), model, few)
    print(f"{checkpointed_layers(trained)}   {details}")

# %% [markdown]
# One layer in $n$ is checkpointed (`c`), the first one always. The others stay plain and keep everything. So `every_n_layers=2` does **not** make segments of two layers, as `checkpoint_sequential` does. A larger $n$ may change nothing: with 8 layers, $n=4$, 5 and 6 all run two layers again and keep six plain.
#
# With the argument on, the Trainer calls the model's switch itself when training begins, and a setting that you made by hand is overwritten. Without the argument it leaves your setting alone.
# That is how to checkpoint other layers than one in $n$. In the last line below the switch is on, every fourth layer has been taken out by hand, and the argument is not set.

# %%
model = small_bert(num_hidden_layers=8, use_cache=False)
switch_on(model, every_n_layers=4)
print(checkpointed_layers(model), "  set by hand")
print(
    checkpointed_layers(train(arguments(4, 1, **checkpointing_arguments()), model, few)),
    "  after trainer.train() with the argument",
)

model = small_bert(num_hidden_layers=8, use_cache=False)
switch_on(model)
for layer in model.bert.encoder.layer[3::4]:
    layer.gradient_checkpointing = False
print(checkpointed_layers(train(arguments(4, 1), model, few)), "  after trainer.train() without it")

# %% [markdown]
# And the reverse mistake: the dictionary without the switch. Nothing is raised, nothing is checkpointed.

# %%
model = small_bert(num_hidden_layers=8, use_cache=False)
print(
    checkpointed_layers(
        train(arguments(4, 1, **{f"{NAME}_kwargs": {"every_n_layers": 2}}), model, few)
    )
)

# %% [markdown]
# **A good place to stop for today.**
#
# ## How much does each choice keep?
#
# As in the first lesson of this unit, a layer's *boundary* is its input, and its *interior* is what it makes inside. A checkpointed layer keeps its boundary, a plain one its boundary *and* its interior. Walk through the model:
#
# - At the end of the forward pass there are the boundaries of all layers, and an interior for each plain one.
# - The backward pass begins at the last layer. If that one is checkpointed, its interior is computed again and comes on top. This is the peak.
# - If the last layer is plain, its interior has been freed by the time a checkpointed layer is run again. So nothing comes on top.
#
# ### Exercise: the peak of activations
#
# *Difficulty* ** · *8 minutes* · *Why*: two numbers of one layer tell what every setting keeps.
#
# Write `peak_activations(layers, every_n_layers, interior, boundary)`: the most bytes of the layers' activations that are alive at one time. `layers` is their number; `interior` and `boundary` are bytes of one layer. `every_n_layers` is a whole number from 1 on, or None for checkpointing off.


# %% exercise="peak_activations" points=2
def peak_activations(layers, every_n_layers, interior, boundary):
    """Bytes of activations at the peak, with one layer in every_n_layers checkpointed."""
    # BEGIN SOLUTION
    if every_n_layers is None:
        return layers * (interior + boundary)
    checkpointed = math.ceil(layers / every_n_layers)
    interiors = layers - checkpointed
    if (layers - 1) % every_n_layers == 0:
        interiors += 1  # the last layer is run again while everything else is still there
    return interiors * interior + layers * boundary
    # END SOLUTION


# %% check="peak_activations"
check(peak_activations)

# %% [markdown]
# (`hint(peak_activations)` helps.) Compare your rule with a measurement (until it is right, the course's own stands in for it). Models of 8 and of 4 layers tell what one layer adds, plain and checkpointed. What is no layer's (embeddings, head, the batch) is the rest.

# %%
exercise = find_exercise("peak_activations")
yours_is_right = judge(exercise, peak_activations, seed=0).outcome == "right"
# As long as yours is not there, the course's own.
kept_by_rule = peak_activations if yours_is_right else answer_of(exercise, {})


batch = next(iter(DataLoader(reviews, batch_size=4)))


def measured_activations(layers, every_n_layers):
    model = small_bert(num_hidden_layers=layers, use_cache=False)
    if every_n_layers:
        switch_on(model, every_n_layers=every_n_layers)
    with Meter(model) as meter:
        model(**batch).loss.backward()
    return max(moment["activations"] for _, moment in meter.timeline)


boundary = (measured_activations(8, 1) - measured_activations(4, 1)) / 4
interior = (measured_activations(8, None) - measured_activations(4, None)) / 4 - boundary
rest = measured_activations(4, None) - 4 * (interior + boundary)
print(
    f"interior {format_bytes(interior)}, boundary {format_bytes(boundary)}, rest "
    f"{format_bytes(rest)}"
)
for every_n_layers in (None, 4, 3, 2, 1):
    rule = kept_by_rule(8, every_n_layers, interior, boundary) + rest
    print(
        f"every_n_layers={every_n_layers!s:5} rule {format_bytes(rule):>9}   measured "
        f"{format_bytes(measured_activations(8, every_n_layers)):>9}"
    )

# %% [markdown]
# ## BERT-large with every choice
#
# The same for BERT-large at micro-batch 1: two predictions of different depth tell what a layer adds. The activations of the two ends are known:

# %%
print(
    f"off {plain.peak['activations'] / MiB:,.0f} MiB, every layer "
    f"{every_layer.peak['activations'] / MiB:,.0f} MiB"
)

# %% [markdown]
# **Predict.** How much with `every_n_layers=2`?

# %%
# BEGIN SOLUTION
my_guess = 600
# END SOLUTION
guess("BERT-large's activations with every_n_layers=2", my_guess, "MiB")

# %%
settings = {"micro_batch": 1, "accumulation_steps": 4}
half_plain, half_every = (
    predict_run(bert_large_config(num_hidden_layers=12), checkpointing=on, **settings)
    for on in (False, True)
)
boundary = (every_layer.peak["activations"] - half_every.peak["activations"]) / 12
interior = (plain.peak["activations"] - half_plain.peak["activations"]) / 12 - boundary
rest = plain.peak["activations"] - 24 * (interior + boundary)
print(f"a layer's interior {format_bytes(interior)}, its boundary {format_bytes(boundary)}")


def predict(every_n_layers):
    activations = kept_by_rule(24, every_n_layers, interior, boundary) + rest
    share = (
        0 if every_n_layers is None else math.ceil(24 / every_n_layers) / 24
    )  # of the layers is run again
    flops = plain.flops + share * (every_layer.flops - plain.flops)
    name = "off" if every_n_layers is None else f"every_n_layers={every_n_layers}"
    return dataclasses.replace(
        plain, name=name, peak=plain.peak | {"activations": round(activations)}, flops=round(flops)
    )


front = [predict(every_n_layers) for every_n_layers in (None, 8, 4, 2, 1)]
reveal(
    "BERT-large's activations with every_n_layers=2",
    round(front[3].peak["activations"] / MiB),
    "MiB",
    "predicted",
)
plot_memory(front)

# %%
pd.DataFrame(
    {
        "activations MiB": [round(run.peak["activations"] / MiB) for run in front],
        "with state and context MiB": [round(run.peak_bytes / MiB) + CONTEXT for run in front],
        "TFLOP a step": [round(run.flops / 1e12, 2) for run in front],
        "FLOPs against off": [f"{run.flops / plain.flops:.3f}" for run in front],
    },
    index=[run.name for run in front],
)

# %% [markdown]
# With $n=2$ half of the layers still keep everything, and so about half of the activations stay. The last row was also predicted directly, with checkpoints in the traced layers. The rule gives the same:

# %%
print(
    f"rule {format_bytes(front[-1].peak['activations'])}, traced "
    f"{format_bytes(every_layer.peak['activations'])}"
)
print(f"the boundaries of all 24 layers alone: {format_bytes(24 * boundary)}")

# %%
plot_checkpointed_layers(
    front,
    {"accumulation": (front[0], published[1]), "+ checkpointing": (front[-1], published[2])},
    CONTEXT,
)

# %% [markdown]
# The front is nearly a straight line: each further checkpointed layer trades the same memory for the same computation. (Not the last layer: by the rule above its interior is there at the peak again.) So by FLOPs there is no best $n$: take the largest one that fits. Seconds are the next section's subject.
#
# Between $n=2$ and $n=1$ there is a wide gap. A layer at a time can be chosen by hand, as above. On a graphics card `offload=True`, in the same dictionary, moves the kept boundary of each checkpointed layer to the processor's memory and back, for every micro-batch. (The bytes of all boundaries are printed above the picture.) What that costs in seconds the course has not measured.
#
# (The picture's axis of memory begins at 6000 MiB: the steps are smaller than they look.) The published figures stand where their settings are on the axis of FLOPs; the published table has no points between.
#
# ### Exercise: arguments for a memory budget
#
# *Difficulty* *** · *12 minutes* · *Why*: this is the decision that the two units have prepared. Its goal is the *fewest FLOPs*, which can be known beforehand.
#
# Write `arguments_for_budget(output_dir, effective_batch, budget, peak)`. It returns the `TrainingArguments` of a training run on the CPU that fits into `budget` bytes.
#
# - `peak(micro_batch, every_n_layers)` gives the peak in bytes; `every_n_layers` is 8, 4, 2, 1, or None for checkpointing off. The model has 8 layers.
# - At most `budget` bytes. Micro-batch times accumulation steps is exactly `effective_batch`.
# - Among the settings that fit, take one that runs the fewest layers again; among these, the one with the largest micro-batch. (At least one setting fits.)


# %% exercise="arguments_for_budget" points=3
def arguments_for_budget(output_dir, effective_batch, budget, peak):
    """TrainingArguments that fit into the budget with as little recomputation as possible."""
    # BEGIN SOLUTION
    sizes = [size for size in range(effective_batch, 0, -1) if effective_batch % size == 0]
    for every_n_layers in (None, 8, 4, 2, 1):
        for size in sizes:
            if peak(size, every_n_layers) <= budget:
                more = (
                    checkpointing_arguments(every_n_layers=every_n_layers) if every_n_layers else {}
                )
                return TrainingArguments(
                    output_dir,
                    per_device_train_batch_size=size,
                    gradient_accumulation_steps=effective_batch // size,
                    use_cpu=True,
                    **more,
                )
    # END SOLUTION


# %% check="arguments_for_budget"
check(arguments_for_budget)

# %% [markdown]
# **A good place to stop for today.**
#
# ## Slower or faster?
#
# Now the question. Measure plain and checkpointed runs of one effective batch in micro-batches of different sizes. A short loop in PyTorch stands in for the Trainer. The optimizer is SGD, and the small BERT has 8 layers here, so that activations and not the optimizer's state decide what fits.
#
# We do it twice: with 16 reviews cut or padded to 32 tokens, and with 8 cut or padded to 128.

# %%
TOKENS = {
    f"8 layers, {length} tokens": list(dataset(load_reviews()[:number], max_length=length))
    for number, length in ((16, 32), (8, 128))
}
SHORT, LONG = TOKENS
EVERY = {"off": None, "every layer": 1, "every 2 layers": 2, "every 4 layers": 4}


def loop(micro_batch, accumulation_steps, every_n_layers, data):
    model = small_bert(seed=0, num_hidden_layers=8, use_cache=False)
    if every_n_layers:
        switch_on(model, every_n_layers=every_n_layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, batch in enumerate(DataLoader(data, batch_size=micro_batch), start=1):
        (model(**batch).loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def training(micro_batch, accumulation_steps, checkpointing="off", model=SHORT):
    """What trains, and what `measure` is told of it."""
    if micro_batch * accumulation_steps > len(TOKENS[model]):
        raise ValueError(
            f"This loop has {len(TOKENS[model])} reviews: "
            "choose micro-batch x accumulation steps up to that."
        )
    said = {
        "name": f"{micro_batch} x {accumulation_steps}"
        + ("" if checkpointing == "off" else f", {checkpointing}"),
        "model": model,
        "micro_batch": micro_batch,
        "accumulation_steps": accumulation_steps,
        "checkpointing": checkpointing,
    }
    every_n_layers = EVERY[checkpointing]
    return partial(loop, micro_batch, accumulation_steps, every_n_layers, TOKENS[model]), said


# %% [markdown]
# A passing disturbance should not hit only one of the runs we compare. So `measure_in_turn` measures memory and FLOPs first, and then times all runs in turn, again and again.

# %%
BOTH = ("off", "every layer")
settings = [(size, 16 // size, checkpointing) for size in (16, 4, 1) for checkpointing in BOTH]
settings.append((4, 4, "every 2 layers"))
points = {SHORT: measure_in_turn([training(*setting) for setting in settings])}
summary(points[SHORT])

# %%
settings = [(size, 8 // size, checkpointing, LONG) for size in (4, 1) for checkpointing in BOTH]
points[LONG] = measure_in_turn([training(*setting) for setting in settings])
summary(points[LONG])

# %% [markdown]
# **With the same micro-batch: slower.** Compare the rows in pairs; where the brackets overlap, a pair says nothing. The checkpointed one does the same work and some of it twice. Its FLOPs are higher in every pair.
#
# **With the same memory it is another question.** Let the budget be what a plain run with micro-batches of 1 needs. It cannot be made any smaller by accumulation. What fits into it?

# %%
rows = []
for model, measured in points.items():
    budget = next(
        run.peak_bytes
        for run in measured
        if run.settings["micro_batch"] == 1 and run.settings["checkpointing"] == "off"
    )
    rows.append(
        (
            model,
            f"{budget / MiB:.2f}",
            "; ".join(run.name for run in measured if run.peak_bytes <= budget),
        )
    )
pd.DataFrame(rows, columns=["model", "budget MiB", "fits"])

# %% [markdown]
# With checkpointing micro-batches of 4 fit into the memory of 1. They compute more, but in fewer and larger operations. How many fewer can be counted: PyTorch tells a *dispatch mode* of each operation that it runs.


# %%
class CountOperations(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def operations(micro_batch, every_n_layers):
    """Operations of one micro-batch, forward and backward."""
    model = small_bert(seed=0, num_hidden_layers=8, use_cache=False)
    if every_n_layers:
        switch_on(model, every_n_layers=every_n_layers)
    few = next(iter(DataLoader(TOKENS[SHORT], batch_size=micro_batch)))
    with CountOperations() as counter:
        model(**few).loss.backward()
    return counter.count


plain_one, checkpointed_four = operations(1, None), operations(4, 1)
by_name = {run.name: run for run in points[SHORT]}
print(
    f"operations of a checkpointed micro-batch: {checkpointed_four / plain_one:.1f} times "
    "those of a plain one"
)
print(
    f"4 x 4 checkpointed against 1 x 16 plain: {4 * checkpointed_four / (16 * plain_one):.2f} "
    f"times the operations, {by_name['4 x 4, every layer'].flops / by_name['1 x 16'].flops:.2f} "
    "times the FLOPs"
)

# %% [markdown]
# A quarter of the micro-batches, each with more operations; all in all far fewer operations and about a third more FLOPs. Whether that pays is a race.
#
# Here is the race, with the medians of the tables above. The black line over each bar goes from the slowest to the fastest repeat. The title compares the first bar with the last, unless their lines overlap: then it is too noisy to tell.

# %%
BARS = {
    (1, "off"): "plain, one by one",
    (1, "every layer"): "checkpointed, one by one\n(same micro-batch)",
    (4, "every layer"): "checkpointed, four at once\n(same memory)",
}
races = {
    model: [
        run
        for bar in BARS
        for run in runs
        if (run.settings["micro_batch"], run.settings["checkpointing"]) == bar
    ]
    for model, runs in points.items()
}
plot_race(races, BARS.values())

# %% [markdown]
# Read the panels from the first bar, and compare only bars whose lines do not overlap. A shorter second bar is the price of checkpointing alone. A longer third bar means that checkpointing won at the same memory, a shorter one that it lost.
#
# The explorer lets you settle it yourself, with the runs of 32 tokens (`ckpt` is every layer, `ckpt/2` every second one). *Compare at* "fixed batch" leaves the runs of one effective batch; "fixed memory" asks for the fastest run under the budget line, at any batch. Move the line up a little, and 16 at once fit with checkpointing, long before the next plain run does; choose a point with checkpointing that was not measured, and measure it.

# %%
budget = next(run for run in points[SHORT] if run.name == "1 x 16").peak_bytes


def measure_point(micro_batch, accumulation_steps, checkpointing="off"):
    train_once, said = training(micro_batch, accumulation_steps, checkpointing)
    return measure(train_once, **said)


explorer(points[SHORT], measure=measure_point, budget=budget)

# %% [markdown]
# So both can be right. **Slower with the same micro-batch. With the same memory faster, if the larger micro-batches win back more than the recomputation costs**, and slower if they do not. Where your picture is too noisy to tell, it decides nothing. How it comes out on a graphics card is not measured here. The published rows with and without checkpointing have the same micro-batch, so they could only show the price.
#
# ## The same weights
#
# Three ways of writing, plain and checkpointed, with the recipe of the accumulation unit. In PyTorch each layer's `forward` goes through `checkpoint`; in Accelerate the model's switch is used; in the Trainer the argument.


# %%
def with_pytorch(checkpointed):
    model = bert()
    if checkpointed:
        for layer in model.bert.encoder.layer:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number, batch in enumerate(DataLoader(reviews, batch_size=4), start=1):
        (model(**batch).loss / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def with_accelerator(checkpointed):
    model = bert()
    if checkpointed:
        switch_on(model)
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.05), DataLoader(reviews, batch_size=4)
    )
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    return model


def with_trainer(checkpointed):
    return train(arguments(4, 4, **checkpointing_arguments() if checkpointed else {}))


def vector(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


start, reference, table = vector(bert()), vector(with_pytorch(False)), []
for version in (with_pytorch, with_accelerator, with_trainer):
    for checkpointed in (False, True):
        end = vector(version(checkpointed))
        same = bool((end - reference).abs().max() < 1e-6)
        table.append(
            (
                version.__name__,
                checkpointed,
                f"{end.norm():.4f}",
                f"{(end - start).norm():.4f}",
                same,
            )
        )
pd.DataFrame(table, columns=["version", "checkpointed", "norm", "moved by", "same to 1e-6"])

# %% [markdown]
# Six training runs, one result, and it is the fingerprint of the accumulation unit.
#
# ## What to keep
#
# - `activation_checkpointing=True` (before 5.23: `gradient_checkpointing`); details go into `activation_checkpointing_kwargs`, which alone does nothing. Where you write torch's own settings into it, write `"use_reentrant": False` as well: your dictionary replaces the default.
# - `every_n_layers=n` checkpoints one layer in $n$ and leaves the others plain. Take the largest $n$ that fits.
# - Fewest FLOPs: first accumulate, then checkpoint as many layers as the budget asks for. Fewest seconds: list what fits, and time it.
# - Slower with the same micro-batch. With the same memory: measure.
# - The weights at the end were the same.
#
# One cost is left: what several devices send each other. That is the next unit, [Local SGD](../3_local_sgd/1_pytorch.ipynb).
#
# Optional, before that: [recursion and budgets](4_budgets.ipynb), for chains of great depth and for a compiler that chooses what is kept.
