# %% [markdown]
# # Gradient accumulation on lazy tensors
#
# **You will be able to** say what a lazy tensor records and when it runs, read the counters of compiled and executed graphs, place the marks of an accumulation loop, and find what breaks a graph.
#
# **Minutes**: 80, with a place to stop · **Before this**: [Gradient accumulation in PyTorch](1_pytorch.ipynb). This lesson is optional; no later one needs it.

# %% [markdown]
# ## A question
#
# So far each line of your loop computed something as soon as it ran; this is called *eager*. Some frameworks do it differently: they write down what you asked for, compile the whole of it, and run it later.
#
# Then "forward, backward, forward, backward, step" is no longer a sequence of computations. It is a text that somebody else divides into pieces. **Who decides where a piece ends, and what does that cost?**
#
# Ratex, Amazon's bridge from PyTorch to a compiler, had a lesson on this: accumulation needs one more `mark_step`.
# PyTorch itself carries a small lazy backend. This notebook runs the lesson there, on a CPU, and measures.
#
# **Note**: `torch._lazy` begins with an underscore: it is private and may go with any release.
# Learn the idea here; build nothing on this module. Where your torch no longer has it, the next cell says so, and you are shown recorded outputs.

# %%
import re
import time

import pandas as pd
import torch
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader
from trainlean import (
    batches,
    check,
    dataset,
    guess,
    hint,
    in_fresh_process,
    lazy_or_recorded,
    load_reviews,
    plot_compare,
    plot_graph,
    plot_graphs_run,
    recall,
    record,
    reveal,
    small_bert,
    put_in_order,
)

lazy_or_recorded("1_accumulation/4_lazy_tensors")

# %%
recall("1_accumulation/4_lazy_tensors")

# %% [markdown]
# ## A tensor that waits
#
# The backend is started once in a process. (A second `init()` raises an error and changes nothing; to run the next cell again, leave that line out.) Then `"lazy"` is a device like any other: tensors are moved to it with `.to("lazy")`.

# %%
from torch._lazy import mark_step, metrics, ts_backend

ts_backend.init()

inputs = torch.ones(2, 3).to("lazy")
weight = torch.full((3, 1), 0.5).to("lazy")
outputs = torch.tanh(inputs @ weight)
loss = (outputs * outputs).mean()
print(loss.shape, loss.device.type)

# %% [markdown]
# It looks as usual. But no product, no `tanh` and no mean has been computed. `loss` knows its shape, and the *graph* of operations that would give its value:


# %%
def recorded_graph(tensor):
    """The operations that wait to be run for this tensor, one a line."""
    text = torch._C._lazy._get_tensors_text([tensor])
    lines = re.findall(r"%\d+ = \[.*?\] \w+::\w+\([^)]*\)|%\d+ = \[.*?\] \w+::\w+", text)
    return "\n".join(lines)


print(recorded_graph(loss))

# %% [markdown]
# Read it from top to bottom: each line has a number, the type and shape of its result, the operation, and the numbers of its inputs. `device_data` is a tensor that is there already. The same as a picture:

# %%
plot_graph(torch._C._lazy._get_tensors_dot([loss]))

# %% [markdown]
# `mark_step()` ends the recording: everything that has not been computed yet, and that some tensor still stands for, is compiled as **one** graph and run. Afterwards the tensor is data, and nothing waits any more. (With `wait=True` the call returns when the graph has been run, not before.)

# %%
mark_step(wait=True)
print(recorded_graph(loss))
print(f"loss {loss.item():.4f}")

# %% [markdown]
# ## Compile once, run often
#
# A training loop records the same graph again and again, with other data. So the backend keeps compiled graphs under their *shape*: operations with their fixed arguments, connections, types and sizes, and which results some tensor still stands for.
# Counters tell what happened: `UncachedCompile` counts graphs that were compiled and run, `CachedCompile` graphs that were found in the cache and only run. Their sum is the number of *executions*. The operations are counted as the lines of all graphs, those of `device_data` too.


