# %% [markdown]
# # Checkpointing in PyTorch
#
# **You will be able to** train with a fraction of the activations by computing them twice, write such a checkpoint yourself, and choose what is worth keeping.
#
# **Minutes**: 125, with three places to stop · **Before this**: [Gradient accumulation in PyTorch](../1_accumulation/1_pytorch.ipynb).

# %% [markdown]
# ## A question
#
# Accumulation made the micro-batch small. One sample is the smallest there is. What if the activations of one sample do not fit?
#
# A forward pass keeps what the backward pass will need. But all of it was computed from the input, and could be computed again.
# Can you throw it away, and how much extra work is that?
#
# This is called *gradient checkpointing* or *activation checkpointing*: the same thing by two names.

# %%
import warnings
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointError,
    CheckpointPolicy,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)
from torch.utils.checkpoint import (
    checkpoint as torch_checkpoint,
)  # the name `checkpoint` is left free: you will write your own
from trainlean import (
    Meter,
    batches,
    bert_large_config,
    check,
    format_bytes,
    guess,
    hint,
    load_reviews,
    measure,
    player,
    plot_segments,
    plot_timeline,
    predict_run,
    recall,
    record_lives,
    reveal,
    small_bert,
    summary,
)

reviews = load_reviews()

# %%
recall("2_checkpointing/1_pytorch")

# %% [markdown]
# ## A + B = C
#
# Three tensors: $A = \tanh(x)$, $B = \mathrm{sigmoid}(x)$, and their sum $C$. What does autograd keep?
# `saved_tensors_hooks` shows the tensors that operations put aside for the backward pass.

# %%
x = torch.linspace(-1, 1, 250_000, requires_grad=True)
kept = []
with torch.autograd.graph.saved_tensors_hooks(
    lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor
):
    a = torch.tanh(x)
    b = torch.sigmoid(x)
    c = a + b

for tensor in kept:
    name = "A" if torch.equal(tensor, a) else "B" if torch.equal(tensor, b) else "another"
    print(f"kept: {name}, {format_bytes(tensor.nbytes)}")

# %% [markdown]
# The slope of tanh can be computed from its result, $1 - A^2$, and that of sigmoid too, $B(1 - B)$. So both results are kept. The sum keeps nothing: its slope is 1.
#
# A and B stay in memory until `backward()`, although all you wanted was C. Now put the three lines into a function and let PyTorch *checkpoint* it.
# To see what is left between forward and backward, the meter watches the forward pass only, and you read the last entry of its timeline.


# %%
def add(x):
    a = torch.tanh(x)
    b = torch.sigmoid(x)
    return a + b


def kept_after(forward):
    """Bytes that are alive when the forward pass has ended.

    A meter's timeline is a list of pairs: a moment, and the bytes of each category then.
    """
    with Meter() as meter:
        loss = forward(torch.linspace(-1, 1, 250_000).requires_grad_()).sum()
    loss.backward()
    return sum(meter.timeline[-1][1].values())


print("plain:       ", format_bytes(kept_after(add)))
print(
    "checkpointed:",
    format_bytes(kept_after(lambda x: torch_checkpoint(add, x, use_reentrant=False))),
)

# %% [markdown]
# Plain: x, A and B. Checkpointed: x alone. (C is gone from both: its sum is all that was wanted of it.) Three words for what happens, which you need all through this lesson:
#
# - **kept**: x, the input of the function, and the function itself (and, for a reason that you will see, the state of torch's random numbers; it is not counted here);
# - **discarded**: A and B, when the function returns;
# - **recomputed**: A and B, from x, when the backward pass arrives at the function.
#
# `use_reentrant=False` chooses the newer of two implementations. Write it: in PyTorch 2.13, leaving it out gives a warning and the old one, whose trap you will see below.
#
# ## A chain of operations
#
# A network is a long chain. `record_lives` runs one and notes for each layer's output when it was computed and when it was gone from memory.
# Here are twelve layers, plainly. Go through it with the buttons: on the left what is alive now, on the right each output's life, below the bytes.


# %%
class Layer(nn.Module):
    """A linear layer and tanh. The input of the next layer is all that it keeps."""

    def __init__(self, width=64):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.tanh(self.linear(x))


torch.manual_seed(0)
twelve = nn.Sequential(*[Layer() for _ in range(12)])
eight_rows = torch.randn(8, 64)
plain_lives = record_lives(twelve, lambda: twelve(eight_rows).sum())
player(plain_lives)

# %% [markdown]
# Every output lives from the forward pass until its turn in the backward pass. Where forward ends and backward begins, all twelve are alive.
#
# Now cut the chain into three *segments* of four layers. The first two are checkpointed. The third one runs plainly, because its backward pass comes next anyway.
# At which event is output 1 discarded? Which output comes back first?

# %%
segment_lives = record_lives(
    twelve, lambda: checkpoint_sequential(twelve, 3, eight_rows, use_reentrant=False).sum()
)
player(segment_lives)

# %% [markdown]
# Filled: computed in the forward pass. Hatched: recomputed. The inner outputs of the first two segments are discarded as soon as the next layer has used them, and only the *boundaries*, where segments meet, stay.
# When the backward pass arrives at a segment, its outputs come back, are used, and are freed. The bytes go up and down like the teeth of a saw.
#
# Even a segment's last output comes back, although it was a boundary and has just been freed: a segment remembers only what goes *into* it, and the slope of its last tanh is computed from that layer's *output*.

