# %% [markdown]
# # Gradient checkpointing with Accelerate
#
# **You will be able to** add checkpointing to an accumulation loop, build it into a Transformer of your own, and find the weights that were never trained.
#
# **Minutes**: 75, with two places to stop · **Before this**: [Checkpointing in PyTorch](1_pytorch.ipynb) and [Gradient accumulation with Accelerate](../1_accumulation/2_accelerator.ipynb).

# %% [markdown]
# ## A question
#
# Accumulation left one micro-batch's activations in memory. Checkpointing takes most of those, too. In the loop that you know this is *one line*.
#
# Which line, and where does it go? And what do you do with a model that has no such line: one that you wrote yourself?

# %%
import warnings
from functools import partial

import pandas as pd
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from trainlean import (
    Meter,
    check,
    dataset,
    format_bytes,
    guess,
    hint,
    load_reviews,
    measure,
    plot_memory,
    recall,
    reveal,
    small_bert,
    small_bert_config,
    start_devices,
    stop_devices,
    summary,
    put_in_order,
)
from transformers import GPT2Config, GPT2LMHeadModel

# %%
recall("2_checkpointing/2_accelerator")

# %% [markdown]
# ## The line
#
# BERT in transformers carries a switch. Since version 5.23 it is called `activation_checkpointing_enable`; before, it was `gradient_checkpointing_enable`. Both mean the same, and the older name goes with version 6. The course runs with both:


# %%
def switch_on(model, settings=None, **more):
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    enable(settings, **more)


# %% [markdown]
# Here is the loop of the accumulation unit. The line is the one with the comment.


# %%
def train(model, optimizer, dataloader, accumulation_steps, checkpointing):
    if checkpointing:
        switch_on(model)  # before prepare
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown]
# Three runs, in the order of the published table: the whole batch at once, accumulated, accumulated and checkpointed. All take 2 steps with 16 reviews each, with SGD as in the accumulation unit.
#
# (`use_cache=False`: BERT's configuration asks for a cache that only text generation needs. Checkpointing would turn it off, with a warning.)

# %%
reviews = dataset(load_reviews()[:64], max_length=64)


def train_bert(micro_batch, checkpointing=False):
    model = small_bert(seed=0, use_cache=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    train(
        model,
        optimizer,
        DataLoader(torch.utils.data.Subset(reviews, range(32)), batch_size=micro_batch),
        16 // micro_batch,
        checkpointing,
    )


common = {"model": "small BERT", "sequence_length": 64}
vanilla = measure(
    lambda: train_bert(16), name="16 x 1", micro_batch=16, accumulation_steps=1, **common
)
accumulated = measure(
    lambda: train_bert(4), name="4 x 4", micro_batch=4, accumulation_steps=4, **common
)
print(
    "activations at the peak:",
    format_bytes(vanilla.peak["activations"]),
    "and",
    format_bytes(accumulated.peak["activations"]),
)

# %% [markdown]
# **Predict.** The model has 4 layers, and a checkpointed layer keeps only what goes into it. How many MiB of activations will be left at the peak with the line switched on?

# %%
# BEGIN SOLUTION
my_guess = 2.5
# END SOLUTION
guess("activations, accumulated and checkpointed", my_guess, "MiB")

# %%
checkpointed = measure(
    lambda: train_bert(4, checkpointing=True),
    name="4 x 4, checkpointed",
    micro_batch=4,
    accumulation_steps=4,
    checkpointing="every layer",
    **common,
)
print(
    "activations at the peak:",
    *(format_bytes(run.peak["activations"]) for run in (vanilla, accumulated, checkpointed)),
)
reveal(
    "activations, accumulated and checkpointed",
    round(checkpointed.peak["activations"] / 2**20, 1),
    "MiB",
)
plot_memory([vanilla, accumulated, checkpointed])

# %% [markdown]
# What is left is one layer that is being run again, and the inputs of the others.
#
# Look at the other colours, too. Between the last two rows weights and gradients have not changed by a byte. (SGD keeps no state.) Here checkpointing saves activations and nothing else. The price stands under GFLOP (*allocator MiB* is what PyTorch's allocator has handed out: it also counts what has none of the colours):

# %%
summary([vanilla, accumulated, checkpointed])

# %%
print(f"FLOPs with checkpointing: {checkpointed.flops / accumulated.flops:.3f} times as many")

# %% [markdown]
# Each layer runs forward twice and backward once. Here all weights train, so backward costs about two forwards, and three parts become four: a third more, not "twice as slow". (With most weights frozen, as with LoRA, backward costs about one forward, and two parts become three: half more.) PyTorch stops a recomputation as soon as it has what it needs, but in BERT that saves almost nothing: a layer ends with a LayerNorm, which needs the last product. The blocks further below end with a product, so stopping early spares that product.
#
# The seconds in the table may have grown by more than the FLOPs; the next lesson comes back to them.
#
# ### What it does not take: the head
#
# The switch checkpoints layers. What lies outside them stays. A language model's head gives a number for each token *of the vocabulary*, at each position: the *logits*. Here is a tiny GPT-2 of 8 layers, with a small and a large vocabulary:


# %%
def language_model_activations(vocabulary, checkpointing):
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            n_layer=8,
            n_embd=128,
            n_head=4,
            vocab_size=vocabulary,
            use_cache=False,
            bos_token_id=None,  # GPT-2's own number is beyond a small vocabulary
            eos_token_id=None,
        )
    )
    model.loss_type = "ForCausalLM"  # its usual loss, named here because GPT-2 names none
    if checkpointing:
        switch_on(model)
    tokens = torch.randint(vocabulary, (2, 128))
    with Meter(model) as meter:  # of a model that was there before the meter
        model(input_ids=tokens, labels=tokens).loss.backward()
    return max(sizes["activations"] for _, sizes in meter.timeline)


