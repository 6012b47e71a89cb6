# %% [markdown]
# # Checkpointing by recursion and by a budget
#
# **You will be able to** train a chain with memory that grows with the logarithm of its depth, read the curve of memory against FLOPs that a compiler offers, and solve the problem that the compiler solves: which results to keep in a given number of bytes.
#
# **Minutes**: 30 · **Before this**: [Checkpointing in PyTorch](1_pytorch.ipynb). This lesson is optional; no later one needs it.

# %% [markdown]
# ## A question
#
# With segments you chose *one* number, and the least memory of a chain of cheap layers grew with the square root of its depth. With a selective policy you named operations by hand.
#
# Can a chain of a thousand layers be trained with the outputs of a dozen? And can something else choose what is kept, if you only say how much memory there is?

# %%
import pandas as pd
import torch
from IPython.display import display
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint
from trainlean import check, guess, hint, Meter, plot_budgets, recall, reveal

# %%
recall("2_checkpointing/4_budgets")

# %% [markdown]
# ## Recursion
#
# Here is the chain of the [first lesson](1_pytorch.ipynb) again: sixteen layers, each of which keeps as much as it passes on. A *boundary* is what a checkpoint keeps of its input.
#
# Recursion goes lower than segments. Cut the chain in half and checkpoint the first half; then treat each half the same way when it is computed. `levels` says how often the chain is halved; with 0 it runs plainly.


# %%
class Layer(nn.Module):
    """A linear layer and tanh. The input of the next layer is all that it keeps."""

    def __init__(self, width=64):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.tanh(self.linear(x))


def bisected(layers, x, levels=4):
    """The output of the layers; at each level the first half is checkpointed."""
    if levels == 0 or len(layers) == 1:
        for layer in layers:
            x = layer(x)
        return x
    half = len(layers) // 2
    x = torch_checkpoint(bisected, layers[:half], x, levels - 1, use_reentrant=False)
    return bisected(layers[half:], x, levels - 1)


def most_activations(meter):
    """The most bytes of activations at one time."""
    return max(sizes["activations"] for _, sizes in meter.timeline)


def chain(run, number=16):
    """The meter of one forward and backward pass through a chain of layers."""
    torch.manual_seed(0)
    layers = nn.Sequential(*[Layer() for _ in range(number)])
    with Meter() as meter:
        run(layers, torch.randn(240, 64)).sum().backward()
    return meter


# %% [markdown]
# **Predict.** Recomputing every layer once costs a third more FLOPs than plain training. Sixteen layers, halved four times: how many times the FLOPs of plain training?

# %%
# BEGIN SOLUTION
my_guess = 1.33
# END SOLUTION
guess("FLOPs of four levels", my_guess, "times plain")

# %%
BOUNDARY = 240 * 64 * 4  # bytes
meters = {}
for levels in range(5):
    meters[levels] = chain(lambda layers, x: bisected(layers, x, levels))
    most, flops = most_activations(meters[levels]), meters[levels].flops
    print(
        f"{levels} levels: {most / BOUNDARY:4.1f} boundaries, {flops / 1e6:6.2f} MFLOP,"
        f" {flops / meters[0].flops:.2f} times plain"
    )
reveal("FLOPs of four levels", round(flops / meters[0].flops, 2), "times plain")

# %% [markdown]
# At the fullest moment of $L$ levels, with $n$ layers, there are
#
# $$\text{work} + L \cdot \text{boundary} + \left\lceil \frac{n}{2^L} \right\rceil \cdot \text{kept}$$
#
# bytes of activations: one boundary for each level, the layers that run plainly at the lowest level, and what the running operation works with (as in the first lesson, two boundaries; *kept* is what one plain layer keeps, here one boundary).
#
# The price: each level computes half of the layers once more. A layer is computed again as often as it lies in a first half, so it is no longer a third more in all, but a sixth for each level. (The input of the whole chain needs no gradient, which spares plain training one product. So the factors are a little larger.)
#
# What does that give for deeper chains? Segments and levels that need the least memory, by the two formulas, in boundaries:

# %%
print("measured and formula agree to the byte:", end=" ")
print(
    all(
        most_activations(meter) == (2 + levels + 16 / 2**levels) * BOUNDARY
        for levels, meter in meters.items()
    )
)
rows = {}
for layers in (16, 64, 256, 1024):
    by_segments = min(2 + (k - 1) + layers // k for k in range(1, layers + 1) if layers % k == 0)
    halvings = range(layers.bit_length())
    by_levels, levels = min((2 + levels + layers // 2**levels, levels) for levels in halvings)
    rows[f"{layers} layers"] = {
        "plain": 2 + layers,
        "segments": by_segments,
        "recursion": by_levels,
        "levels": levels,
        "FLOPs of recursion": f"{1 + levels / 6:.2f} times",
    }
pd.DataFrame(rows).T

# %% [markdown]
# The memory grows with the logarithm of the depth now (Chen and others, 2016, [arXiv:1604.06174](https://arxiv.org/abs/1604.06174), who also gave the square root). The FLOPs grow with it, too: on average, a layer is computed again half as often as there are levels.
#
# And the last level is never worth it here: it saves what one layer keeps, and takes one boundary for it.

# %% [markdown]
# ## A ready curve
#
# Which results to save is a question that a compiler can answer. `torch.compile` splits forward from backward, and a knob says how much memory for activations it may use, as a share: 1 is what the compiler would take by its own choice, 0 only the inputs, and 0.5 the inputs and half of what its own choice keeps beyond them.
#
# The knob used here, `torch._functorch.config.activation_memory_budget`, is a **private** part of PyTorch: it may change or go with any version. PyTorch 2.13 also has a public prototype, `torch.autograd.graph.region_activation_memory_budget`. The backend named here needs no C++ compiler.


# %%
def saved_and_recomputed(net, budget):
    """Bytes kept by the compiled forward pass (without weights), FLOPs of its backward pass."""
    from torch._functorch import config

    weights, saved = {weight.untyped_storage().data_ptr() for weight in net.parameters()}, {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    torch._dynamo.reset()
    with config.patch(activation_memory_budget=budget):
        compiled = torch.compile(net.forward, backend="aot_eager_decomp_partition")
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = compiled(torch.randn(240, 64, requires_grad=True)).sum()
        with Meter() as meter:
            loss.backward()
    return sum(saved.values()), meter.flops


class Block(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.up, self.down, self.norm = (
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
            nn.LayerNorm(width),
        )

    def forward(self, x):
        return self.norm(x + self.down(torch.nn.functional.gelu(self.up(x))))


def budget_curve(budgets=(1, 0.75, 0.5, 0.25, 0)):
    torch.manual_seed(0)
    net = nn.Sequential(*[Block() for _ in range(4)])
    return {budget: saved_and_recomputed(net, budget) for budget in budgets}


try:
    from torch._functorch import config

    config.activation_memory_budget
    curve = budget_curve()
except (ImportError, AttributeError):
    curve = {}
    print("This version of PyTorch does not have the memory budget; nothing later depends on it.")

for budget, (size, flops) in curve.items():
    print(f"budget {budget:4}: keeps {size / 2**20:4.2f} MiB, backward {flops / 1e6:5.1f} MFLOP")

# %%
if curve:
    display(plot_budgets(curve))

# %% [markdown]
# Read it from the right. The first large saving costs no FLOPs: the compiler's own choice keeps results that can be computed again without a product. From there on FLOPs pay for memory, in uneven steps: the compiler keeps or drops whole tensors, and a budget is not always used up. The last point keeps the inputs only, like one checkpoint around everything.
#
# The bytes are those that wait between forward and backward. What is recomputed comes on top in the backward pass, and is not in this picture.
#
# ## What the compiler solves
#
# Each result in a graph has a size in bytes, and a price in FLOPs that are paid when it is not kept. Which results do you keep, so that their bytes stay within the budget and the price of the rest is the least?
# This is the *knapsack problem*. PyTorch 2.13 solves it for its budget. Here the prices are independent: what a result costs does not depend on which others are kept. That is an approximation.
#
# The obvious way is to keep first what is most expensive for its size, as long as there is room. It is not always the best way:


# %%
def greedy(results, budget):
    """FLOPs recomputed when the most FLOPs for a byte are kept first."""
    recomputed = 0
    for size, flops in sorted(results, key=lambda result: result[1] / result[0], reverse=True):
        if size <= budget:
            budget -= size
        else:
            recomputed += flops
    return recomputed


results = [(60, 66), (50, 50), (50, 50)]  # (bytes, FLOPs) of each result
print("kept greedily in 100 bytes, FLOPs recomputed:", greedy(results, 100))
print("the two results of 50 bytes kept:            ", results[0][1])

# %% [markdown]
# ## Exercise: the least recomputation
#
# *Difficulty* ** · *10 minutes* · *Why*: a budget in bytes is what you have; the FLOPs are what you pay, and a rule of thumb can miss the least.
#
# Write `least_recomputation(results, budget)`: the fewest FLOPs that must be recomputed when the results that are kept take at most `budget` bytes together.
#
# - `results` is a list of pairs `(size, flops)`, whole numbers from 0: the bytes of a result, and what it costs to compute it again. Each result is kept whole or not at all. There are at most 12.
# - `budget` is a whole number of bytes from 0. A result of 0 bytes always fits.
# - Return the FLOPs, not the results: two choices may be equally good. Leave `results` as it is.


# %% exercise="least_recomputation" points=3
def least_recomputation(results, budget):
    """The fewest FLOPs to be computed again when at most budget bytes of results are kept."""
    # BEGIN SOLUTION
    if not results:
        return 0
    (size, flops), rest = results[0], results[1:]
    fewest = flops + least_recomputation(rest, budget)  # this result is not kept
    if size <= budget:
        fewest = min(fewest, least_recomputation(rest, budget - size))
    return fewest
    # END SOLUTION


# %% check="least_recomputation"
check(least_recomputation)

# %% [markdown]
# `hint(least_recomputation)` helps on request.
#
# (For twelve results all choices can be tried, 4096.)
#
# ## What to keep
#
# - Recursion: halve the chain, checkpoint the first half, and again in each half. One boundary and a sixth more FLOPs for each level; memory grows with the logarithm of the depth.
# - A compiler can choose what is kept in a budget, a share of what it would keep by its own choice. In PyTorch 2.13 the knob is private or a prototype, and whole tensors are kept or dropped.
# - Which results to keep is a knapsack: the most FLOPs for a byte first is not always the best choice.
#
# From here go on where you left off: with [checkpointing with Accelerate](2_accelerator.ipynb), or, when this unit is done, with [Local SGD](../3_local_sgd/1_pytorch.ipynb).
