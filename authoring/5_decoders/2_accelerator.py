# %% [markdown]
# # Decoders with Accelerate
#
# **You will be able to** give every token the same weight over windows *and* devices, say what an adapter saves and what it leaves, and find and cure an adapter that learns nothing.
#
# **Minutes**: 65, with a place to stop · **Before this**: [Decoders in PyTorch](1_pytorch.ipynb) and [Accumulation: Accelerator](../1_accumulation/2_accelerator.ipynb).

# %% [markdown]
# ## A question
#
# Two devices, each with a window of two micro-batches, and every text has another length. The step shall be that of one large batch: the mean over *all* tokens.
#
# By what does a device divide, when it has never seen the other's texts? And how often do they have to talk for it?

# %%
import warnings
from functools import partial

import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import AutocastKwargs, FullyShardedDataParallelPlugin
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.utils.checkpoint import checkpoint
from trainlean import (
    Meter,
    batches,
    check,
    explorer,
    format_bytes,
    guess,
    hint,
    load_reviews,
    measure,
    model_config,
    plot_memory,
    predict_run,
    recall,
    reveal,
    small_decoder,
    put_in_order,
)

# peft 0.21 asks transformers for a name that will go with version 6.
warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)

# %%
recall("5_decoders/2_accelerator")

# %% [markdown]
# ## Tokens of two devices
#
# The reviews as texts of their own length, padded at the end. Padding is no target (its label is -100), and it needs no mask: in this decoder no token looks at those behind it.


# %%
def text_batches(reviews, size, max_length=64):
    """Micro-batches of input_ids and labels, each cut to its longest text."""
    for batch in batches(reviews, size, max_length=max_length, shuffle=False):
        ids, mask = batch["input_ids"], batch["attention_mask"]
        longest = mask.sum(1).max()
        labels = ids.masked_fill(mask == 0, -100)
        yield {"input_ids": ids[:, :longest], "labels": labels[:, :longest]}


micro_batches = list(text_batches(load_reviews()[:8], 2))
ranks = [micro_batches[0::2], micro_batches[1::2]]  # each device gets every second one


def targets_in(batch):
    return batch["labels"][:, 1:].ne(-100).sum().item()


for rank, window in enumerate(ranks):
    print(f"device {rank}: targets in its micro-batches {[targets_in(batch) for batch in window]}")

# %% [markdown]
# What a device contributes is a sum over its micro-batches, each divided by something. What DDP does with the contributions is known from [accumulation](../1_accumulation/2_accelerator.ipynb): it takes their *mean* over the devices.
# One process is enough to see what comes out, since a mean over two is easily taken by hand.


# %%
def sum_of_losses(model, batch):
    logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")


def gradient(model, loss):
    model.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters()])


model = small_decoder(num_hidden_layers=2)
sums = [[gradient(model, sum_of_losses(model, batch)) for batch in window] for window in ranks]
everywhere = sum(map(targets_in, micro_batches))
large = sum(sum(window) for window in sums) / everywhere  # the large batch of all eight texts


def as_ddp(divide):
    """The mean over the devices of what each has added up; divide(rank, batch) is its divisor."""
    of_ranks = [
        sum(one / divide(rank, batch) for one, batch in zip(sums[rank], ranks[rank]))
        for rank in range(2)
    ]
    return sum(of_ranks) / 2


def compare(name, found):
    print(
        f"{name:34} {found.norm() / large.norm():.3f} times as long, cosine "
        f"{cosine_similarity(found, large, dim=0):.3f}"
    )


compare("each micro-batch's own mean", as_ddp(lambda rank, batch: 2 * targets_in(batch)))
compare(
    "the window's targets, own device",
    as_ddp(lambda rank, batch: sum(map(targets_in, ranks[rank]))),
)

# %% [markdown]
# Neither is the large batch's: the direction is another one. The second is what you wrote in the accumulation unit, right for one device; on two it gives a token more weight on the device that has fewer of them.
#
# **Predict.** Now every device divides by the targets of *all* devices. How long is the gradient, relative to the large batch's?