# %%
for name, lives in {"plain": plain_lives, "three segments": segment_lives}.items():
    computed = sum(event.what == "computed" for event in lives.events)
    print(
        f"{name:15} outputs computed: {computed}   most bytes of outputs: "
        f"{format_bytes(max(lives.live_bytes))}"
    )

said = [segment_lives.say(event) for event in range(len(segment_lives.events))]
print("output 1 is discarded at event", said.index("output 1 is discarded") + 1)
print(
    "the first to come back:",
    next(
        f"event {number}, {words}"
        for number, words in enumerate(said, start=1)
        if "recomputed" in words
    ),
)

# %% [markdown]
# ## What it costs: forward units
#
# The meter counts the FLOPs of matrix products (and convolutions), nothing else. For the weight matrix of a linear layer plain training computes three products of the same size, each of which is one *forward unit*:
#
# - the forward pass,
# - the gradient of the input, which the layers before need,
# - the gradient of the weights.
#
# A second forward pass is a fourth unit. So where a layer has all three, checkpointing it costs 4/3 of plain training's FLOPs, unless PyTorch can leave something out.
#
# **Predict.** Eight blocks, each `Linear`, `tanh`, `Linear`, each checkpointed. Where plain training spends 3 forward units, how many does PyTorch really spend?

# %%
# BEGIN SOLUTION
my_guess = 4
# END SOLUTION
guess("forward units with checkpoints", my_guess, "units")


# %%
def forward_units(apply, blocks=8, width=32, rows=64):
    torch.manual_seed(0)
    net = [
        nn.Sequential(nn.Linear(width, 4 * width), nn.Tanh(), nn.Linear(4 * width, width))
        for _ in range(blocks)
    ]
    with Meter() as meter:
        x = torch.randn(rows, width, requires_grad=True)
        for block in net:
            x = apply(block, x)
        x.sum().backward()
    return meter.flops / (blocks * 2 * rows * 8 * width * width)


with_checkpoints = forward_units(partial(torch_checkpoint, use_reentrant=False))
print(f"plain:          {forward_units(lambda block, x: block(x)):.2f}")
print(f"checkpointed:   {with_checkpoints:.2f}")
reveal("forward units with checkpoints", round(with_checkpoints, 2), "units")

# %% [markdown]
# Half a unit is saved. The recomputation is for tensors that the backward pass needs. When the last of them is there, PyTorch stops: the second product of each block has a result that nobody asks for.
# `early_stop=False` switches this off, and the old implementation does not stop:

# %%
for name, settings in {
    "not stopped": {"use_reentrant": False, "early_stop": False},
    "reentrant": {"use_reentrant": True},
}.items():
    print(f"{name:15} {forward_units(partial(torch_checkpoint, **settings)):.2f}")

# %% [markdown]
# Remember this when you count recomputations with a *hook*, a function of yours that PyTorch calls before or after a module's forward pass. This block is left in the middle, so a hook *after* its forward pass does not fire the second time. A hook before it does.

# %%
for moment in ("before", "after"):
    block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    calls = []
    register = (
        block.register_forward_pre_hook if moment == "before" else block.register_forward_hook
    )
    register(lambda *_: calls.append(1))
    torch_checkpoint(block, torch.randn(4, 8), use_reentrant=False).sum().backward()
    print(f"calls of a hook {moment} the block: {len(calls)}")

# %% [markdown]
# ## On BERT
#
# BERT consists of equal layers, so each layer is made one segment. Nothing in the model needs to be rewritten: its layers get another `forward`.


# %%
def checkpoint_layers(model, **more):
    for layer in model.bert.encoder.layer:
        layer.forward = partial(torch_checkpoint, layer.forward, use_reentrant=False, **more)


def one_step(prepare, batch_size=16):
    model = small_bert(seed=0)
    prepare(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for batch in batches(
        reviews[: 2 * batch_size], batch_size, seed=0
    ):  # in the second step the optimizer state is there
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def most_activations(meter):
    """The most bytes of activations at one time, wherever the peak of everything lies."""
    return max(sizes["activations"] for _, sizes in meter.timeline)


with Meter() as plain:
    one_step(lambda model: None)
with Meter() as checkpointed:
    one_step(checkpoint_layers)
plot_timeline({"plain": plain, "checkpointed": checkpointed})

# %% [markdown]
# Compare the orange; both stand on one scale. (*F* is forward, *bwd* backward.) Each forward pass now leaves only a low slope of boundaries. Spikes in the forward pass are what a layer makes inside (its *interior*), discarded when the layer ends. The backward pass shows the saw: four teeth, one for each layer, which is computed again, used, and freed.

# %%
for category in plain.peak:
    print(
        f"{category:16} {format_bytes(plain.peak[category]):>10} plain "
        f"{format_bytes(checkpointed.peak[category]):>10} checkpointed"
    )
print(
    f"{'most activations':16} {format_bytes(most_activations(plain)):>10} plain "
    f"{format_bytes(most_activations(checkpointed)):>10} checkpointed"
)
print(f"FLOPs: {checkpointed.flops / plain.flops:.3f} times")

# %% [markdown]
# Weights and optimizer state are what they were. (The gradients' line is a matter of *when* the peak is: it may lie at another moment now.)
#
# The FLOPs are 4/3 of plain training's. A BERT layer ends in a layer normalisation, which needs the result of the last product, so stopping early saves none of them.
#
# ### Where weights are frozen
#
# Where a large model is adapted, most of its weights may be *frozen*; small additions or a few weights train.
# Here are four ways. The last one is LoRA: beside a frozen linear layer stands a product of two narrow ones, and only those train.


# %%
class LowRank(nn.Module):
    """A frozen linear layer plus a trained product of two narrow ones (LoRA)."""

    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


def train_all(model):
    pass


def freeze_embeddings(model):
    model.bert.embeddings.requires_grad_(False)


def train_head(model):
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)


