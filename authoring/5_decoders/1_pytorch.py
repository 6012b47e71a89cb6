# %% [markdown]
# # Decoders in PyTorch
#
# **You will be able to** say what fills memory when a language model with a large vocabulary is trained, write its loss in chunks, tell which part of attention grows with the square of the length, and add up and step in bf16 without losing small numbers.
#
# **Minutes**: 80, with a place to stop · **Before this**: [Accumulation: PyTorch](../1_accumulation/1_pytorch.ipynb) and [Checkpointing: PyTorch](../2_checkpointing/1_pytorch.ipynb).

# %% [markdown]
# ## A question
#
# So far a BERT said one of two labels for a whole review. A *decoder* says for every token which of all tokens of its vocabulary comes next.
#
# Llama 3.2 1B has a vocabulary of 128,256. You train it with 4 texts of 2,048 tokens. Which single tensor is the largest: a weight, something inside one of its 16 layers, or something else?

# %%
import math

import pandas as pd
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from trainlean import (
    Meter,
    check,
    explorer,
    format_bytes,
    guess,
    hint,
    load_reviews,
    load_tokenizer,
    measure,
    model_config,
    plot_memory,
    predict_run,
    put_in_order,
    recall,
    reveal,
    small_decoder,
)

# %%
recall("5_decoders/1_pytorch")

# %% [markdown]
# ## A small decoder
#
# A model like Llama, made from its configuration, with random weights: 4 layers, hidden size 64, and the course's vocabulary of 4,000 tokens.
# That is little of everything. What matters here is one ratio, and it is the one of Llama 3.2 1B:

# %%
for name in ("small-decoder", "llama-1b", "qwen-7b"):
    config = model_config(name)
    print(
        f"{config.name_or_path:13} vocabulary {config.vocab_size:7,}, "
        f"hidden size {config.hidden_size:5,}, ratio {config.vocab_size / config.hidden_size:.1f}"
    )

# %% [markdown]
# The small decoder is trained on one long stream of tokens, cut into pieces of equal length. Nothing is padded then, and every token but a piece's first is a target.

# %%
tokenizer = load_tokenizer()
texts = [review.text for review in load_reviews()[:600]]
stream = torch.tensor(sum(tokenizer(texts, truncation=True)["input_ids"], []))


def pieces(number, length):
    """The first tokens of the stream, [number, length]."""
    return stream[: number * length].view(number, length)


model = small_decoder()
output = model(input_ids=pieces(8, 128), labels=pieces(8, 128))
print(f"{len(stream):,} tokens; logits {list(output.logits.shape)}, loss {output.loss.item():.2f}")
print(f"equal scores for all 4,000 tokens give ln 4,000 = {math.log(4000):.2f}")
one_copy = output.logits.nbytes
del output

# %% [markdown]
# The *logits* are the scores of the whole vocabulary, for each token of each text. In bytes, beside the weights of the whole model:

# %%
weights = sum(parameter.nbytes for parameter in model.parameters())
print(f"logits {format_bytes(one_copy)}, all weights {format_bytes(weights)}")

# %% [markdown]
# ## Where the peak is
#
# **Predict.** Two optimizer steps with 8 texts of 128 tokens. At the fullest moment, how many copies of the logits (or of tensors as large as they are) are in memory?

# %%
# BEGIN SOLUTION
my_guess = 2
# END SOLUTION
guess("tensors as large as the logits", my_guess, "copies")

# %% [markdown]
# The loss is written out here, so that each of its steps can be seen: the last hidden states, the *head* that makes logits of them, and the cross-entropy.
# Position $t$ predicts token $t + 1$, so the last position of each text has no target.


# %%
def hidden_and_targets(model, ids):
    """Hidden states that predict something [tokens, hidden size], and their targets [tokens]."""
    hidden = model.model(input_ids=ids).last_hidden_state
    return hidden[:, :-1].flatten(0, 1), ids[:, 1:].flatten()


def whole_loss(model, ids):
    hidden, targets = hidden_and_targets(model, ids)
    return cross_entropy(hidden @ model.lm_head.weight.T, targets)