# %%
# BEGIN SOLUTION
my_guess = 1
# END SOLUTION
guess("gradient divided by all targets", my_guess, "times as long")

# %%
divided = as_ddp(lambda rank, batch: everywhere)
compare("all devices' targets", divided)
reveal(
    "gradient divided by all targets",
    round((divided.norm() / large.norm()).item(), 3),
    "times as long",
)

# %% [markdown]
# The direction is right at last, and the length is not: DDP divides once more. So the loss is multiplied by the number of devices,
#
# $$\text{loss} = \frac{\text{sum over the micro-batch} \cdot \text{world size}}{\text{targets in the windows of all devices}}$$

# %%
compare("all devices' targets / world size", as_ddp(lambda rank, batch: everywhere / 2))
print(f"handed over: {large.nbytes:,} bytes of gradients", end=", ")
print(f"{torch.tensor(everywhere).nbytes} bytes of the count")

# %% [markdown]
# What a device must know of the others is *one number*. It is asked for before the first backward pass: one small all-reduce for each window. In bytes that is little beside the gradients, but everybody waits until all have counted.
#
# ## Exercise: the divisor over windows and devices
#
# *Difficulty* *** · *10 minutes* · *Why*: with two devices and texts of different lengths, the loop that is right on one device trains something else.
#
# Write `token_backward(model, window)`, which runs on every rank.
#
# - `model` is wrapped in `DistributedDataParallel`; `model(input_ids)` gives logits `[texts, length, vocabulary]`. `window` is this rank's list of dictionaries with `input_ids` and `labels`; position $t$ predicts label $t + 1$, and -100 does not count. It stays as it is. All ranks have equally many micro-batches.
# - Afterwards `.grad` holds, on every rank, the gradient of the mean over all targets of all ranks' windows. It was empty before.
# - The gradients are sent once in a window, as in the [accumulation unit](../1_accumulation/2_accelerator.ipynb), and one more all-reduce is enough for everything else (with more than two the answer is refused). `torch.distributed` has `all_reduce(tensor)`, which adds up over the ranks in place, and `get_world_size()`.


# %%
put_in_order("token_backward")


# %% exercise="token_backward" points=3
def token_backward(model, window):
    """Leave in .grad the gradient of the mean over all targets of all ranks' windows."""
    # BEGIN SOLUTION
    from contextlib import nullcontext

    from torch import distributed

    count = sum(batch["labels"][:, 1:].ne(-100).sum() for batch in window)
    distributed.all_reduce(count)
    share = distributed.get_world_size() / count
    for index, batch in enumerate(window):
        last = index == len(window) - 1
        with nullcontext() if last else model.no_sync():
            logits = model(batch["input_ids"])[:, :-1]
            targets = batch["labels"][:, 1:]
            loss = cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
            (loss * share).backward()
    # END SOLUTION


# %% check="token_backward"
check(token_backward)

# %% [markdown]
# ## With Accelerate
#
# This is the same loop, written with Accelerate and run on one processor. `accelerator.reduce` adds up here, `accelerator.num_processes` is the world size, `accelerator.no_sync(model)` keeps the gradients where they are.
# `gradient_accumulation_steps` stays at 1, so that `accelerator.backward` does not divide by a number that knows nothing of tokens.


# %%
def train(accelerator, model, optimizer, windows):
    model, optimizer = accelerator.prepare(model, optimizer)
    for window in windows:
        count = torch.tensor(sum(map(targets_in, window)))
        count = accelerator.reduce(count, reduction="sum")
        for batch in window[:-1]:
            with accelerator.no_sync(model):
                loss = sum_of_losses(model, batch)
                accelerator.backward(loss * accelerator.num_processes / count)
        loss = sum_of_losses(model, window[-1])
        accelerator.backward(loss * accelerator.num_processes / count)
        optimizer.step()
        optimizer.zero_grad()
    return model