def train_biases(model):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))


def train_lora(model):
    model.requires_grad_(False)
    for layer in model.bert.encoder.layer:
        attention = layer.attention.self
        attention.query, attention.value = LowRank(attention.query), LowRank(attention.value)


def adapted(prepare, checkpointing):
    """The meter of one forward and backward pass."""
    model = small_bert(seed=0)
    prepare(model)
    if checkpointing:
        checkpoint_layers(model)
    with Meter() as meter:
        model(**batches(reviews[:8], 8)[0]).loss.backward()
    return meter


# %% [markdown]
# **Predict.** Count the units. How many times the FLOPs of plain training does LoRA take when every layer is checkpointed?

# %%
# BEGIN SOLUTION
my_guess = 1.33
# END SOLUTION
guess("FLOPs of LoRA with checkpoints", my_guess, "times plain")

# %%
more_flops = {}
for prepare in (train_all, freeze_embeddings, train_head, train_biases, train_lora):
    off, on = adapted(prepare, False), adapted(prepare, True)
    more_flops[prepare.__name__] = on.flops / off.flops
    print(
        f"{prepare.__name__:18} plain {off.flops / 1e9:.2f} GFLOP, checkpointed "
        f"{more_flops[prepare.__name__]:.3f} times; most activations "
        f"{format_bytes(most_activations(off)):>8} and {format_bytes(most_activations(on)):>8}"
    )
reveal("FLOPs of LoRA with checkpoints", round(more_flops["train_lora"], 2), "times plain")

# %% [markdown]
# A frozen matrix has no gradient of the weights. Plain training is 2 units then, checkpointed training 3. **So checkpointing costs a third more where everything trains (3 units become 4), and about half more where most weights are frozen and the gradient still goes through all layers (2 become 3)**.
# Where the head alone trains, the backward pass ends there. The layers keep nothing for it and are not run again, so there is nothing to gain.
# (Products on data, or behind frozen embeddings, have no gradient of the input, so they too have 2 units plain: a factor a little above 4/3.)
#
# Is it the same training?


# %%
def bert_gradient(prepare, dropout=0.0):
    model = small_bert(seed=0, dropout=dropout)
    prepare(model)
    torch.manual_seed(1)  # for dropout
    model(**batches(reviews[:8], 8, seed=0)[0]).loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


for dropout in (0.0, 0.1):
    difference = (
        (bert_gradient(lambda model: None, dropout) - bert_gradient(checkpoint_layers, dropout))
        .abs()
        .max()
    )
    print(f"dropout {dropout}: gradients differ by less than 1e-6: {bool(difference < 1e-6)}")

# %% [markdown]
# The same, with dropout too: checkpointing is no approximation.
#
# ## Exercise: the bill
#
# *Difficulty* * · *8 minutes* · *Why*: the bill says of each entry whether checkpointing changes it.
#
# A model of `layers` equal layers was trained plainly; all its weights train. `plain` is a dictionary of what that took: bytes of "weights", "gradients", "optimizer state" and "activations" at the peak, "FLOPs" of one training step (forward and backward), and the "gradient norm".
# Of its activations, each layer's input takes `boundary` bytes. The rest, what a layer makes inside, is its *interior*; all layers' interiors are alike.
# Checkpointed, every boundary stays, and one interior at a time comes back: the teeth of the saw.
#
# Write `checkpointed_bill(plain, layers, boundary)`: a new dictionary with the same keys, for training with every layer checkpointed; `plain` stays as it is. For the activations give the peak; for the FLOPs assume that no recomputation is stopped early, and that a backward pass is two forward passes.


# %% exercise="checkpointed_bill" points=1
def checkpointed_bill(plain, layers, boundary):
    """What training with every layer checkpointed takes, from what plain training took."""
    # BEGIN SOLUTION
    interior = plain["activations"] / layers - boundary
    return {**plain, "activations": layers * boundary + interior, "FLOPs": plain["FLOPs"] * 4 / 3}
    # END SOLUTION


# %% check="checkpointed_bill"
check(checkpointed_bill)

# %% [markdown]
# ## And the time?
#
# FLOPs are a count. Time is something else: the seconds may grow by more or by less than the FLOPs. Here are both for your machine.

# %%
PREPARE = {"off": lambda model: None, "every layer": checkpoint_layers}