# %%
def counted():
    """Graphs compiled, taken from the cache, and operations in all graphs, since the last reset."""
    compiled, cached = (
        metrics.counter_value(name) or 0 for name in ("UncachedCompile", "CachedCompile")
    )
    size = re.search(
        r"TensorsGraphSize\s+TotalSamples: \d+\s+Accumulator: ([\d.]+)", metrics.metrics_report()
    )
    return compiled, cached, int(float(size[1])) if size else 0


metrics.reset()
rows = []
for length in (8, 8, 8, 5, 5, 8):
    inputs = torch.ones(length, 3).to("lazy")
    outputs = (inputs @ weight).relu().sum()
    mark_step(wait=True)
    rows.append((length, *counted()))
pd.DataFrame(
    rows,
    columns=["rows in the batch", "compiled so far", "from the cache so far", "operations so far"],
)

# %% [markdown]
# The first batch is compiled, its repetitions are not. The first batch of five is compiled again: another size is another graph. (Run the cell once more, and all six come from the cache.)
#
# ## Your loop, lazily
#
# Now the small BERT and the data of this unit: the first 64 reviews in micro-batches of 4, windows of $k = 4$. So 16 micro-batches and 4 updates, with plain SGD.
# One mark, where a window ends. What is new in the loop:
#
# - Gradients begin as zeros and are set to zero (`set_to_none=False`). Otherwise the first backward pass of a window *sets* the gradient and the others *add* to it: two kinds of graph instead of one, as soon as each micro-batch is a graph of its own (further below).
# - Each micro-batch is moved with `.to("lazy")`. Slices of one lazy tensor would carry their position into the graph.
# - The loss is divided by $k$, an *integer*. Divided by `float(k)`, or multiplied with `1 / k`, it does not get through on this backend (see below).
# - `ran` times what makes a graph run, and notes the counters afterwards.


# %%
def train_lazily(micro_batches, k, after_backward=None, lr=0.05, first=1):
    """Train the small BERT: what the backend did, and the weights. Call it in a fresh process.

    The micro-batches are counted from `first`; after_backward(loss) is called after each backward.
    """
    ts_backend.init()
    model = small_bert(seed=0).to("lazy")
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    mark_step(wait=True)
    metrics.reset()
    log = [(0, 0, 0, 0.0)]

    def ran(what, *args, **how):
        start = time.perf_counter()
        what(*args, **how)
        log.append((*counted(), time.perf_counter() - start))

    for number, batch in enumerate(micro_batches, start=first):
        batch = {name: tensor.to("lazy") for name, tensor in batch.items()}
        loss = model(**batch).loss / k
        loss.backward()
        if after_backward:  # what later experiments do there
            ran(after_backward, loss)
        if number % k == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            ran(mark_step, wait=True)
    fallbacks = {
        name: metrics.counter_value(name)
        for name in metrics.counter_names()
        if name.startswith("aten::")
    }
    weights = [parameter.detach().cpu() for parameter in model.parameters()]
    return {"log": log, "fallbacks": fallbacks, "weights": weights}


reviews = load_reviews()
micro_batches = list(DataLoader(dataset(reviews[:64], max_length=64), batch_size=4))
print(len(micro_batches), "micro-batches with", ", ".join(micro_batches[0]))

# %% [markdown]
# A warning for your own loops. `loss / 4`, `loss / 4.0` and `loss * 0.25` are the same number, and in eager PyTorch the same training. Here:


# %%
def scaled_backward(scale):
    """The error of a backward pass from a scaled loss, or that there was none."""
    ts_backend.init()
    weight = torch.ones(3, 1).to("lazy").requires_grad_()
    outputs = torch.ones(4, 3).to("lazy") @ weight
    scale(outputs.sum()).backward()
    try:
        mark_step(wait=True)
    except RuntimeError as error:
        return str(error).strip().splitlines()[-1]
    return f"the gradient is {weight.grad.cpu().flatten().tolist()}"