def trained(windows):
    model = small_decoder(num_hidden_layers=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return train(Accelerator(cpu=True), model, optimizer, windows)


in_parts = trained([micro_batches[:2], micro_batches[2:]])
at_once = trained([[batch] for batch in text_batches(load_reviews()[:8], 4)])
apart = max((a - b).abs().max() for a, b in zip(in_parts.parameters(), at_once.parameters()))
print("2 x 2 and 4 x 1 end with the same weights, to 1e-6:", bool(apart < 1e-6))

# %% [markdown]
# **A good place to stop for today.** What follows trains hardly any weights at all.
#
# ## Adapters
#
# LoRA ([arXiv 2106.09685](https://arxiv.org/abs/2106.09685)) leaves a linear layer's weight $W$ as it is and adds the product of two thin matrices: $Wx + s\,B(Ax)$, with $A$ of shape rank x inputs and $B$ of outputs x rank. $s$ is a fixed factor, `lora_alpha` divided by the rank. Only $A$ and $B$ are trained; $B$ begins at zero, so at the start nothing is changed.


# %%
def adapted(rank=4):
    torch.manual_seed(0)
    lora = LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"
    )
    return get_peft_model(small_decoder(), lora)


adapted().print_trainable_parameters()

# %% [markdown]
# **Predict.** Fewer than one in a hundred numbers is trained. Of the activations that the full training has at its peak, how many percent are left?

# %%
# BEGIN SOLUTION
my_guess = 10
# END SOLUTION
guess("activations with an adapter", my_guess, "% of the full training's")

# %%
ids = torch.cat([batch["input_ids"] for batch in batches(load_reviews()[:16], 16, max_length=64)])