def train_bert(micro_batch, accumulation_steps, checkpointing, samples=64):
    model = small_bert(seed=0)
    PREPARE[checkpointing](model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for number, batch in enumerate(batches(reviews[:samples], micro_batch, seed=0), start=1):
        (model(**batch).loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def measure_bert(micro_batch, accumulation_steps=1, checkpointing="off"):
    samples = max(64, micro_batch * accumulation_steps)
    return measure(
        lambda: train_bert(micro_batch, accumulation_steps, checkpointing, samples),
        name=f"{micro_batch} x {accumulation_steps}, {checkpointing}",
        samples=samples,
        model="small BERT, checkpointed",
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
        checkpointing=checkpointing,
        sequence_length=64,
    )


runs = [measure_bert(32, 1, "off"), measure_bert(32, 1, "every layer")]
summary(runs)

# %% [markdown]
# The time changes from machine to machine, and the course does not grade it.
# [Checkpointing with the Trainer](3_trainer.ipynb) takes it apart, and asks when checkpointing makes training faster.
#
# **A good place to stop for today.**
#
# ## Write your own
#
# A checkpoint needs three things from autograd: that a function runs without recording, that something is remembered, and that you say how the backward pass goes.
# `torch.autograd.Function` is made for that. For a function of one tensor without weights it is short:


# %%
class RecomputeOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function, x):  # autograd records nothing in here
        ctx.function = function
        ctx.save_for_backward(x)
        return function(x)

    @staticmethod
    def backward(ctx, gradient):  # the gradient of what forward returned
        (x,) = ctx.saved_tensors
        x = x.detach().requires_grad_()  # a new beginning: the graph is built from here on
        with torch.enable_grad():  # in here recording is off, too, unless switched on
            output = ctx.function(x)
        (gradient_of_x,) = torch.autograd.grad(output, x, gradient)
        return None, gradient_of_x  # one for each argument of forward: a function has no gradient


x = torch.linspace(-1, 1, 5, requires_grad=True)
(by_hand,) = torch.autograd.grad(RecomputeOne.apply(add, x).sum(), x)
(plainly,) = torch.autograd.grad(add(x).sum(), x)
print(
    "the same gradient:",
    torch.equal(by_hand, plainly),
    "  kept:",
    format_bytes(kept_after(lambda x: RecomputeOne.apply(add, x))),
)

# %% [markdown]
# For a block of a network two things are missing. Neither raises an error, and both can be seen with PyTorch's own checkpoint when it is told to do without them.
#
# **First: weights.** The old implementation, `use_reentrant=True`, hands only the block's *inputs* to such a function. The input of a first block is data and requires no gradient. So autograd believes that there is nothing to do:


# %%
def first_block_gradient(reentrant):
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    hidden = torch_checkpoint(first, torch.randn(8, 4), use_reentrant=reentrant)
    second(hidden).sum().backward()
    return [None if layer.weight.grad is None else "there" for layer in (first, second)]


with warnings.catch_warnings(record=True) as seen_warnings:
    warnings.simplefilter("always")
    print("reentrant:    ", first_block_gradient(True))
print("non-reentrant:", first_block_gradient(False))
print("the reentrant one warns:", seen_warnings[0].message)

# %% [markdown]
# The first block is not trained, and a warning is all that says so. The same happens with frozen embeddings in front.
# In a function of your own there is a cure: hand the weights to `apply` as well.
#
# **Second: random numbers.** Dropout draws a mask. A second forward pass draws *another* mask, unless the random state is set back to what it was:


# %%
def dropout_gradient(apply):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(0.5), nn.Linear(64, 1))
    apply(block, torch.randn(32, 16)).sum().backward()
    return block[0].weight.grad.flatten()


right = dropout_gradient(lambda block, x: block(x))
for preserve in (True, False):
    found = dropout_gradient(
        partial(torch_checkpoint, use_reentrant=False, preserve_rng_state=preserve)
    )
    print(
        f"preserve_rng_state={preserve!s:5}: the right gradient: "
        f"{torch.allclose(found, right, atol=1e-5)}"
    )

# %% [markdown]
# No error, no warning: the loss belongs to one mask and its gradient to another.
#
# ## Exercise: checkpoint
#
# *Difficulty* *** · *20 minutes* · *Why*: you will know what your training does twice, and what breaks if that is not the same twice.
#
# Write `checkpoint(block, *inputs)` with an autograd function of your own, without calling PyTorch's.
#
# - `block` is an `nn.Module` that returns one tensor; `inputs` are tensors. `checkpoint` returns `block(*inputs)`.
# - Between forward and backward only the inputs are kept, themselves and not as copies (and the block, whose weights are there anyway, and the random state). The block runs twice.
# - Inputs *and* weights get the gradients of plain training, with dropout too. Some inputs and weights require none (data, whole numbers, frozen layers), and the backward pass must not stumble over them.
# - After the backward pass the random state is as if nothing had been recomputed. (Here, that of the processor's generator. Autocast is left out.)
#
# `torch.get_rng_state()`, `torch.set_rng_state(state)` and `torch.random.fork_rng(devices=[])` (which puts the state back at the end of its `with`; `devices=[]` leaves graphics cards alone) are useful.
# A block may stand twice in a model, stays in its mode, and keeps its weights. Some of its weights may take no part: they get no gradient, as in plain training. `torch.autograd.grad(..., allow_unused=True)` returns None for them, and without it raises.