for name, scale in {
    "loss / 4": lambda loss: loss / 4,
    "loss / 4.0": lambda loss: loss / 4.0,
    "loss * 0.25": lambda loss: loss * 0.25,
    "loss * tensor(0.25)": lambda loss: loss * torch.tensor(0.25, device="lazy"),
}.items():
    print(f"{name:20} {in_fresh_process(scaled_backward, scale)}")

# %% [markdown]
# A Python *float* is recorded as data of 64 bits. Beside a tensor with dimensions, such as `outputs * 0.25`, it does no harm. A loss has none: here 64 bits come back through it, and the next matrix product refuses them. The error comes from the mark, not from the line that scaled the loss. Divide by the integer $k$, or multiply with a tensor of 32 bits.
#
# **Predict.** Sixteen micro-batches, a mark after each fourth. How many graphs will be run?

# %%
# BEGIN SOLUTION
my_guess = 4
# END SOLUTION
guess("graphs run with one mark in a window", my_guess, "graphs")

# %% [markdown]
# Counters and compiled graphs belong to the process, and a mark runs whatever waits anywhere in it. So each training run gets a process of its own: `in_fresh_process(function, ...)` calls the function there and brings back what it returns.

# %%
first_try = in_fresh_process(train_lazily, micro_batches, 4)
compiled, cached, operations, _ = first_try["log"][-1]
print(f"{compiled + cached} graphs run, {compiled} of them compiled")
reveal("graphs run with one mark in a window", compiled + cached, "graphs")

# %% [markdown]
# Four marks, and far more graphs. Something else makes parts of the recording run. Who?
#
# ## Operators that cannot wait
#
# The code that computes an operator on a device is called its *kernel*. A *lazy kernel* records the operator. Where an operator has none, the backend has a way out, the *fallback*: it runs what leads to the operator's inputs, moves these to the CPU, computes the operator there at once, and brings the result back as data. The rest goes on waiting.
# So small graphs run in every micro-batch, between the marks. In this lesson that is a *break*: a part of a graph is run before its mark.
#
# Each fallback has a counter with the operator's name. **Counters that begin with `aten::` are fallbacks** (recorded operators are counted under `lazy::`):

# %%
pd.DataFrame(first_try["fallbacks"].items(), columns=["operator without a lazy kernel", "calls"])

# %% [markdown]
# Once in each of the 16 micro-batches. `_local_scalar_dense` is the telling one: it reads one number out of a tensor, which is what `.item()`, `float()` and `if tensor:` do.
# In transformers 5.23 it is an `if` in the code that prepares the attention mask ("is anything padded at all?"). If anything is, `index` and `where` build the mask that attention adds to its scores.
#
# How much do the fallbacks run? One window once more, with the counters noted after each backward pass, too:

# %%
log = in_fresh_process(train_lazily, micro_batches[:4], 4, lambda loss: None)["log"]
pd.DataFrame(
    [
        (sum(after[:2]) - sum(before[:2]), after[2] - before[2])
        for before, after in zip(log, log[1:])
    ],
    index=[*(f"micro-batch {number}" for number in range(1, 5)), "mark"],
    columns=["graphs run", "operations in them"],
)

# %% [markdown]
# They run the few operations that prepare the mask. (A fallback runs each of its inputs that still waits as a graph of its own, so there are more graphs than fallbacks.) Nothing else ran with them: the forward and backward passes of the whole window waited for the mark, which ran them as one graph.
# That is little, because little leads to a mask. When you clip, you will meet an operator that needs a gradient: more leads to that.
#
# The cure is to leave that code nothing to do. A mask that is ready, with 0 where a token may be looked at and the most negative number where not, goes through untouched:


# %%
def with_ready_mask(batch):
    seen = batch["attention_mask"][:, None, None, :].float()  # [texts, 1, 1, tokens]
    return batch | {"attention_mask": (1 - seen) * torch.finfo(torch.float32).min}