for vocabulary in (1_000, 32_000):
    off, on = (language_model_activations(vocabulary, checkpointing) for checkpointing in (0, 1))
    print(
        f"{vocabulary:6,} tokens in the vocabulary: most activations {format_bytes(off)} plain, "
        f"{format_bytes(on)} checkpointed"
    )

# %% [markdown]
# With the large vocabulary more than half stays: the peak has moved to the logits and the loss. There a smaller micro-batch helps, or a loss that is computed in pieces ([unit 5](../5_decoders/1_pytorch.ipynb) writes one); checkpointing more layers does not.
#
# ## Is it on?
#
# No error tells you that checkpointing is off. So look. A *forward pre-hook* is called whenever a module is entered. Put one on a module inside each layer, and count how often it is entered for one forward and one backward pass.

# %%
batch = next(iter(DataLoader(reviews, batch_size=4)))


def times_run(model):
    counts = [0] * len(model.bert.encoder.layer)

    def count(number):
        counts[number] += 1

    for number, layer in enumerate(model.bert.encoder.layer):
        layer.attention.register_forward_pre_hook(lambda *_, number=number: count(number))
    model(**batch).loss.backward()
    return counts


model = small_bert(seed=0, use_cache=False)
print("plain:                  ", times_run(model))
model = small_bert(seed=0, use_cache=False)
switch_on(model)
print("switched on:            ", times_run(model))
model = small_bert(seed=0, use_cache=False)
switch_on(model)
model.eval()
print("switched on, then eval: ", times_run(model))

# %% [markdown]
# Twice means: run again in the backward pass. The last line is a trap. Here a layer checkpoints only while it is in training mode. If you call `model.eval()` for an evaluation and forget `model.train()` afterwards, you have neither dropout nor checkpointing.
#
# Two rules for the counting: count *pre*-hooks, because a recomputation that stops early may not leave the layer's last modules. And count *inside* the layer: transformers 5.23 checkpoints a layer's `forward`, so a hook on the layer itself stays outside and sees one call.
#
# ### Exercise: add it to the loop
#
# *Difficulty* * · *6 minutes* · *Why*: two techniques in one loop, each in its place.
#
# Write `train_checkpointed(accelerator, model, optimizer, dataloader)`: one pass through the data loader, accumulated as the accelerator was told to, with **every** layer checkpointed.
#
# `model` is a classifier of transformers that returns its loss with `model(**batch).loss`, and has dropout. It comes in the mode in which the last evaluation left it, and must be trained in training mode. Nothing is prepared yet: the accelerator that is handed in prepares model, optimizer and data loader. Gradients and weights must be those of the plain accumulation loop, and each micro-batch goes backward before the next one goes forward. (The check runs on one device, where the switch works behind `prepare`, too.)


# %%
put_in_order("train_checkpointed")


# %% exercise="train_checkpointed" points=2
def train_checkpointed(accelerator, model, optimizer, dataloader):
    """Train once through the data loader with accumulation and checkpointing."""
    # BEGIN SOLUTION
    model.train()
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    # END SOLUTION