# %% exercise="checkpoint" points=4
class Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, block, count, *tensors):
        """Run the block; the first `count` tensors are its inputs, the others its weights."""
        # BEGIN SOLUTION
        ctx.block, ctx.random_state = block, torch.get_rng_state()
        ctx.save_for_backward(*tensors[:count])
        return block(*tensors[:count])
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        """Run the block again, recorded; a gradient (or None) for every argument of forward."""
        # BEGIN SOLUTION
        inputs = [
            tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors
        ]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.random_state)
            output = ctx.block(*inputs)
        tensors = [*inputs, *ctx.block.parameters()]
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        found = iter(torch.autograd.grad(output, wanted, gradient, allow_unused=True))
        return None, None, *(next(found) if tensor.requires_grad else None for tensor in tensors)
        # END SOLUTION


def checkpoint(block, *inputs):
    """block(*inputs), of which only the inputs are kept; backward computes the rest again."""
    # BEGIN SOLUTION
    return Recompute.apply(block, len(inputs), *inputs, *block.parameters())
    # END SOLUTION


# %% check="checkpoint"
check(checkpoint)

# %% [markdown]
# `hint(checkpoint)` helps, a little more with each call.
#
# **A good place to stop for today.** What follows asks how many segments are best, and which results to keep.
#
# ## How many segments
#
# Back to the chain, sixteen layers of it. One segment, sixteen, or a number between? Let $n$ be the number of layers and $k$ the number of segments. A *boundary* is the bytes of a segment's input, which it keeps. *Kept* is what one plain layer keeps: its interior and one boundary.
# At the fullest moment there are
#
# $$\text{work} + (k - 1) \cdot \text{boundary} + \left\lceil \frac{n}{k} \right\rceil \cdot \text{kept}$$
#
# bytes of activations: the boundaries, all of one segment (the longest), and `work`, a few tensors of the running operation. More segments mean more of the second term and less of the third.
#
# `Layer` is cheap in this sense: it has no interior, so it keeps one boundary. `Wide` is four times as wide inside, so it keeps five times what it passes on. `WORK` is 2 boundaries for the one and 4 for the other.
#


# %%
class Wide(nn.Module):
    """Two linear layers, four times as wide between them."""

    def __init__(self, width=64):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return torch.tanh(self.down(torch.tanh(self.up(x))))


def chain(kind, run, number=16):
    torch.manual_seed(0)
    layers = nn.Sequential(*[kind() for _ in range(number)])
    with Meter() as meter:
        run(layers, torch.randn(240, 64)).sum().backward()
    return meter


BOUNDARY = 240 * 64 * 4
KEPT = {Layer: BOUNDARY, Wide: 5 * BOUNDARY}
WORK = {Layer: 2 * BOUNDARY, Wide: 4 * BOUNDARY}
SEGMENTS = (1, 2, 4, 8, 16)

curves = {}
for kind in (Layer, Wide):
    for segments in SEGMENTS:
        meter = chain(
            kind, lambda layers, x: checkpoint_sequential(layers, segments, x, use_reentrant=False)
        )
        formula = WORK[kind] + (segments - 1) * BOUNDARY + 16 // segments * KEPT[kind]
        curves[kind, segments] = most_activations(meter), formula, meter.flops
        print(
            f"{kind.__name__:5} {segments:2} segments: {most_activations(meter) // 1024:5} KiB, "
            f"formula {formula // 1024:5} KiB, {meter.flops / 1e6:6.1f} MFLOP"
        )
print(
    "measured and formula agree to the byte:",
    all(most == formula for most, formula, _ in curves.values()),
)

# %% [markdown]
# As curves, with the FLOPs below:

# %%
plot_segments(
    {
        kind.__name__: {k: (curves[kind, k][0], curves[kind, k][2]) for k in SEGMENTS}
        for kind in (Layer, Wide)
    },
    layers=16,
    boundary=BOUNDARY,
    kept={kind.__name__: size for kind, size in KEPT.items()},
    work={kind.__name__: size for kind, size in WORK.items()},
)

# %% [markdown]
# Four things to see.
#
# - **Both extremes are useless for cheap layers.** One segment checkpoints nothing: `checkpoint_sequential` runs the last segment plainly, and here that is all. Sixteen keep sixteen boundaries, which is what the layers would have kept, and compute nearly everything twice.
# - **Between lies the square root.** The sum is smallest near $k = \sqrt{n \cdot \text{kept} / \text{boundary}}$ (the dotted line). Where a layer keeps no more than one boundary, that is $\sqrt{n}$, here 4.
# - **The more a layer keeps, the more segments.** When the dotted line lies beyond $n$, the sum is smallest with every layer a segment of its own.
# - **Fewer segments, fewer FLOPs**, for these five numbers of segments: the last segment is not computed twice, and the fewer equal segments there are, the longer it is.
#
# One checkpoint around the whole chain needs as much memory as none, and computes everything twice:

# %%
meter = chain(Layer, lambda layers, x: torch_checkpoint(layers, x, use_reentrant=False))
print(
    f"one checkpoint around everything: {most_activations(meter) // 1024} KiB, "
    f"{meter.flops / 1e6:.1f} MFLOP"
)

# %% [markdown]
# Where does a Transformer lie? Take what one layer keeps, measured on the small BERT as the difference between four layers and three, and predicted for BERT-large with fake tensors: all activations divided by its 24 layers. It depends on the attention: *eager*, the course's setting, keeps the scores of all pairs of tokens; *sdpa* does not where it runs as one fused operation, as in this prediction for a graphics card.
# A boundary is one number for each sample, position and unit of the width.