ready_batches = [with_ready_mask(batch) for batch in micro_batches]
one_mark = in_fresh_process(train_lazily, ready_batches, 4)
compiled, cached, operations, _ = one_mark["log"][-1]
print(
    f"{compiled + cached} graphs run, {compiled} of them compiled; fallbacks: "
    f"{one_mark['fallbacks'] or 'none'}"
)
print(f"{one_mark['log'][1][2]} operations in the first graph")

# %% [markdown]
# Now the marks' four graphs are all that runs. The first is nearly as large as the mark's graph above: only the small ones are gone. (Two were compiled: from the second window on more copies of views are recorded; after that the graph stays the same.)
#
# Which operators of an everyday loop fall back? A few candidates, each called once, without its backward pass:


# %%
def falls_back():
    ts_backend.init()
    found = {}
    for name, operator in {
        "relu": lambda a, b: torch.relu(a),
        "cross_entropy": lambda a, b: torch.nn.functional.cross_entropy(a, torch.softmax(b, 1)),
        "mse_loss": torch.nn.functional.mse_loss,
        "(a - b)² by hand": lambda a, b: ((a - b) * (a - b)).mean(),
        "huber_loss": torch.nn.functional.huber_loss,
        "where": lambda a, b: torch.where(a > b, a, b),
        "b + relu(a - b)": lambda a, b: b + torch.relu(a - b),
        "lerp (in AdamW)": lambda a, b: a.lerp(b, 0.1),
        "if a.sum() > 0": lambda a, b: bool(a.sum() > 0),
    }.items():
        a, b = torch.ones(4, 3).to("lazy"), torch.zeros(4, 3).to("lazy")
        mark_step(wait=True)
        metrics.reset()
        operator(a, b)
        found[name] = (
            ", ".join(
                counter for counter in metrics.counter_names() if counter.startswith("aten::")
            )
            or "-"
        )
    return found


pd.DataFrame(in_fresh_process(falls_back).items(), columns=["called", "fallback"])

# %% [markdown]
# This list belongs to torch's own small backend. Some have a simple way around them: the square by hand for `mse_loss`, `b + relu(a - b)` for this `where`.
# AdamW falls back here for every parameter, which is why this notebook trains with SGD.
#
# ### Exercise: name the fallbacks
#
# *Difficulty* ** · *6 minutes* · *Why*: the list says what to cure.
#
# Write `fallbacks(train)`. It calls `train()` once and returns a dictionary: the full name of each operator that fell back during that call (such as `"aten::dot"`), and how often.
#
# - The process may have run other things before. Names that `train()` did not call do not belong in the dictionary.
# - Somebody around you may be counting, too: no `metrics.reset()`.


# %% exercise="fallbacks" points=2
def fallbacks(train):
    """The operators without a lazy kernel that train() called, with their number of calls."""

    # BEGIN SOLUTION
    def read():
        return {
            name: metrics.counter_value(name)
            for name in metrics.counter_names()
            if name.startswith("aten::")
        }

    before = read()
    train()
    calls = {name: count - before.get(name, 0) for name, count in read().items()}
    return {name: count for name, count in calls.items() if count}
    # END SOLUTION


# %% check="fallbacks"
check(fallbacks)

# %% [markdown]
# `hint(fallbacks)` helps on request.
#
# ### Exercise: cure one
#
# *Difficulty* ** · *8 minutes* · *Why*: `torch.nn.utils.clip_grad_norm_` breaks the graph (`aten::linalg_vector_norm`): for each gradient by itself it runs the passes that lead to it, and the mark runs them all again.
#
# Write `clip_without_fallback(parameters, max_norm)`: afterwards the `.grad` of the parameters are what `clip_grad_norm_` would have made of them.
#
# - `parameters` is what `model.parameters()` gives: a generator, which can be iterated over only once.
# - The length is that of all gradients together. If it is above `max_norm`, all are scaled to that length; if not, they stay.
# - Parameters without a gradient (`None`) are passed over; at least one has a gradient.
# - No fallback, and no graph is run while clipping. The gradients come from a backward pass that was recorded and not run yet: nothing may ask for a value, not for theirs either.
# - A factor of 64 bits does no harm here: multiplied into a gradient, which has dimensions, it gives 32 bits.