def train_texts(micro_batch, accumulation_steps, checkpointed, lora):
    model = adapted(lora) if lora else small_decoder()
    if checkpointed:
        model.activation_checkpointing_enable()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, fused=True)
    for _ in range(2):
        for texts in ids[: micro_batch * accumulation_steps].split(micro_batch):
            (model(input_ids=texts, labels=texts).loss / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def measure_point(micro_batch, accumulation_steps=1, checkpointing="off", lora=None):
    if micro_batch * accumulation_steps > len(ids):
        raise ValueError(f"There are {len(ids)} texts; a step can take no more.")
    checkpointed = checkpointing not in ("off", 0, False)
    how = (f"adapter {lora}" if lora else "full") + ", checkpointed" * checkpointed
    size = f", {micro_batch} x {accumulation_steps}" * (accumulation_steps > 1)
    return measure(
        partial(train_texts, micro_batch, accumulation_steps, checkpointed, lora),
        name=how + size,
        samples=2 * micro_batch * accumulation_steps,
        model="small decoder",
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
        sequence_length=64,
        attention="sdpa",
        checkpointing="every layer" if checkpointed else "off",
        lora=lora,
        repeats=1,
    )


runs = [
    measure_point(16),
    measure_point(16, lora=4),
    measure_point(16, checkpointing="every layer", lora=4),
]
left = runs[1].peak["activations"] / runs[0].peak["activations"]
reveal("activations with an adapter", round(100 * left), "% of the full training's")
plot_memory(runs)

# %%
pd.DataFrame(
    {run.name: {kind: format_bytes(size) for kind, size in run.peak.items()} for run in runs}
)

# %% [markdown]
# The optimizer state is as good as gone; weights and logits are not, and most activations stay. (Gradients of the full training are not at this peak either.) Half of what stays is there in the checkpointed run, too: nearly all of that is the softmax which the loss keeps. The rest is the layers': to reach the adapters in the first layer the gradient must go through all layers above them, and for that it needs what those have kept. Only what the gradient of a frozen *weight* would have needed is let go.
# So here **an adapter does not replace checkpointing, accumulation or the loss in chunks**: it takes the state away, and most of what grows with the batch is left. Here are the same points with an accumulated one; others you can measure (at most 16 texts for a step).

# %%
explorer([*runs, measure_point(4, 4, lora=4)], measure=measure_point)

# %% [markdown]
# Predicted for Qwen2.5 7B, 4 texts of 2,048 tokens, checkpointed:

# %%
config = model_config("qwen-7b")
run = predict_run(
    config,
    micro_batch=4,
    sequence_length=2048,
    attention="sdpa",
    precision="bf16",
    checkpointing=True,
    lora=16,
)
for kind, size in run.peak.items():
    print(f"{kind:16} {format_bytes(size):>10}")
print(f"one copy of the logits {format_bytes(4 * 2048 * config.vocab_size * 4)}")

# %% [markdown]
# In the last lesson this model's peak was its gradients. Without them it is the logits: three copies, beside the inputs of the checkpointed layers and the head in bf16. (The weights are float32 here; in bf16 they would take half.)
#
# ## Exercise: an adapter's state
#
# *Difficulty* * · *6 minutes* · *Why*: it says what a model takes with an adapter, before the first activation.
#
# Write `adapter_state(linears, rank, weight_bytes)`.
#
# - `linears` lists the linear layers of a model, which is made of nothing else: `(inputs, outputs, adapted)`, where `adapted` says whether the layer gets an adapter of this rank. No layer has a bias. The list stays as it is.
# - The model's own weights are frozen and take `weight_bytes` bytes each. The adapters are float32 and trained with AdamW, which keeps two numbers for each.
# - Return the bytes as a dictionary with the keys `"weights"` (all of them), `"gradients"` and `"optimizer state"` (without its counters of steps).


# %% exercise="adapter_state" points=2
def adapter_state(linears, rank, weight_bytes):
    """Bytes of weights, gradients and optimizer state when only the adapters are trained."""
    # BEGIN SOLUTION
    frozen = sum(inputs * outputs for inputs, outputs, _ in linears)
    trained = sum(rank * (inputs + outputs) for inputs, outputs, adapted in linears if adapted)
    return {
        "weights": weight_bytes * frozen + 4 * trained,
        "gradients": 4 * trained,
        "optimizer state": 8 * trained,
    }
    # END SOLUTION


# %% check="adapter_state"
check(adapter_state)

# %% [markdown]
# ## An adapter that learns nothing
#
# Here is a small model: a frozen embedding, frozen blocks with adapters, a head that is trained. Its checkpointing is the older, *reentrant* one.


# %%
class Adapted(nn.Module):
    """A frozen linear layer with a LoRA adapter."""

    def __init__(self, width, rank=4):
        super().__init__()
        self.linear = nn.Linear(width, width).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, width) / width**0.5)
        self.b = nn.Parameter(torch.zeros(width, rank))

    def forward(self, x):
        return x + torch.tanh(self.linear(x) + x @ self.a.T @ self.b.T)