def train(loss_of, ids, steps=2, accumulation_steps=1, checkpointing=False, **config):
    model = small_decoder(**config)
    if checkpointing:
        model.activation_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(steps):
        for micro_batch in ids.chunk(accumulation_steps):
            (loss_of(model, micro_batch) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


ids = pieces(8, 128)
with Meter() as meter:
    train(whole_loss, ids)
for category, size in meter.peak.items():
    print(f"{category:16} {format_bytes(size):>10}")

# %% [markdown]
# The meter has kept the life of every block of memory. Which are there at the peak, and as large as the logits?

# %%
logits = (ids.numel() - len(ids)) * 4000 * 4  # every token but the last of each text

large = [(category, size) for category, size in meter.largest if size >= logits]
for category, size in large:
    print(f"{category:12} {format_bytes(size)}")
reveal("tensors as large as the logits", len(large), "copies")

# %% [markdown]
# All three are there in the backward pass of the cross-entropy: the logarithm of the softmax, which the forward pass kept; the gradient with respect to it; and the gradient with respect to the logits. The logits themselves are already gone.
#
# Their share of the peak:

# %%
share = sum(size for _, size in large) / meter.peak_bytes
print(f"{share:.0%} of {format_bytes(meter.peak_bytes)}")

# %% [markdown]
# A fourth copy comes easily. `outputs = model(input_ids, labels=...)` holds the logits as long as the name `outputs` does: in a loop, until the next micro-batch has its own.


# %%
def with_a_name(model, ids):
    with_a_name.outputs = model(input_ids=ids, labels=ids)
    return with_a_name.outputs.loss


def without(model, ids):
    return model(input_ids=ids, labels=ids).loss


for function in (without, with_a_name):
    with Meter() as held:
        train(function, ids)
    print(f"{function.__name__:12} {format_bytes(held.peak_bytes)}")
del with_a_name.outputs

# %% [markdown]
# ## Models of today
#
# Nothing of this needs the model to be there. `predict_run` follows a training on tensors without bytes. First on the small decoder, compared with what was measured:

# %%
predicted = predict_run(
    model_config("small-decoder"), micro_batch=8, sequence_length=128, attention="sdpa"
)
with Meter() as measured:
    train(without, ids)
off = abs(predicted.peak_bytes / measured.peak_bytes - 1)
print(f"predicted {format_bytes(predicted.peak_bytes)}, off by less than 0.5 %: {off < 0.005}")

# %% [markdown]
# **Predict.** Llama 3.2 1B, 4 texts of 2,048 tokens, autocast to bf16 (the weights stay float32, products are computed in 16 bits), all layers checkpointed. How many GiB has *one* copy of its logits in float32?

# %%
# BEGIN SOLUTION
my_guess = 2
# END SOLUTION
guess("one copy of the logits", my_guess, "GiB")


# %%
def predicted_row(name, texts=4):
    config = model_config(name)
    run = predict_run(
        config,
        micro_batch=texts,
        sequence_length=2048,
        attention="sdpa",
        precision="bf16",
        checkpointing=True,
    )
    return {
        "model": config.name_or_path,
        "texts": texts,
        "peak": format_bytes(run.peak_bytes),
        "batch": format_bytes(run.peak["activations"] + run.peak["temporary"]),
        "gradients": format_bytes(run.peak["gradients"]),
        "logits": format_bytes(texts * 2048 * config.vocab_size * 4),
    }


one_llama = 4 * 2048 * model_config("llama-1b").vocab_size * 4
reveal("one copy of the logits", round(one_llama / 2**30, 2), "GiB", "predicted")
pd.DataFrame([predicted_row("llama-1b"), predicted_row("qwen-7b"), predicted_row("qwen-7b", 5)])

# %% [markdown]
# (*batch*: activations and temporary tensors; *logits*: one copy of them in float32, to which transformers converts them before the loss.)
#
# Llama's layers are checkpointed, so of their activations little is left. What the batch still takes is for the greater part three copies of the logits.
#
# Qwen2.5 7B is another case. Weights and AdamW's state are always there. Two moments compete for the peak:
#
# - When the forward pass ends, autocast still holds a bf16 copy of each trained matrix that it has multiplied with, beside two and a half copies of the logits: in bf16, in float32, and the logarithm of the softmax.
# - Near the end of the backward pass, there are the gradients of most weights.
#
# With 4 texts the peak is at the second (the gradients are not 0), with 5 at the first. With an adapter, in the next lesson, it is the logits that decide: what is frozen has no gradient, and no copy in autocast's cache.
# A copy of the logits grows with the tokens of a micro-batch and with the vocabulary.
#
# (Configurations: Llama 3.2 1B and Qwen2.5 7B as their makers published them.)
#
# ## The loss in chunks
#
# The remedy is the one that you know from checkpointing. The logits of a token need nothing but its hidden state and the head, so they can be made for a few tokens at a time, forgotten, and made again in the backward pass.
#
# The mean over the targets is a sum over all chunks, divided once. What is divided by what is the matter of the [unequal micro-batches](../1_accumulation/1_pytorch.ipynb) again.
#
# ## Exercise: the chunked loss
#
# *Difficulty* ** · *9 minutes* · *Why*: three copies of the logits become three copies of a chunk.
#
# Write `chunked_loss(hidden, head, targets, chunk)`.
#
# - `hidden` is `[tokens, hidden size]`, `head` the weight of the head, `[vocabulary, hidden size]`: the logits are `hidden @ head.T`. `targets` is `[tokens]`; a target of -100 does not count, and at least one does. All three stay as they are.
# - It returns the mean loss over the targets that count, as `cross_entropy(hidden @ head.T, targets)` would, and with the same gradients for `hidden` and `head`. Either of the two may be frozen.
# - Logits are computed for `chunk` tokens at a time, for fewer in the last chunk. Between the forward and the backward pass none of them is in memory, nor anything as large.


# %%
put_in_order("chunked_loss")


# %% exercise="chunked_loss" points=3
def chunked_loss(hidden, head, targets, chunk):
    """The mean cross-entropy of hidden @ head.T, from the logits of `chunk` tokens at a time."""

    # BEGIN SOLUTION
    def sum_of(some_hidden, head, some_targets):
        return cross_entropy(some_hidden @ head.T, some_targets, reduction="sum")

    total = 0
    for some_hidden, some_targets in zip(hidden.split(chunk), targets.split(chunk)):
        total = total + checkpoint(sum_of, some_hidden, head, some_targets, use_reentrant=False)
    return total / targets.ne(-100).sum()
    # END SOLUTION


# %% check="chunked_loss"
check(chunked_loss)

# %% [markdown]
# With *your* loss in the training from above. First whether it is the same training:


# %%
def in_chunks(chunk):
    def loss_of(model, ids):
        hidden, targets = hidden_and_targets(model, ids)
        return chunked_loss(hidden, model.lm_head.weight, targets, chunk)

    return loss_of


def gradient(loss_of):
    model = small_decoder()
    loss_of(model, ids).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


large = gradient(whole_loss)
whole, chunked = train(whole_loss, ids), train(in_chunks(128), ids)
with torch.no_grad():
    losses = [loss_of(whole, ids).item() for loss_of in (whole_loss, in_chunks(128))]
print("losses differ by less than a millionth:", abs(losses[0] / losses[1] - 1) < 1e-6)
apart = (gradient(in_chunks(128)) - large).norm() / large.norm()
print("gradients differ by less than a millionth:", bool(apart < 1e-6))

# %% [markdown]
# Now the memory. The layers need some anyway; a loss without any logits shows how much. What is above that is the logits' part.


# %%
def no_logits(model, ids):
    return hidden_and_targets(model, ids)[0].square().mean()


def peak_of(loss_of, **settings):
    with Meter() as meter:
        train(loss_of, ids, **settings)
    return meter.peak_bytes


layers = peak_of(no_logits)
whole_part = peak_of(whole_loss) - layers
print(f"layers alone {format_bytes(layers)}, the logits' part {format_bytes(whole_part)}")
for chunk in (128, 32):
    part = peak_of(in_chunks(chunk)) - layers
    print(f"chunks of {chunk:3}: {format_bytes(part):>9}, {part / whole_part:.2f} of it")

# %% [markdown]
# In chunks of an eighth of the tokens, an eighth of it is left, and with smaller chunks less.
#
# The price is one more product of hidden states and head in the backward pass:

# %%
flops = []
for loss_of in (whole_loss, in_chunks(128)):
    with Meter() as meter:
        train(loss_of, ids)
    flops.append(meter.flops)
print(f"FLOPs: {flops[1] / flops[0]:.2f} times as many")

# %% [markdown]
# That is much here: a step has three such products, nearly half of this small model's FLOPs. For Llama 3.2 1B, counted in its matrices (a product costs 2 FLOPs for each weight and token, in forward once and in backward twice; no layer is checkpointed):

# %%
config = model_config("llama-1b")
head = config.vocab_size * config.hidden_size
width, inner = config.hidden_size, config.intermediate_size
keys = config.num_key_value_heads * config.head_dim
layer = 2 * width * width + 2 * width * keys + 3 * width * inner
weights = head + config.num_hidden_layers * layer
print(f"one more product with the head: {head / (3 * weights):.1%} more FLOPs")

# %% [markdown]
# PyTorch has such a loss of its own, `torch.nn.functional.linear_cross_entropy` with `LinearCrossEntropyOptions` (there in torch 2.13). For a mean it computes the gradients already in the forward pass, while a chunk's logits are there, and keeps those.


# %%
def torchs_loss(model, ids):
    hidden, targets = hidden_and_targets(model, ids)
    options = nn.LinearCrossEntropyOptions(chunking_method=None, batch_chunk_size=128)
    head = model.lm_head.weight
    return nn.functional.linear_cross_entropy(hidden, head, targets, options=options)


apart = (gradient(torchs_loss) - large).norm() / large.norm()
print("gradients differ by less than a millionth:", bool(apart < 1e-6))

# %% [markdown]
# ## Exercise: a chunk for a budget
#
# *Difficulty* * · *5 minutes* · *Why*: the chunk is a number that you must give, and too large it does not fit.
#
# Write `choose_chunk(tokens, vocabulary, rest, budget)`: the largest number of tokens whose logits may be computed at a time.
#
# - `rest` bytes are in memory anyway, at the moment at which the loss is computed. All together may take `budget` bytes, not one more.
# - Logits are computed in float32, and the peak of the loss lies where you have seen it above, with as many copies.
# - More than all `tokens` is never needed. If not even one token's logits fit, return 0.


# %% exercise="choose_chunk" points=2
def choose_chunk(tokens, vocabulary, rest, budget):
    """The most tokens in a chunk so that its copies of the logits fit beside the rest."""
    # BEGIN SOLUTION
    each = 3 * 4 * vocabulary
    return max(0, min(tokens, (budget - rest) // each))
    # END SOLUTION


# %% check="choose_chunk"
check(choose_chunk)

# %% [markdown]
# For Llama 3.2 1B with 8,192 tokens, when the logits may take 1 GiB:

# %%
vocabulary = model_config("llama-1b").vocab_size
chunk = choose_chunk(8192, vocabulary, 0, 2**30)
print(f"{chunk} tokens at a time, {math.ceil(8192 / chunk)} chunks")

# %% [markdown]
# **A good place to stop for today.** The largest thing in memory is gone. What follows is about what grows with the *length* of a text, and about numbers of 16 bits.
#
# ## Long sequences
#
# The logits grow with the number of tokens, whether they come as 8 texts of 128 or as one of 1,024. Something else does not.
# In attention each token looks at all tokens before it: a table of length x length scores, for each head and each layer. The small decoder has 4 heads in each of its 4 layers.
#
# **Predict.** 1,024 tokens in each micro-batch, once as 8 texts of 128, once as 1 text of 1,024. With *eager attention* (written in PyTorch operations), how many times as large is the peak of the second?

# %%
# BEGIN SOLUTION
my_guess = 1.5
# END SOLUTION
guess("peak of one long text, eager", my_guess, "times that of eight short ones")

# %%
peaks = {}
for attention in ("eager", "sdpa"):
    for number, length in ((8, 128), (1, 1024)):
        ids = pieces(number, length)
        peaks[attention, length] = peak_of(without, attn_implementation=attention)
        print(f"{attention:5} {number} x {length:4}: {format_bytes(peaks[attention, length]):>9}")
ids = pieces(8, 128)  # as before, if you go back
ratio = peaks["eager", 1024] / peaks["eager", 128]
reveal("peak of one long text, eager", round(ratio, 2), "times that of eight short ones")

# %% [markdown]
# With eager attention a text that is 8 times as long has 64 times the table, and there are an eighth as many texts: the tables together take 8 times as much. With `sdpa`, PyTorch's `scaled_dot_product_attention`, almost nothing changes.
#
# How can that be, when it computes the same? Ask autograd what each of them keeps for the backward pass. (`kept` sums up the different tensors that are saved, in bytes.)


# %%
def eager_attention(q, k, v):
    """softmax(q k / sqrt(head size)) v, each token looking at itself and those before it."""
    length, head_size = q.shape[-2:]
    future = torch.full((length, length), -math.inf).triu(1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(head_size) + future
    return scores.softmax(-1) @ v


def fused_attention(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def kept(attention, batch, heads, length, head_size, dtype=torch.float32):
    q, k, v = torch.randn(3, batch, heads, length, head_size, dtype=dtype).requires_grad_()
    q, k, v = q.clone(), k.clone(), v.clone()
    sizes = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attention(q, k, v)
    return sum(sizes.values())


shape = dict(batch=2, heads=4, head_size=16)
for length in (64, 128, 256, 512):
    eager, fused = (kept(one, length=length, **shape) for one in (eager_attention, fused_attention))
    print(f"{length:4} tokens: eager {format_bytes(eager):>9}, sdpa {format_bytes(fused):>9}")

# %% [markdown]
# The fused attention takes the queries in blocks. Of a query's scores it keeps one number, the logarithm of the sum of their exponentials. In the backward pass the scores are computed again from queries and keys, and the softmax follows from them and that number.
# It is *checkpointing, built into a kernel* (FlashAttention, [arXiv 2205.14135](https://arxiv.org/abs/2205.14135)), and the chunked loss is the same idea once more.
#
# ## Exercise: what sdpa keeps
#
# *Difficulty* ** · *7 minutes* · *Why*: it tells what grows with the length, and how fast.
#
# Write `attention_keeps(batch, heads, length, head_size)`: the bytes that autograd keeps from one attention as above, in float32, as a dictionary with the keys `"eager"` and `"sdpa"`. No mask is saved, and there is no dropout. `kept` tells you, but write it as a formula that runs nothing.


# %% exercise="attention_keeps" points=2
def attention_keeps(batch, heads, length, head_size):
    """Bytes kept for backward by one attention in float32: {"eager": ..., "sdpa": ...}."""
    # BEGIN SOLUTION
    one = 4 * batch * heads * length * head_size  # queries, keys, values or output
    table = 4 * batch * heads * length * length
    sums = 4 * batch * heads * length
    return {"eager": 3 * one + table, "sdpa": 4 * one + sums}
    # END SOLUTION


# %% check="attention_keeps"
check(attention_keeps)

# %% [markdown]
# For one layer of Llama 3.2 1B and one text, in float32. Its heads of queries share a smaller number of heads of keys and values. Eager attention copies those, one for each head of queries, and your formula holds. On a CPU `sdpa` takes them as they are where no mask is given, and keeps less than the formula says:

# %%
heads, shared = config.num_attention_heads, config.num_key_value_heads
print(f"{heads} heads of queries, {shared} of keys and of values")
rows = []
for length in (512, 2048, 8192, 32768):
    sizes = attention_keeps(1, heads, length, config.head_dim)
    not_copied = 2 * 4 * (heads - shared) * length * config.head_dim
    rows.append(
        {
            "length": f"{length:,}",
            "eager": format_bytes(sizes["eager"]),
            "sdpa": format_bytes(sizes["sdpa"] - not_copied),
            "logits, one copy": format_bytes(4 * length * vocabulary),
        }
    )
pd.DataFrame(rows)

# %% [markdown]
# And in bf16? The fused attention keeps about half. Eager attention as transformers writes it for Llama takes the softmax in float32 and converts what comes out:


# %%
def eager_of_transformers(q, k, v):
    length, head_size = q.shape[-2:]
    future = torch.full((length, length), -math.inf, dtype=q.dtype).triu(1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(head_size) + future
    return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v


for name, attention in {"eager": eager_of_transformers, "sdpa": fused_attention}.items():
    sizes = [
        format_bytes(kept(attention, length=512, dtype=dtype, **shape))
        for dtype in (torch.float32, torch.bfloat16)
    ]
    print(f"{name:5} in float32 {sizes[0]:>9}, in bf16 {sizes[1]:>9}")

# %% [markdown]
# In bf16 the eager one keeps *more*: the float32 table for the backward pass of the softmax, and its bf16 copy for that of the product with the values.
#
# The work does not go away. `sdpa` still multiplies every query with every key it may see: these products grow with the square of the length, what it keeps does not.
#
# ## Adding up in bf16
#
# bf16 has the range of float32 and 8 binary digits of precision: two to three decimal ones. Between 1 and 2 its numbers are 1/128 apart.
#
# **Predict.** A sum begins at 0, in bf16. 1/1024 is added 1,024 times. What is the sum, in thousandths?

# %%
# BEGIN SOLUTION
my_guess = 1000
# END SOLUTION
guess("1,024 times 1/1024 in bf16", my_guess, "thousandths")

# %%
total = torch.tensor(0.0, dtype=torch.bfloat16)
for _ in range(1024):
    total += 1 / 1024
reveal("1,024 times 1/1024 in bf16", total.item() * 1000, "thousandths")
print(f"the sum is {total.item()}, and the next number above it {total.item() * (1 + 2**-7)}")

# %% [markdown]
# There it stands still: 1/1024 is half the way to the next number, and what lies half-way is rounded to the even neighbour, back to where it was. All further additions *vanish*.
#
# `.grad` of a bf16 weight is bf16, and gradient accumulation is such a sum. The more micro-batches, the smaller each beside the sum. Here is the gradient of a one-layer decoder whose weights are bf16, added up in bf16 as `backward()` does it, and in float32:


# %%
def added_up(micro_batches, dtype):
    model = small_decoder(num_hidden_layers=1).to(torch.bfloat16)
    parameters = list(model.parameters())
    total = [torch.zeros_like(parameter, dtype=dtype) for parameter in parameters]
    for micro_batch in stream[: 16 * micro_batches].view(-1, 1, 16):
        loss = model(input_ids=micro_batch, labels=micro_batch).loss / micro_batches
        for one, more in zip(total, torch.autograd.grad(loss, parameters)):
            one += more
    return torch.cat([one.flatten().double() for one in total])


for micro_batches in (4, 16, 64):
    exact = added_up(micro_batches, torch.float32)
    error = (added_up(micro_batches, torch.bfloat16) - exact).norm() / exact.norm()
    print(f"{micro_batches:3} micro-batches: {error:.1%} off")

# %% [markdown]
# Here four times as many micro-batches make twice the error, and nothing is raised.
#
# The same happens to the *weights*. AdamW's first step moves a weight by about the learning rate. How many of the weights change at all in four steps?


# %%
def share_moved(dtype, lr):
    model = small_decoder(num_hidden_layers=1).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(4):
        model(input_ids=pieces(4, 64), labels=pieces(4, 64)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    moved = sum((old != new).sum().item() for old, new in zip(before, model.parameters()))
    return moved / sum(old.numel() for old in before)


for lr in (1e-3, 1e-4, 1e-5):
    print(
        f"learning rate {lr:.0e}: float32 {share_moved(torch.float32, lr):4.0%}, "
        f"bf16 {share_moved(torch.bfloat16, lr):4.0%}"
    )
weight = torch.tensor(0.02, dtype=torch.bfloat16)
above = torch.nextafter(weight, torch.ones_like(weight))
print(f"from 0.02 to the next number of bf16: {(above - weight).item():.5f}")

# %% [markdown]
# The smaller the learning rate, the fewer weights notice. A weight of 0.02 moves only if the step is at least half of that distance; a step of 0.00001 is rounded back, every time.
#
# A cure is to keep *master weights* in float32 (mixed-precision training, [arXiv 1710.03740](https://arxiv.org/abs/1710.03740)). The optimizer steps them, with gradients that were added up in float32, and the model computes with their rounded copy.
# Autocast does the same from the other side: its weights *are* the masters, and the products get copies of them in bf16.
#
# ## Exercise: master weights
#
# *Difficulty* *** · *10 minutes* · *Why*: both of its roundings can be in the wrong place without an error.
#
# Write `train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps)`.
#
# - The weights of `model` are bf16, some may be frozen. `make_optimizer(tensors)` gives an optimizer for a list of tensors. `loss_function(outputs, targets)` is the mean over a micro-batch, in float32.
# - `micro_batches` is a list of `(inputs, targets)` of equal size, their number a multiple of `accumulation_steps`. It stays as it is.
# - For each window the optimizer steps *float32 masters* once, with the mean gradient of its micro-batches, added up in float32. After each step the trained weights of `model` are the masters, rounded to bf16. Masters begin as the weights.
# - `.grad` of the model is `None` at the start and at the end. (If you hook into its weights, take the hooks off at the end.)


# %%
put_in_order("train_with_masters")


# %% exercise="train_with_masters" points=3
def train_with_masters(model, make_optimizer, loss_function, micro_batches, accumulation_steps):
    """Train a bf16 model: gradients are added up and steps are taken in float32."""
    # BEGIN SOLUTION
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    masters = [weight.detach().float() for weight in weights]
    optimizer = make_optimizer(masters)
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        for weight, master in zip(weights, masters):
            added = weight.grad.float()
            master.grad = added if master.grad is None else master.grad + added
            weight.grad = None
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for weight, master in zip(weights, masters):
                    weight.copy_(master)
    # END SOLUTION


# %% check="train_with_masters"
check(train_with_masters)

# %% [markdown]
# What it costs: for each weight 2 bytes for the model and 4 for the master, 4 for the sum of gradients and 8 for AdamW's state, 18 together (and 2 for the gradients of one micro-batch, until they are added). Training in float32 takes 16. With masters bf16 saves activations, *not* the bytes of a weight.
#
# ## All of it on one plane
#
# The small decoder with 4 texts of 128 tokens for each step: as it is, checkpointed, accumulated, with the loss in chunks, and with eager attention.


# %%
def measure_decoder(
    micro_batch, accumulation_steps=1, checkpointing="off", attention="sdpa", loss_chunk=None
):
    checkpointed = checkpointing not in ("off", 0, False)
    samples = micro_batch * accumulation_steps
    if samples * 128 > len(stream):
        raise ValueError(f"The stream of {len(stream):,} tokens has no {samples} texts.")
    window = pieces(samples, 128)
    loss_of = in_chunks(loss_chunk) if loss_chunk else without
    return measure(
        lambda: train(
            loss_of, window, 2, accumulation_steps, checkpointed, attn_implementation=attention
        ),
        name=f"{micro_batch} x {accumulation_steps}"
        + ", chunks" * bool(loss_chunk)
        + ", checkpointed" * checkpointed
        + ", eager" * (attention == "eager"),
        samples=2 * samples,
        model="small decoder",
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
        checkpointing="every layer" if checkpointed else "off",
        attention=attention,
        loss_chunk=loss_chunk,
        sequence_length=128,
        repeats=1,
    )


whole_runs = [measure_decoder(4), measure_decoder(4, checkpointing="every layer")]
chunked_runs = [
    measure_decoder(4, loss_chunk=128),
    measure_decoder(4, checkpointing="every layer", loss_chunk=128),
]
plot_memory(whole_runs + chunked_runs)

# %% [markdown]
# Four bars with the whole batch: as it is; checkpointed; the loss in chunks; both. Checkpointing takes the layers' activations away and leaves the logits; chunks take the logits away and leave the layers. Only together do both go.
#
# The same points beside the accumulated one and the one with eager attention. What is not there yet, such as chunks in a smaller micro-batch, you can measure.

# %%
others = [measure_decoder(1, 4), measure_decoder(4, attention="eager")]
explorer(whole_runs + chunked_runs + others, measure=measure_decoder)

# %% [markdown]
# ## What to keep
#
# - With the large vocabulary the logits were the largest tensors, and the backward pass of the loss holds three copies of them in float32. A name that holds the model's output adds one.
# - They grow with the tokens of a micro-batch and with the vocabulary. Checkpointing layers leaves them; a smaller micro-batch or a loss in chunks does not.
# - The loss in chunks is checkpointing applied to the head: one more product with the head, and the same gradients but for rounding.
# - Eager attention keeps a table of length x length for every head; the fused one keeps its output and one number for each query. Its products still grow with the square of the length.
# - In bf16 small additions vanish: add gradients up in float32, and step float32 weights.
#
# Next: [Decoders with Accelerate](2_accelerator.ipynb): tokens counted over windows and ranks, and adapters.