# %% exercise="clip_without_fallback" points=3
def clip_without_fallback(parameters, max_norm):
    """Clip the gradients' common length to max_norm, recording only."""
    # BEGIN SOLUTION
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    length = sum((gradient * gradient).sum() for gradient in gradients).sqrt()
    factor = (max_norm / (length + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    # END SOLUTION


# %% check="clip_without_fallback"
check(clip_without_fallback)

# %% [markdown]
# **A good place to stop for today.** What runs, and what breaks a graph, is known. What follows is where the marks of the loop belong.
#
# ## One graph or two
#
# Back to the loop. One mark in a window makes one graph of the window: $k$ forward passes, $k$ backward passes and the update, all unrolled.
# Ratex's document has two kinds of graph instead: forward and backward of *one* micro-batch, and the update.
#
# ### Exercise: two kinds of graph
#
# *Difficulty* ** · *7 minutes* · *Why*: without its mark the update hides in the graph of the next micro-batch, and no error says so.
#
# Write `train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps)`: the accumulation loop, so that each graph that is run is either forward and backward of *one* micro-batch, or an update.
#
# - Model, data and gradients are on the lazy device already; the gradients begin as zeros (a frozen weight has none). `loss_function(outputs, targets)` returns the mean, without fallbacks. `micro_batches` is a list of pairs that fills whole windows; it stays as it is.
# - `mark_step()` ends a graph. When the loop is done, nothing is left unrun.
# - Whether gradients are set to zeros or to None is left to you.


# %%
put_in_order("train_with_marks")


# %% exercise="train_with_marks" points=3
def train_with_marks(model, optimizer, loss_function, micro_batches, accumulation_steps):
    """Train with accumulation, as one graph for each micro-batch and one for each update."""
    # BEGIN SOLUTION
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        loss = loss_function(model(inputs), targets)
        (loss / accumulation_steps).backward()
        mark_step()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
            mark_step()
    # END SOLUTION


# %% check="train_with_marks"
check(train_with_marks)

# %% [markdown]
# Now measure both ways: one mark in a window, and a second mark right after `backward()`, which Ratex's document adds.
# A third way happens by accident: one mark in a window, and `loss.item()` in every round, to print the loss.
#
# **Predict.** Sixteen micro-batches, $k = 4$. Two marks run 16 + 4 graphs, as you built it. How many does the third way run?

# %%
# BEGIN SOLUTION
my_guess = 16
# END SOLUTION
guess("graphs run with one mark and .item()", my_guess, "graphs")


# %%
def second_mark(loss):
    mark_step(wait=True)


def read_the_loss(loss):
    loss.item()


two_marks = in_fresh_process(train_lazily, ready_batches, 4, second_mark)
with_item = in_fresh_process(train_lazily, ready_batches, 4, read_the_loss)
loops = {
    "mark after the update": one_mark,
    "marks after backward and update": two_marks,
    "mark after the update, and .item()": with_item,
}


def graphs(log):
    """(operations, compiled or not) of each graph that was run."""
    steps = zip(log, log[1:])
    return [(after[2] - before[2], after[0] > before[0]) for before, after in steps]


rows = []
for name, run in loops.items():
    compiled, cached, operations, _ = run["log"][-1]
    rows.append(
        (
            name,
            compiled + cached,
            compiled,
            cached,
            max(size for size, _ in graphs(run["log"])),
            operations,
        )
    )
reveal("graphs run with one mark and .item()", rows[2][1], "graphs")
pd.DataFrame(
    rows,
    columns=[
        "loop",
        "executions",
        "compiled",
        "from the cache",
        "largest graph",
        "operations in all",
    ],
)

# %%
plot_graphs_run({name: graphs(run["log"]) for name, run in loops.items()})

# %% [markdown]
# Two marks: 16 + 4 executions, one for each micro-batch and one for each update. The second kind of graph, the small block after every fourth, is the optimizer's. (Three were compiled, one more than there are kinds: as above, fewer operations are recorded in the first window.)
#
# `.item()` gives the same number of executions, but for a different reason. It runs the forward pass to get at the loss, and stops *there*. The backward passes still wait for the mark, all four of them, and need what the forward passes had computed on the way.
# That was not kept, so it is computed once more: look at the operations in all. The large graph is still there, and there are more kinds to compile.
#
# So counting executions is not enough. And the second mark does not save compilations: it has one more. What is it good for?
#
# ## What the second mark buys
#
# One window each, for $k$ = 1, 2, 4 and 8, with 32 tokens a review. For each loop: the operations in its largest graph, and the memory that was live while it ran.
# (The memory is the most that torch's profiler sees allocated at one time, the model and its gradients too.)


# %%
def one_window(k, after_backward):
    """The largest graph, and the most bytes that live at one time, of a single window."""
    window = [
        with_ready_mask(batch) for batch in batches(load_reviews()[: 4 * k], 4, max_length=32)
    ]
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        log = train_lazily(window, k, after_backward)["log"]
    live, peak = 0, 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return max(size for size, _ in graphs(log)), peak / 2**20


steps = (1, 2, 4, 8)
settings = {"one mark": None, "two marks": second_mark, "one, and .item()": read_the_loss}
found = {
    name: [in_fresh_process(one_window, k, after_backward) for k in steps]
    for name, after_backward in settings.items()
}
pd.DataFrame(
    {name: [size for size, _ in values] for name, values in found.items()},
    index=pd.Index(steps, name="k"),
)

# %% [markdown]
# The table shows the operations in the largest graph. With two marks it does not depend on $k$. In the other loops it grows with every micro-batch of the window, and another $k$ is another graph.
#
# Then the memory:

# %%
plot_compare(
    {name: (steps, [peak for _, peak in values]) for name, values in found.items()},
    x="accumulation steps k",
    y="live memory, MiB",
    from_zero=True,
)

# %%
peaks = {name: [peak for _, peak in values] for name, values in found.items()}
for name, values in peaks.items():
    print(f"{name:18} at k = 8 above 1.5 times its memory at k = 1: {values[-1] > 1.5 * values[0]}")

# %% [markdown]
# This is the finding of the lesson: **without the second mark memory grows here with $k$, after a flat beginning, which is just what accumulation was to prevent.**
#
# Why? The profiler can also tell in which order the kernels of the large graph ran. In a backward pass each linear layer needs two products of matrices, `mm`: one for the gradient of its input, which the layer before waits for, and one for the gradient of its weight, which nobody waits for. How many `mm` run after each micro-batch's loss, before the next one's?


# %%
def products_after_each_loss(k):
    """Matrix products run after each micro-batch's loss and before the next one's."""
    window = [
        with_ready_mask(batch) for batch in batches(load_reviews()[: 4 * k], 4, max_length=32)
    ]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        train_lazily(window, k)
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    names = [event.name() for event in events]
    losses = [at for at, name in enumerate(names) if name == "aten::nll_loss_backward"][-k:]
    return [names[start:end].count("aten::mm") for start, end in zip(losses, [*losses[1:], None])]


print(in_fresh_process(products_after_each_loss, 4))

# %% [markdown]
# The micro-batches go through forward and backward one after the other, each with the products for the gradients of the layers' inputs. The last number holds one such share and, behind all of them, the weight gradients of all four micro-batches.
# What they need, activations and output gradients, has to live until then, for all $k$ micro-batches.
# With the second mark each micro-batch is run to its end, its weight gradients too, as in the loop that you know.
#
# ## What compiling costs
#
# The seconds that each graph took, in the order in which they were run. They differ from run to run.

# %%
plot_compare(
    {
        name: [entry[3] for entry in run["log"][1:]]
        for name, run in {"one mark": one_mark, "two marks": two_marks}.items()
    },
    x="graphs run, in order",
    y="seconds",
    title="A graph's first runs are slow",
)

# %% [markdown]
# A graph's first run includes its compilation, and a run or two from the cache can still be slow. The large graph takes longer, and another $k$, batch size or text length is another graph.
#
# ## The same weights
#
# Is it the same training? First the fingerprint of this unit: norm and distance moved, for the training that the lessons on [Accelerate](2_accelerator.ipynb) and the [Trainer](3_trainer.ipynb) end with.

# %%
start = parameters_to_vector(small_bert(seed=0).parameters()).detach().double()
for name, run in {"first try, with fallbacks": first_try, **loops}.items():
    weights = parameters_to_vector(run["weights"]).double()
    print(f"{name:36} norm {weights.norm():.4f}  moved by {(weights - start).norm():.4f}")

# %% [markdown]
# Then the training of the unit's [first notebook](1_pytorch.ipynb), with its data and its loop, each operation computed at once: 128 reviews as 4 x 16, two updates with a learning rate of 0.1.


# %%
def train_bert(micro_batches, accumulation_steps, lr):
    model = small_bert(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for number, batch in enumerate(micro_batches, start=1):
        loss = model(**batch).loss
        (loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
    return parameters_to_vector(model.parameters()).detach()


data = batches(reviews[:128], 4, seed=0)
eager = train_bert(data, 16, lr=0.1)
ready = [with_ready_mask(batch) for batch in data]
lazy = in_fresh_process(train_lazily, ready, 16, second_mark, 0.1)["weights"]
lazy = parameters_to_vector(lazy)
print(f"moved by training, at most: {(eager - start).abs().max():.3f}")
print("eager and lazy differ < 1e-6:", bool((eager - lazy).abs().max() < 1e-6))

# %% [markdown]
# Fallbacks, marks and breaks changed when something was computed, and how often. To these digits they did not change the result.
#
# ## What breaks a loop by accident
#
# A break can come with a line that reports. `train_and_report` is the loop with its two marks, and somebody wants the mean loss of each window. `record`, from the [first notebook](1_pytorch.ipynb), notes how many graphs have been run after every line:


# %%
def train_and_report(micro_batches, k):
    weight = torch.ones(3, 1).to("lazy").requires_grad_()
    mark_step(wait=True)
    window_loss, losses = 0.0, []
    for number, inputs in enumerate(micro_batches, start=1):
        loss = (inputs @ weight).square().mean() / k
        loss.backward()
        window_loss += loss.item()
        mark_step(wait=True)
        if number % k == 0:
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            weight.grad = None
            mark_step(wait=True)
            losses.append(window_loss)
            window_loss = 0.0
    return losses


def graphs_by_line(loop, *args):
    """(line, graphs run so far) after every line of a loop, and the number before the first one."""
    before = sum(counted()[:2])
    trace = record(loop, *args, watch={"graphs": lambda at: sum(counted()[:2])})
    source = trace.source.splitlines()
    return before, [
        (source[frame.line - 1].strip(), int(frame.values["graphs"])) for frame in trace.frames
    ]


four = [torch.ones(2, 3).to("lazy") for _ in range(4)]
before, rows = graphs_by_line(train_and_report, four[:2], 2)
for line, so_far in rows:
    print(f"{so_far - before:3}  {line}")

# %% [markdown]
# ### Exercise: find the breaks
#
# *Difficulty* * · *5 minutes* · *Why*: a loop of your own has many lines, and the counts tell which of them break a graph.
#
# Write `breaking_lines(before, rows)`, which reads such a record. `before` is how many graphs had been run when the loop began, `rows` a list of pairs: a line, as text, and how many graphs had been run when it was through. A line that runs several times stands there several times. `rows` stays as it is.
#
# It returns the set of those lines that ran a graph and are no marks (a mark has `mark_step(` in it; a line that only speaks of marks is none). Go by the counts, not by what the line looks like: `loss.item()` breaks nothing where the value is already there.


# %%
put_in_order("breaking_lines")


# %% exercise="breaking_lines" points=2
def breaking_lines(before, rows):
    """The lines of a recorded loop, other than marks, that ran a graph."""
    # BEGIN SOLUTION
    found = set()
    for line, graphs in rows:
        if graphs > before and "mark_step(" not in line:
            found.add(line)
        before = graphs
    return found
    # END SOLUTION


# %% check="breaking_lines"
check(breaking_lines)


# %%
def train_and_report_later(micro_batches, k):
    weight = torch.ones(3, 1).to("lazy").requires_grad_()
    mark_step(wait=True)
    kept = []
    for number, inputs in enumerate(micro_batches, start=1):
        loss = (inputs @ weight).square().mean() / k
        loss.backward()
        kept.append(loss.detach())
        mark_step(wait=True)
        if number % k == 0:
            with torch.no_grad():
                weight -= 0.1 * weight.grad
            weight.grad = None
            mark_step(wait=True)
    return [sum(loss.item() for loss in kept[i : i + k]) for i in range(0, len(kept), k)]


for loop in (train_and_report, train_and_report_later):
    print(f"{loop.__name__}: {breaking_lines(*graphs_by_line(loop, four, 2)) or 'no breaks'}")
print("the same losses:", train_and_report(four, 2) == train_and_report_later(four, 2))

# %% [markdown]
# The cure is not to report less, but to read later. A lazy tensor may wait: keep `loss.detach()`, which does not hold on to autograd's graph (what was recorded waits as before), and ask for the number when the mark has computed it anyway.
#
# ## The published loop
#
# The loop of Ratex's document (`docs/grad_accumulation.md`) has both marks where they belong. One of its faults you know from the [first notebook](1_pytorch.ipynb): it steps where `index % k == 0`, counted from 0. Does the number of graphs tell?

# %%
published = in_fresh_process(train_lazily, ready_batches, 4, second_mark, 0.05, 0)
rows, right = [], parameters_to_vector(two_marks["weights"])
for name, run in {"counted from 1": two_marks, "counted from 0": published}.items():
    compiled, cached, *_ = run["log"][-1]
    apart = (parameters_to_vector(run["weights"]) - right).norm()
    moved = (right.double() - start).norm()
    rows.append((name, compiled + cached, f"{100 * apart / moved:.0f} %"))
pd.DataFrame(rows, columns=["loop", "executions", "weights off by, of the way moved"])

# %% [markdown]
# As many executions and as many updates, and another training.
#
# ## What became of it
#
# PyTorch/XLA is another lazy backend (`import torch_xla.core.xla_model as xm`). Accelerate 1.15 carries a mark for it: on a TPU it calls `xm.mark_step()` where `sync_gradients` becomes true, *before* the last forward pass of a window. (Read in the source, not run.)
#
# `torch.compile` records graphs, too, from the code instead of from the calls. There you meet *graph breaks* and recompilation again.
#
# ## What to keep
#
# - A lazy tensor is a recorded graph; a mark compiles what waits as one graph and runs it. The same graph is compiled once; another shape is another graph.
# - Two marks, after backward and after the update: here graph size and memory do not grow with $k$. The number of compilations does not fall.
# - With one mark a window is one graph. This backend computes its weight gradients last, and what they need waits: accumulation without its saving.
# - `.item()`, `float`, `print` and `if` on a tensor run at once what leads to that tensor; what the mark needs of it is run again there. Operators without a lazy kernel do the same with their inputs; their counters begin with `aten::`.
# - Counting executions proves as little as counting steps: look at which graphs were run, and compare weights.
#
# Next: the activations of one micro-batch are still in memory. [Gradient checkpointing](../2_checkpointing/1_pytorch.ipynb) keeps fewer of those.