# %%
def kept_by(layers):
    with Meter() as meter:
        loss = small_bert(seed=0, num_hidden_layers=layers)(**batches(reviews[:16], 16)[0]).loss
    loss.backward()
    return meter.timeline[-1][1]["activations"]


def predicted_ratio(**settings):
    """What one layer of BERT-large keeps, in boundaries."""
    run = predict_run(bert_large_config(), micro_batch=4, **settings)
    return run.peak["activations"] / 24 / (4 * 512 * 1024 * 4)


eager = predicted_ratio(device="gpu")
fused = predicted_ratio(device="gpu", attention="sdpa")
for name, layers, ratio in (
    ("small BERT, eager", 4, (kept_by(4) - kept_by(3)) / (16 * 64 * 128 * 4)),
    ("BERT-large, eager", 24, eager),
    ("BERT-large, sdpa", 24, fused),
):
    print(
        f"{name}: {layers} layers, each keeps {ratio:4.1f} boundaries; square root rule: "
        f"{(layers * ratio) ** 0.5:4.1f} segments"
    )

# %% [markdown]
# With eager attention the rule asks here for more segments than there are layers, so every layer is a segment of its own.
# With fused attention a layer keeps fewer boundaries, and the rule asks for fewer segments than there are layers. But segments hold whole layers, and the next choice is two layers to each. That saves $n/2$ boundaries of $n$ and adds what one layer keeps: it pays where $n$ is more than twice the boundaries that a layer keeps. Here is the formula for deeper models, each layer a segment against the best number of segments:

# %%
for name, ratio in {"eager": eager, "sdpa": fused}.items():
    for layers in (24, 48, 80):
        needs = {k: (k - 1) + -(-layers // k) * ratio for k in range(1, layers + 1)}
        best = min(needs, key=needs.get)
        print(
            f"{name:5} {layers} layers: {needs[layers]:5.1f} boundaries with every layer a "
            f"segment, {needs[best]:5.1f} with {best} segments: "
            f"{needs[layers] / needs[best] - 1:+.0%}"
        )

# %% [markdown]
# With 48 layers and fused attention, two layers to a segment need less memory. With eager attention that begins here with the deeper model, and brings less.
#
# `checkpoint_sequential` was good enough for these curves. In PyTorch 2.13 it has two surprises. It puts the whole remainder into its last segment. Here are 16 layers in 6 segments; the last segment is the one whose layers run once: six, where 4 segments would leave four. So here more segments are fewer FLOPs, and the formula for the bytes does not hold.
# And where a layer occurs twice in an `nn.Sequential` (shared weights), it is left out the second time:

# %%
layers, runs_of = nn.Sequential(*[Layer(4) for _ in range(16)]), [0] * 16
for number, layer in enumerate(layers):
    layer.register_forward_pre_hook(
        lambda *_, number=number: runs_of.__setitem__(number, runs_of[number] + 1)
    )
checkpoint_sequential(layers, 6, torch.randn(2, 4), use_reentrant=False).sum().backward()
print("how often each layer ran:", *runs_of)

shared = Layer(4)
twice = nn.Sequential(shared, shared)
x = torch.randn(2, 4)
print(
    "as an nn.Sequential:",
    torch.equal(checkpoint_sequential(twice, 1, x, use_reentrant=False), twice(x)),
)
print(
    "as a list:          ",
    torch.equal(checkpoint_sequential(list(twice), 1, x, use_reentrant=False), twice(x)),
)

# %% [markdown]
# ## Exercise: run in segments
#
# *Difficulty* ** · *8 minutes* · *Why*: the ready function divides badly and can leave layers out; yours will not.
#
# Write `run_in_segments(layers, x, segments)`. `layers` is a list of modules, each taking the output of the one before; return what the last one gives. The list stays as it is, and a layer may stand in it more than once.
#
# - Segment $i$, from 0, holds the layers from `len(layers) * i // segments` up to, not including, `len(layers) * (i + 1) // segments`.
# - All segments but the last are checkpointed; the last runs plainly.
# - Use `torch_checkpoint`, or your own. All gradients are those of plain training, with dropout too, also where `x` requires none.


# %% exercise="run_in_segments" points=3
def run_in_segments(layers, x, segments):
    """The layers' output, run one after the other; all segments but the last are checkpointed."""
    # BEGIN SOLUTION
    cuts = [len(layers) * i // segments for i in range(segments + 1)]
    for start, end in zip(cuts[:-2], cuts[1:-1]):
        x = torch_checkpoint(nn.Sequential(*layers[start:end]), x, use_reentrant=False)
    return nn.Sequential(*layers[cuts[-2] :])(x)
    # END SOLUTION


# %% check="run_in_segments"
check(run_in_segments)

# %% [markdown]
# ## Exercise: segments for a budget
#
# *Difficulty* ** · *7 minutes* · *Why*: memory is there to be used. What fits anyway should not be computed twice.
#
# Write `choose_segments(layers, boundary, kept, work, budget)`: the number of segments, from 1 to `layers` (the number of layers), for which the activations are at most `budget` bytes *and* the FLOPs are the fewest. None if no number fits.
#
# - The bytes follow the formula above; `work` is what the running operation works with, in bytes. Two numbers of segments with equally many FLOPs are equally right. The segments are cut as in `run_in_segments`, and the last one, which is among the longest, is not computed twice. The layers end in a tanh, so no segment is stopped early.
# - With few layers the check trains with your number of segments and measures bytes over the budget and FLOPs; with many it counts them.


# %% exercise="choose_segments" points=3
def choose_segments(layers, boundary, kept, work, budget):
    """The number of segments with the fewest FLOPs that fits into budget bytes, or None."""
    # BEGIN SOLUTION
    for segments in range(1, layers + 1):  # fewer segments recompute fewer layers
        longest = -(-layers // segments)
        if work + (segments - 1) * boundary + longest * kept <= budget:
            return segments
    return None
    # END SOLUTION


# %% check="choose_segments"
check(choose_segments)

# %% [markdown]
# **A good place to stop for today.**
#
# ## Keep B, because it is expensive
#
# So far a segment kept nothing but its input. In $A + B = C$, suppose that A is cheap to compute and B expensive. Then discard A and *keep B*. That is **selective checkpointing**: a *policy* is asked for each operation in the segment whether its result shall be saved. (An answer with `PREFER_`, unlike one with `MUST_`, may be overruled by `torch.compile`.)


# %%
def expensive_and_cheap(x, weight):
    a = torch.tanh(x)
    b = x @ weight  # a product: many FLOPs for its bytes
    return torch.tanh(a + b)


def keep_products(ctx, op, *args, **kwargs):
    return (
        CheckpointPolicy.MUST_SAVE
        if op is torch.ops.aten.mm.default
        else CheckpointPolicy.PREFER_RECOMPUTE
    )


def cost(**more):
    torch.manual_seed(0)
    with Meter() as meter:
        x, weight = (
            torch.randn(256, 256, requires_grad=True),
            torch.randn(256, 256, requires_grad=True),
        )
        torch_checkpoint(
            expensive_and_cheap, x, weight, use_reentrant=False, **more
        ).sum().backward()
    return meter.flops / (2 * 256**3)


selective = {"context_fn": partial(create_selective_checkpoint_contexts, keep_products)}
print(
    f"products computed: {cost():.0f} with everything recomputed, "
    f"{cost(**selective):.0f} with B kept"
)

# %% [markdown]
# Two products are the backward pass, one is the forward pass; the one that is spared is the recomputation of B.
#
# The policy does not see your Python lines but PyTorch's basic operations (`torch.ops.aten`). Which ones go through a layer of BERT?

# %%
seen = {}


def spy(ctx, op, *args, **kwargs):
    seen[str(op)] = seen.get(str(op), 0) + (not ctx.is_recompute)
    return CheckpointPolicy.PREFER_RECOMPUTE


model = small_bert(seed=0, num_hidden_layers=1)
checkpoint_layers(model, context_fn=partial(create_selective_checkpoint_contexts, spy))
model(**batches(reviews[:4], 4)[0]).loss.backward()
print(
    {
        name: count
        for name, count in sorted(seen.items())
        if any(word in name for word in ("mm", "softmax", "gelu", "norm"))
    }
)

# %% [markdown]
# `addmm` is a linear layer with a bias (`mm` would be one without). `bmm` are the two products in this attention, which multiply activations with each other. Which of them is worth keeping? Measure policies on BERT.

# %%
aten = torch.ops.aten


def saving(*ops):
    def policy(ctx, op, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if op in ops else CheckpointPolicy.PREFER_RECOMPUTE

    return partial(
        checkpoint_layers, context_fn=partial(create_selective_checkpoint_contexts, policy)
    )


policies = {
    "no checkpoint": lambda model: None,
    "save nothing": checkpoint_layers,
    "save bmm": saving(aten.bmm.default),
    "save addmm": saving(aten.addmm.default),
    "save addmm and bmm": saving(aten.addmm.default, aten.bmm.default),
    "save everything": partial(
        checkpoint_layers,
        context_fn=partial(
            create_selective_checkpoint_contexts,
            lambda ctx, op, *args, **kwargs: CheckpointPolicy.MUST_SAVE,
        ),
    ),
}
measured = {}
for name, prepare in policies.items():
    with Meter() as meter:
        one_step(prepare)
    measured[name] = most_activations(meter), meter.flops
    print(
        f"{name:20} most activations {format_bytes(measured[name][0]):>9}   FLOPs "
        f"{meter.flops / plain.flops:.3f} times plain"
    )
least, most_flops = measured["save nothing"]
for name in ("save bmm", "save addmm"):
    size, flops = measured[name]
    spared = (most_flops - flops) / 2 / (size - least)  # one_step trains two steps
    print(f"{name:10} spares {spared:3.0f} FLOPs of a step for a byte more in memory")

# %% [markdown]
# - *Save nothing* is the checkpointing from above: leanest, and most FLOPs.
# - *Save addmm* has nearly the FLOPs of plain training. What it recomputes is cheap: norms, gelu, softmax, and attention's two products, which at this length are few FLOPs.
# - *Save bmm* keeps the scores, and gets few FLOPs back for a byte.
# - *Save everything* is no way back to plain training. It keeps results that plain training discards.
#
# So "selective" names a whole family. Look at bytes *and* FLOPs: a policy that recognises no operation is just full checkpointing, and nothing tells you.
#
# ## Exercise: a selective policy
#
# *Difficulty* ** · *6 minutes* · *Why*: *save addmm* had nearly the FLOPs of plain training, with less memory.
#
# Write the policy `save_linear(ctx, op, *args, **kwargs)`. It returns a `CheckpointPolicy`: save the results of linear layers, with and without a bias, and recompute everything else, attention's products included.
# The check runs a small Transformer with it, and measures FLOPs and the bytes kept.


# %% exercise="save_linear" points=2
def save_linear(ctx, op, *args, **kwargs):
    """Save what linear layers compute; recompute the rest."""
    # BEGIN SOLUTION
    if op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
    # END SOLUTION


# %% check="save_linear"
check(save_linear)

# %% [markdown]
# ## What must be the same twice
#
# Checkpointing runs your code a second time, up to the last tensor that the backward pass needs. Whatever that code *changes* up to there happens twice, and whatever it *looks at* may have changed.

# %%
block = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU())
torch_checkpoint(block, torch.randn(16, 4), use_reentrant=False).sum().backward()
print("batch norm counted batches:", block[1].num_batches_tracked.item(), "for one batch")


class Fading(nn.Module):
    """Weaker with each call: its forward pass depends on how often it has run."""

    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return torch.tanh(self.linear(x) / self.calls)


def fading_gradient(apply):
    torch.manual_seed(0)
    block = Fading()
    apply(block, torch.randn(16, 4)).sum().backward()
    return block.linear.weight.grad


found = fading_gradient(partial(torch_checkpoint, use_reentrant=False))
print(
    "a block that counts its calls has the right gradient:",
    torch.allclose(found, fading_gradient(lambda block, x: block(x))),
)

# %% [markdown]
# Neither raised anything. PyTorch compares shape, type and device of the recomputed tensors, not their values.
#
# And "random numbers are kept for you" means *torch's* random numbers. A block that draws its mask with numpy draws another one the second time:


# %%
class NumpyDropout(nn.Module):
    def forward(self, x):
        mask = np.random.rand(*x.shape) < 0.5
        return x * torch.from_numpy(mask)


def numpy_gradient(apply):
    torch.manual_seed(0)
    np.random.seed(0)
    block = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), NumpyDropout(), nn.Linear(64, 1))
    apply(block, torch.randn(32, 16)).sum().backward()
    return block[0].weight.grad


found = numpy_gradient(partial(torch_checkpoint, use_reentrant=False))
print(
    "with a mask of numpy, the right gradient:",
    torch.allclose(found, numpy_gradient(lambda block, x: block(x)), atol=1e-5),
)

# %% [markdown]
# ### Reading a `CheckpointError`
#
# Where shape, type or device of a saved tensor differ, or fewer tensors are saved the second time, PyTorch does raise. One reason is a cache: the block writes to it in the forward pass, and finds it filled when it runs again. Here attention keeps its keys, as a language model does to generate text:


# %%
class RemembersKeys(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.keys = nn.Linear(4, 4), torch.empty(0, 4)

    def forward(self, x):
        self.keys = torch.cat([self.keys, x.detach()])
        return torch.softmax(self.linear(x) @ self.keys.T, dim=1) @ self.keys


try:
    torch_checkpoint(RemembersKeys(), torch.randn(3, 4), use_reentrant=False).sum().backward()
except CheckpointError as error:
    print(*str(error).splitlines()[:4], sep="\n")

# %% [markdown]
# Read the two shapes: what was 3 became 6, since the keys of the second run were put behind those of the first.
#
# `determinism_check="none"` leaves out the comparison, not the fault. The same block, a little further:

# %%
try:
    torch_checkpoint(
        RemembersKeys(), torch.randn(3, 4), use_reentrant=False, determinism_check="none"
    ).sum().backward()
except RuntimeError as error:
    print(error)

# %% [markdown]
# Two things look like checkpointing and are not. `torch.no_grad()` and `.detach()` save memory too: by not training what comes before.

# %%
torch.manual_seed(0)
first, last = Layer(4), Layer(4)
with torch.no_grad():
    hidden = first(torch.randn(8, 4))
last(hidden).sum().backward()
print("gradient of the first layer:", first.linear.weight.grad)

# %% [markdown]
# ## What to keep
#
# - Keep the inputs of a segment, discard what is inside, compute it again in the backward pass: the same gradients for one more forward pass. That is a third of the FLOPs of plain training where everything trains, about half where most weights are frozen and the gradient still goes through all layers.
# - Only activations shrink. The peak is the boundaries plus one segment.
# - Layers that keep one boundary: about $\sqrt n$ segments. Where each keeps many, as in BERT: every layer, or two layers to a segment as soon as there are more than twice as many layers as boundaries that one layer keeps. One around everything saves nothing.
# - Selective: keep what is expensive to compute and small to store. Look at bytes and FLOPs, since a policy that matches nothing is silent.
# - What runs twice must be the same twice: torch's random state (kept for you), numpy's, counters and batch norm (not). Write `use_reentrant=False`.
#
# Next: [Checkpointing with Accelerate](2_accelerator.ipynb), one line in the accumulation loop.
#
# Optional, at any time: [recursion and budgets](4_budgets.ipynb), where memory grows with the logarithm of the depth, and a compiler chooses what is kept.