# %% check="train_checkpointed"
check(train_checkpointed)

# %% [markdown]
# Stuck? `hint(train_checkpointed)` tells a little more each time.
#
# **A good place to stop for today.** What follows is about models that have no switch.
#
# ## A model without a switch
#
# Now a Transformer that nobody prepared for you. A block adds attention and a small network to its input; a classifier is an embedding, some blocks and a head. How the blocks are run is left open: `run_blocks` is handed in.


# %%
class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, hidden, padding):
        normed = self.norms[0](hidden)
        hidden = (
            hidden
            + self.attention(normed, normed, normed, key_padding_mask=padding, need_weights=False)[
                0
            ]
        )
        return hidden + self.network(self.norms[1](hidden))


class Classifier(nn.Module):
    def __init__(self, run_blocks, width=64, blocks=4):
        super().__init__()
        self.run_blocks = run_blocks
        self.embedding = nn.Embedding(small_bert_config().vocab_size, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 2)

    def forward(self, input_ids, attention_mask, labels):
        hidden = self.run_blocks(self.blocks, self.embedding(input_ids), attention_mask == 0)
        return nn.functional.cross_entropy(self.head(hidden[:, 0]), labels)


# %% [markdown]
# The plain loop; each block in a checkpoint of its own; and one checkpoint around the whole loop.
# The second one is done from outside here, as in the previous lesson, by giving each block another `forward`. Below you will write it into the loop.


# %%
def run_plain(blocks, hidden, padding):
    for block in blocks:
        hidden = block(hidden, padding)
    return hidden


def checkpoint_each(model):
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def run_all_in_one(blocks, hidden, padding):
    return checkpoint(run_plain, blocks, hidden, padding, use_reentrant=False)


def backward_once(run_blocks, prepare=lambda model: None):
    torch.manual_seed(0)
    model = Classifier(run_blocks)
    prepare(model)
    with Meter(model) as meter:
        model(**batch).backward()
    return model, meter


def nothing(model):
    pass


for name, run_blocks, prepare in (
    ("plain", run_plain, nothing),
    ("each block", run_plain, checkpoint_each),
    ("all in one", run_all_in_one, nothing),
):
    meter = backward_once(run_blocks, prepare)[1]
    print(
        f"{name:10} activations {format_bytes(meter.peak['activations']):>10}   "
        f"{meter.flops / 1e6:6.1f} MFLOP"
    )

# %% [markdown]
# One checkpoint around everything pays for the recomputation and saves almost nothing: when the backward pass begins, it computes *all* blocks again, and all their activations are there at once.
#
# ### Exercise: checkpoint blocks of your own
#
# *Difficulty* ** · *8 minutes* · *Why*: a model of your own has no switch.
#
# Write `run_checkpointed(blocks, hidden, padding)`. It sends `hidden` (a float tensor `[batch, length, width]`) through all `blocks` in order, each with a checkpoint of its own, and returns the result. A block is called as `block(hidden, padding)`.
#
# Output and gradients must be those of the plain loop: with dropout in the blocks, when a block stands twice in the list, and when `hidden` comes from frozen embeddings and needs no gradient itself (then it gets none). The blocks stay as they are: called plainly afterwards, they run without a checkpoint.


# %% exercise="run_checkpointed" points=3
def run_checkpointed(blocks, hidden, padding):
    """The blocks one after the other, each in a checkpoint of its own."""
    # BEGIN SOLUTION
    for block in blocks:
        hidden = checkpoint(block, hidden, padding, use_reentrant=False)
    return hidden
    # END SOLUTION


# %% check="run_checkpointed"
check(run_checkpointed)

# %% [markdown]
# ### One line that is wrong
#
# `checkpoint` passes arguments on, so no lambda is needed. If you write one in this loop, you meet a trap that raises no error:


# %%
def run_with_lambda(blocks, hidden, padding):
    for block in blocks:
        hidden = checkpoint(lambda value: block(value, padding), hidden, use_reentrant=False)
    return hidden


def gradient_of(model, part):
    return torch.cat([parameter.grad.flatten() for parameter in part(model).parameters()])


right, wrong = backward_once(run_plain)[0], backward_once(run_with_lambda)[0]
for number in range(4):
    one, other = (
        gradient_of(right, lambda model: model.blocks[number]),
        gradient_of(wrong, lambda model: model.blocks[number]),
    )
    print(
        f"block {number + 1}: same gradient {torch.allclose(one, other, atol=1e-6)!s:5}  cosine "
        f"{torch.cosine_similarity(one, other, dim=0):.2f}"
    )