class Stack(nn.Module):
    """An embedding, adapted blocks under checkpointing, and a head."""

    def __init__(self, vocabulary=4000, width=32, layers=3, use_reentrant=True):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width).requires_grad_(False)
        self.blocks = nn.ModuleList(Adapted(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)
        self.checkpointing = {"use_reentrant": use_reentrant}

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = checkpoint(block, x, **self.checkpointing)
        return self.head(x)


def train_stack(use_reentrant):
    torch.manual_seed(0)
    model = Stack(use_reentrant=use_reentrant)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=5e-3)
    for step in range(12):
        logits = model(ids[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        if step == 0:
            first = loss.item()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = sum(block.b.norm().item() for block in model.blocks)
    print(f"loss {first:.2f} -> {loss.item():.2f}, length of all B together {moved:.3f}")


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    train_stack(use_reentrant=True)

# %% [markdown]
# The loss falls, and no adapter has moved: the head alone has learned. (torch warns that no input asks for a gradient; that warning was silenced here.)
#
# A reentrant checkpoint runs its block without autograd, and takes part in the backward pass only if a tensor that it was *given* asks for a gradient. Token numbers cannot, a frozen embedding's output does not, so the first block's output does not either, and so on up to the head.
# Were the head frozen too, `backward()` would raise an error. It is the trained head that makes it silent.
#
# ## Exercise: an adapter that learns
#
# *Difficulty* ** · *7 minutes* · *Why*: the loss fell above, and no adapter had learned.
#
# Write `make_it_learn(model)`. `model` is built as the `Stack` above is, with the same attributes, and not yet trained (its class may be another one, and its blocks may have dropout). When your function is through, training must reach all adapters, exactly as without checkpointing. Each block stays checkpointed by itself, what is frozen stays frozen, and weights stay as they are.


# %% exercise="make_it_learn" points=2
def make_it_learn(model):
    """Change the model so that its adapters learn under checkpointing."""
    # BEGIN SOLUTION
    model.checkpointing["use_reentrant"] = False
    # END SOLUTION


# %% check="make_it_learn"
check(make_it_learn)

# %% [markdown]
# One cure is the other checkpoint, which has no such rule:

# %%
train_stack(use_reentrant=False)

# %% [markdown]
# What do the libraries do? When checkpointing is switched on, transformers 5.23 makes this model's embedding output ask for a gradient (`enable_input_require_grads`). So here even the reentrant one works:

# %%
model = adapted()
model.activation_checkpointing_enable({"use_reentrant": True})
model(input_ids=ids, labels=ids).loss.backward()
reached = [
    bool(weight.grad.any())
    for name, weight in model.named_parameters()
    if name.endswith("B.default.weight")
]
print(f"{sum(reached)} of {len(reached)} matrices B have a gradient")

# %% [markdown]
# It was not always so ([transformers issue 26334](https://github.com/huggingface/transformers/issues/26334), September 2023, version 4.33.2), and it was reported again in March 2026 ([open-unlearning issue 178](https://github.com/locuslab/open-unlearning/issues/178)). The symptom is cheap to test: after some steps, is any $B$ still exactly zero?
#
# ## Precision
#
# `Accelerator(mixed_precision="bf16")` runs the forward pass of a prepared model under autocast. It does one thing more: what the model *returns* is converted to float32. For a decoder the logits are among that.


# %%
def peak_in(how):
    model = small_decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if how == "Accelerator":
        AcceleratorState._reset_state(reset_partial_state=True)  # it was float32 above
        accelerator = Accelerator(cpu=True, mixed_precision="bf16")
        model, optimizer = accelerator.prepare(model, optimizer)
    with Meter() as meter:
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
                outputs = model(input_ids=ids, labels=ids)
            outputs.loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return meter


one_copy = ids.numel() * 4000 * 4  # the logits in float32
for how in ("float32", "autocast", "Accelerator"):
    at_peak = peak_in(how)
    copies = sum(size for _, size in at_peak.largest if size >= one_copy / 2) / one_copy
    size = format_bytes(at_peak.peak_bytes)
    print(f"{how:12} {size:>10}, with {copies:.1f} copies of the logits")

# %% [markdown]
# The peak does not become half as large. The loss converts the logits to float32 first, so the three copies of its backward pass are as large as before. Of the logits only what the name `outputs` holds is smaller: those in bf16, half a copy. With Accelerate it is a copy in float32 again.
# A loss in chunks from the hidden states belongs inside `with accelerator.autocast():`, since `model.model` goes around the `forward` that was put under autocast.
#
# The rest is the layers'. How much smaller do their own activations become?


# %%
def layers_keep(autocast):
    """The most activations of one step of the layers alone, without a head."""
    model = small_decoder()
    with Meter() as meter:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden = model.model(input_ids=ids).last_hidden_state
        hidden.square().mean().backward()
    return meter.peak["activations"]


in_float32, in_bf16 = layers_keep(False), layers_keep(True)
print(f"float32 {format_bytes(in_float32)}, autocast {format_bytes(in_bf16)}")
print(f"autocast keeps {in_bf16 / in_float32:.0%} of it")

# %% [markdown]
# Autocast runs the linear layers of this decoder in bf16. Its embedding, its norms and the sum that passes from layer to layer stay float32.
#
# ### Handlers and plugins
#
# Accelerate takes these settings as an object: a *handler* in the list `kwargs_handlers`, or a *plugin*.
#
# | object | what it sets |
# |---|---|
# | `AutocastKwargs` | autocast: `enabled`, and `cache_enabled`, whether a trained weight's rounded copy is used again |
# | `GradScalerKwargs` | the loss scaling of `"fp16"` |
# | `AORecipeKwargs`, `TERecipeKwargs`, `MSAMPRecipeKwargs` | 8 bits, for `"fp8"`; not tried here |
# | `FullyShardedDataParallelPlugin` | by its `mixed_precision_policy`: the types of the weights that are gathered, and of the gradients that are sent, where the model is [sharded](../3_local_sgd/5_sharding.ipynb) |
#
# A handler may hold for a part of the forward pass. Here the head is computed as autocast does it, and in float32 although autocast is on:

# %%
AcceleratorState._reset_state(reset_partial_state=True)
accelerator = Accelerator(cpu=True, mixed_precision="bf16")
model = small_decoder()
hidden = model.model(input_ids=ids).last_hidden_state.detach()
exact = model.lm_head(hidden)
for handler in (AutocastKwargs(), AutocastKwargs(enabled=False)):
    with accelerator.autocast(), accelerator.autocast(handler):
        logits = model.lm_head(hidden)
    off = ((logits - exact).norm() / exact.norm()).item()
    print(f"enabled={handler.enabled!s:5} logits in {logits.dtype}, {off:.2%} off")
AcceleratorState._reset_state(reset_partial_state=True)  # float32 again, if you go back

# %% [markdown]
# The plugin has a surprise. The same word, `"bf16"`, stands for this:

# %%
plugin = FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy="bf16")
print("weights are gathered in", plugin.mixed_precision_policy.param_dtype)
print("gradients are sent and added up in", plugin.mixed_precision_policy.reduce_dtype)

# %% [markdown]
# Under DDP `"bf16"` is autocast: the weights are float32, so their gradients are, and the ranks add them up in float32. With the plugin the same word makes the ranks add up in bf16. It is yours to say: `MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)` of `torch.distributed.fsdp`, given as the policy.
#
# The bytes of the *state*: autocast leaves a float32 model's weights, gradients and state in float32; a model that was converted with `.to(torch.bfloat16)` has all of them in bf16; with masters, as you wrote them in the last lesson, there are both.
#
# ## Exercise: bytes of a state
#
# *Difficulty* * · *5 minutes* · *Why*: "bf16 training" means several things, and the largest takes more than twice the bytes of the smallest.
#
# Write `state_bytes(parameters, recipe)`: the bytes of weights, gradients and AdamW's two averages together, when the optimizer steps. `recipe` is one of
#
# - `"float32"`: everything in float32
# - `"autocast"`: a float32 model, its forward pass under autocast to bf16
# - `"bf16"`: model and optimizer in bf16
# - `"masters"`: a bf16 model, whose own gradients are gone by then, and float32 masters with their gradients and averages


# %% exercise="state_bytes" points=1
def state_bytes(parameters, recipe):
    """Bytes of weights, gradients and AdamW's averages at the optimizer's step."""
    # BEGIN SOLUTION
    each = {"float32": 16, "autocast": 16, "bf16": 8, "masters": 18}
    return parameters * each[recipe]
    # END SOLUTION


# %% check="state_bytes"
check(state_bytes)

# %% [markdown]
# ## What to keep
#
# - Over windows and devices the divisor is the number of all targets of all of them, and DDP's mean is undone by the world size. It costs one small all-reduce, before the first backward pass.
# - An adapter takes away optimizer state, and gradients of what is frozen. Most activations stayed: checkpointing, accumulation and chunks still save memory.
# - A reentrant checkpoint over frozen inputs trains nothing inside it. Use the other one, and look whether every $B$ has moved.
# - Autocast made what the layers keep smaller, not the state, and the loss goes back to float32.
#
# Next: [Decoders with the Trainer](3_trainer.ipynb), and where the logits come back.