# %% [markdown]
# The lambda looks up `block` *when it is called*. The second call comes in the backward pass. By then the loop has ended, and `block` is the last block, for all of them. Only the last block is right.

# %% [markdown]
# ### Exercise: may this block run twice?
#
# *Difficulty* ** · *9 minutes* · *Why*: somebody else's block may change something each time it runs, and checkpointing runs it twice without a word.
#
# The previous lesson ended with two such blocks: batch norm, which counted every batch twice, and a block that looked at how often it had been called. Find them before they are checkpointed.
#
# Write `runs_twice_alike(block, *inputs)`. It runs the block twice on the inputs themselves (no copies), both times to its end, in the mode in which it is, with torch's random state set back before the second run, as `checkpoint` does. It returns True if the second run gives the same output as the first and leaves the block's buffers (all of them, whatever their type and size; one that has grown is not as it was) as the first run left them, else False. (Rounding may pass, a thousandth may not.) What the two runs change in the block may stay changed. No seed of your own stays behind: afterwards torch's random state is what it was before the call, or what a single run of the block leaves.


# %% exercise="runs_twice_alike" points=2
def runs_twice_alike(block, *inputs):
    """Whether a second run of the block gives and leaves what the first did."""
    # BEGIN SOLUTION
    state = torch.get_rng_state()
    first = block(*inputs)
    left = [buffer.clone() for buffer in block.buffers()]
    torch.set_rng_state(state)
    second = block(*inputs)
    return torch.equal(first, second) and all(
        torch.equal(one, other) for one, other in zip(left, block.buffers())
    )
    # END SOLUTION


# %% check="runs_twice_alike"
check(runs_twice_alike)

# %% [markdown]
# By default `torch.utils.checkpoint` itself notices only fewer tensors, or other shapes, types or devices. In your own training, call this function on a copy (`copy.deepcopy(block)`), because the test itself runs the block twice. It finds what differs between the first run and the second, not what changes later.
#
# ## Frozen embeddings and integer inputs
#
# A model may be adapted with a part frozen, the embedding for instance. Then nothing that goes into the first block needs a gradient. How do the two variants of `checkpoint` take that? The previous lesson showed the trap on one layer; here is the whole model.


# %%
def run_reentrant(blocks, hidden, padding):
    for block in blocks:
        hidden = checkpoint(block, hidden, padding, use_reentrant=True)
    return hidden


def freeze(model):
    model.embedding.requires_grad_(False)


def blocks_with_gradients(model):
    found = [
        str(number)
        for number, block in enumerate(model.blocks, 1)
        if all(p.grad is not None for p in block.parameters())
    ]
    return ", ".join(found) or "none"


rows = []
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    for way, run_blocks, before in (
        ("plain", run_plain, nothing),
        ("checkpointed", run_plain, checkpoint_each),
        ("reentrant", run_reentrant, nothing),
    ):
        for name, prepare in (("trains", nothing), ("frozen", freeze)):
            model = backward_once(run_blocks, lambda model: (before(model), prepare(model)))[0]
            rows.append((way, name, blocks_with_gradients(model)))
print("warned:", *sorted({str(warning.message) for warning in seen}))
pd.DataFrame(rows, columns=["blocks", "embedding", "blocks with gradients"])

# %% [markdown]
# Read the last row. With frozen embeddings and the reentrant variant **no block gets a gradient**. Nothing is raised; the line above the table is a warning. The head still trains, so the loss may still fall.
#
# The reentrant variant runs the block without recording, and asks only whether one of the *inputs* needs a gradient. It does not notice that the block's own weights do. Integers never need one. So the same happens to an embedding inside a checkpoint:

# %%
for reentrant in (False, True):
    embedding = nn.Embedding(10, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hidden = checkpoint(embedding, torch.tensor([1, 2, 3]), use_reentrant=reentrant)
    print(
        f"use_reentrant={reentrant!s:5}  the embedding's output can be trained through: "
        f"{hidden.requires_grad}"
    )

# %% [markdown]
# BERT in transformers is protected: its switch also lets the embedding's *output* require a gradient, which is enough for the reentrant variant here. The switch alone chooses `use_reentrant=False`. A dictionary of settings replaces that choice: write `use_reentrant` into it, or torch takes the reentrant variant. The second line below counts torch's warnings.

# %%
model = small_bert(seed=0, use_cache=False)
model.bert.embeddings.requires_grad_(False)
switch_on(model, {"use_reentrant": True})
model(**batch).loss.backward()
with_gradient = [
    number
    for number, layer in enumerate(model.bert.encoder.layer, 1)
    if all(p.grad is not None for p in layer.parameters())
]
print("frozen embeddings, reentrant, in transformers: layers with gradients", with_gradient)

model = small_bert(seed=0, use_cache=False)
switch_on(model, {"preserve_rng_state": True})
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    model(**batch)
missing = ["use_reentrant parameter should be passed" in str(one.message) for one in seen]
print("a dictionary without use_reentrant: warned", sum(missing), "times")

# %% [markdown]
# The protection has a price where only the head trains. Plainly the backward pass ends at the head, and the frozen layers keep nothing for it. (The activations of the first row are what a layer works with in the forward pass.) With the switch the embedding's output asks for a gradient that nobody uses, so all layers are run again and go backward:


# %%
def head_alone(*switches):
    """The meter of one forward and backward pass in which only the head trains."""
    model = small_bert(seed=0, use_cache=False)
    model.requires_grad_(False)
    model.classifier.requires_grad_(True)
    for switch in switches:
        switch(model)
    with Meter(model) as meter:
        model(**batch).loss.backward()
    return meter


alone = head_alone()
for name, meter in {
    "plain": alone,
    "switched on": head_alone(switch_on),
    "and without the request": head_alone(
        switch_on, lambda model: model.disable_input_require_grads()
    ),
}.items():
    most = max(sizes["activations"] for _, sizes in meter.timeline)
    print(
        f"{name:24} {meter.flops / alone.flops:.2f} times the FLOPs, most activations "
        f"{format_bytes(most)}"
    )

# %% [markdown]
# Checkpointing made it more expensive *and* larger. Where only the head trains, leave the switch off, or take the request back with `disable_input_require_grads()` after the switch; the non-reentrant variant does not need it.
#
# In your own model there is no such protection. So write `use_reentrant=False`: torch 2.13 takes the reentrant variant when you write nothing.
#
# ### Exercise: who does not train?
#
# *Difficulty* * · *4 minutes* · *Why*: this one-liner after the first backward pass would have found every block above that got no gradient. (A wrong gradient, as with the lambda, it does not see.)
#
# Write `untrained_parameters(model)`. It is called after a backward pass, and returns the list of names (as `named_parameters` gives them) of the parameters that should train but got no gradient. A gradient of zeros is a gradient. Where all train the list is empty. Leave the model as it is.


# %% exercise="untrained_parameters" points=1
def untrained_parameters(model):
    """Names of the parameters that require a gradient and have none."""
    # BEGIN SOLUTION
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    # END SOLUTION


# %% check="untrained_parameters"
check(untrained_parameters)

# %% [markdown]
# **A good place to stop for today.** What follows needs two devices.
#
# ## Two devices
#
# On two devices `prepare` wraps the model in `DistributedDataParallel`. The wrapper has no switch, which is why the line stands *before* `prepare`.
#
# Two questions: does checkpointing change what the devices send each other? And which combination of settings fails?

# %%
devices = start_devices(2)
devices.push(
    Classifier=Classifier,
    run_plain=run_plain,
    nothing=nothing,
    checkpoint_each=checkpoint_each,
    run_reentrant=run_reentrant,
    switch_on=switch_on,
    train=train,
)

# %%
# %%px
import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from trainlean import Meter, dataset, format_bytes, load_reviews, small_bert

data = dataset(load_reviews()[:32], max_length=64)


def train_here(checkpointing):
    model = small_bert(seed=0, num_hidden_layers=2, use_cache=False)
    with Meter() as meter:
        train(
            model,
            torch.optim.SGD(model.parameters(), lr=0.05),
            DataLoader(data, batch_size=4),
            2,
            checkpointing,
        )
    return meter, torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


plain, plain_weights = train_here(False)
lean, lean_weights = train_here(True)
for name, meter in (("plain", plain), ("checkpointed", lean)):
    print(
        f"{name:12}  {meter.optimizer_steps} steps  {meter.all_reduces} all-reduces  "
        f"{format_bytes(meter.bytes_sent)} sent"
    )
print(
    "fewer activations in the forward pass:",
    lean.moments["forward"]["activations"] < plain.moments["forward"]["activations"],
)
print("same weights to 1e-6:", bool((plain_weights - lean_weights).abs().max() < 1e-6))

# %% [markdown]
# Fewer activations, the same communication, the same weights. (Rank 0 sends more than rank 1 because it also hands out the starting weights; DDP sends gradients in groups, called *buckets*, so a step may take more than one all-reduce.)
#
# Now the combinations. `find_unused_parameters=True` lets DDP search the graph for parameters that take no part; so that there is one, the model below gets a spare layer that is never used, where a setting is on. `static_graph=True` tells DDP that every step looks the same. In the reentrant variant every block is recomputed and then has a backward pass of its own, *within* the model's.

# %%
# %%px
import warnings

from torch import nn

warnings.simplefilter("ignore")
mine = next(iter(DataLoader(data, batch_size=4)))


def attempt(run_blocks, prepare, **settings):
    torch.manual_seed(0)
    model = Classifier(run_blocks)
    prepare(model)
    if settings:
        model.spare = nn.Linear(2, 2)  # takes no part
    model = DistributedDataParallel(model, **settings)
    try:
        model(**mine).backward()
    except RuntimeError as error:
        return f"{type(error).__name__}: {str(error)[:52]}..."
    return "runs"


for settings in (
    {},
    {"find_unused_parameters": True},
    {"find_unused_parameters": True, "static_graph": True},
):
    for name, run_blocks, prepare in (
        ("non-reentrant", run_plain, checkpoint_each),
        ("reentrant", run_reentrant, nothing),
    ):
        print(f"{name:13} {settings}: {attempt(run_blocks, prepare, **settings)}")

# %% [markdown]
# One combination fails: reentrant *and* `find_unused_parameters=True`. DDP counts a parameter as ready twice. `static_graph=True` helps here, where nothing is accumulated; `use_reentrant=False` needs no help.

# %%
stop_devices()

# %% [markdown]
# ## The same weights
#
# The recipe of the accumulation unit: the small BERT, SGD with learning rate 0.05, the first 64 reviews in their order, micro-batches of 4, windows of 4, one epoch. Plain PyTorch, Accelerate, Accelerate with the line; and your own kind of model with and without checkpoints.


# %%
def pytorch_loop(model, optimizer, dataloader, accumulation_steps, checkpointing=False):
    for number, batch in enumerate(dataloader, start=1):
        (model(**batch).loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def end_weights(loop, checkpointing):
    model = small_bert(seed=0, use_cache=False)
    loop(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05),
        DataLoader(reviews, batch_size=4),
        4,
        checkpointing,
    )
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


start = torch.cat(
    [parameter.detach().flatten() for parameter in small_bert(seed=0).parameters()]
).double()
reference = end_weights(pytorch_loop, False)
for name, vector in {
    "PyTorch": reference,
    "Accelerate": end_weights(train, False),
    "Accelerate, checkpointed": end_weights(train, True),
}.items():
    same = bool((vector - reference).abs().max() < 1e-6)
    print(
        f"{name:25} norm {vector.norm():.4f}  moved by "
        f"{(vector - start).norm():.4f}  same to 1e-6: {same}"
    )

one, other = (
    gradient_of(backward_once(run_plain, prepare)[0], lambda model: model)
    for prepare in (nothing, checkpoint_each)
)
print(f"your own blocks: same gradient to 1e-6: {bool((one - other).abs().max() < 1e-6)}")

# %% [markdown]
# The fingerprint is the one from the accumulation unit. Here checkpointing changed *when* something is computed, not *what*.
#
# ## What to keep
#
# - `model.activation_checkpointing_enable()` before `prepare`; the loop stays as it is. Look whether it is on: an inner pre-hook counts two.
# - It saves the layers' activations only, for one more forward pass: a third more FLOPs where everything trains. `model.eval()` turns it off. Where only the head trains, leave it off.
# - Own models: `checkpoint(block, hidden, padding, use_reentrant=False)` for each block. No lambda over the loop's variable, no single checkpoint around everything.
# - The reentrant variant loses the gradients behind frozen or integer inputs with a warning and no error, and fails with DDP's `find_unused_parameters=True`.
# - After the first backward pass: which parameters have no gradient?
#
# Next: [Gradient checkpointing with the Trainer](3_trainer.ipynb), and the question whether all this makes training slower or faster.
