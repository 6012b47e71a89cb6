# %% [markdown]
# # A museum of real bugs: counted, rounded, recomputed
#
# **You will be able to** find faults that no loop shows: in what a loss is divided by, in the type that gradients are added up in, in what checkpointing computes twice, and in what devices send each other.
#
# **Minutes**: 50, with a place to stop · **Before this**: [the first half of the museum](2_bug_museum.ipynb) and [Checkpointing in PyTorch](../2_checkpointing/1_pytorch.ipynb).

# %% [markdown]
# ## A question
#
# In August 2026 somebody switched checkpointing off, which should leave the loss where it is. The loss moved, and it was the better one that was right. In the first half of the museum the fault was in the training loop. Here nearly every loop looks right.
#
# Where else can a training become another one, without an error?

# %%
import tempfile
import warnings
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
import transformers
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from trainlean import (
    check,
    guess,
    hint,
    recall,
    reveal,
    same_training,
)
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

transformers.logging.set_verbosity_error()

# %%
recall("6_your_own/2b_bug_museum_recomputed")

# %% [markdown]
# ## Room 3: what a loss is divided by
#
# ### 15. Every device its own mean
#
# **Reported**: [transformers, issue 34242](https://github.com/huggingface/transformers/issues/34242) (October 2024): the divisor had just been mended to count the tokens of all accumulation steps; those of the other devices were left out.
#
# The witness again, with one weight for each token. Device 0 has a text of 2 tokens, device 1 one of 6. DDP takes the mean of the devices' gradients:


# %%
def receipt_of_devices(loss_of, texts=(2, 6)):
    """The shares of all tokens after the mean over the devices."""
    tokens = sum(texts)
    total = torch.zeros(tokens)
    for part in torch.eye(tokens).split(list(texts)):
        witness = nn.Linear(tokens, 1, bias=False)
        loss_of(witness(part), tokens, len(texts)).backward()
        total += witness.weight.grad[0] / len(texts)  # what DDP's all-reduce does
    return total


def own_mean(outputs, all_tokens, devices):
    return outputs.mean()


# %% [markdown]
# **Predict.** How many times does a token of the short text count, compared with one of the long text?

# %%
# BEGIN SOLUTION
my_guess = 2
# END SOLUTION
guess("a short text's token in exhibit 15", my_guess, "times a long text's")


# %%
def by_all_tokens(outputs, all_tokens, devices):
    return outputs.sum() / all_tokens * devices


for name, loss_of in {"own mean": own_mean, "by all tokens (cured)": by_all_tokens}.items():
    receipt = receipt_of_devices(loss_of)
    print(f"{name:22}", " ".join(f"{share:.3f}" for share in receipt.tolist()))
receipt = receipt_of_devices(own_mean)
reveal(
    "a short text's token in exhibit 15",
    round((receipt[0] / receipt[-1]).item(), 2),
    "times a long text's",
)

# %% [markdown]
# **Cure**: the tokens of all devices are counted before the backward pass, and the loss is multiplied by the number of devices, because DDP divides by it.
#
# **Versions**: transformers has had `average_tokens_across_devices` since 4.46.2 (pull request [34373](https://github.com/huggingface/transformers/pull/34373)); it has been on since 4.54.0 ([39395](https://github.com/huggingface/transformers/pull/39395)).
#
# ### 16. The first token is nobody's target
#
# **Reported**: [transformers, pull request 46204](https://github.com/huggingface/transformers/pull/46204) (May 2026): the Trainer counted labels, but a language model predicts only those from the second on. A text whose first label is not -100 counted one too many, and the gradients were too short by that.
#
# It was mended for models whose loss is known by name. **Predict**: is GPT-2 among them? Four texts of 8 tokens have 28 targets.

# %%
numbers = torch.arange(32).view(4, 8)
rows = [{"input_ids": row, "labels": row} for row in numbers]
config = GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=50, bos_token_id=0, eos_token_id=0)


def targets_counted(model):
    """What the Trainer divides the loss of these four texts by."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(folder, per_device_train_batch_size=1, use_cpu=True)
        trainer = Trainer(model, arguments, train_dataset=rows)
        batches = iter(trainer.get_train_dataloader())
        return int(trainer.get_batch_samples(batches, 4, torch.device("cpu"))[1])


counted = targets_counted(GPT2LMHeadModel(config))
print(f"transformers {transformers.__version__} counts {counted} targets")
print(f"the gradient is {28 / counted:.3f} times the right one")

# %% [markdown]
# Not in the version installed here, and the large batch has the same factor: comparing accumulation with it shows nothing. A comparison with a plain `backward()` does.
#
# **Cure**: name the loss before the Trainer is built, or give each text the label -100 in its first place.

# %%
named = GPT2LMHeadModel(config)
named.loss_type = "ForCausalLM"  # the loss that it takes anyway
print("counted, with the loss named:", targets_counted(named))

# %% [markdown]
# **Versions**: 4.46.0 and 4.46.1 counted targets, 4.46.2 to 5.10.0 labels. 5.23 counts Llama's targets and GPT-2's labels.
#
# ### 17. Negatives of other micro-batches
#
# **Reported**: [sentence-transformers, issue 2916](https://github.com/huggingface/sentence-transformers/issues/2916) (August 2024) asked whether the negatives of other micro-batches count, that is, the texts that are not a text's partner.


# %%
def contrast(embeddings, partners):
    """Each text must find its own partner among all that are there."""
    return cross_entropy(embeddings @ partners.T, torch.arange(len(embeddings)))


def encoder_and_texts():
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    texts = torch.randn(16, 8)
    return encoder, texts, texts + 0.3 * torch.randn(16, 8)


def train_contrastive(micro_batch, accumulation_steps):
    encoder, texts, partners = encoder_and_texts()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    parts = zip(texts.split(micro_batch), partners.split(micro_batch))
    for number, (some, their_partners) in enumerate(parts, start=1):
        loss = contrast(encoder(some), encoder(their_partners))
        (loss / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown]
# **Predict.** Is the loop right? Is the training?

# %%
same_training(train_contrastive, batch=16, accumulation_steps=4)

# %% [markdown]
# The loop is right, the training is not: no text sees those of other micro-batches.
#
# **Cure**: not in the loop. Embed everything without a graph, take the loss over all embeddings and keep *their* gradients, then send each portion through once more (with dropout, from the same random state) and hand it its part ([GradCache](https://github.com/luyug/GradCache), [arXiv:2101.06983](https://arxiv.org/abs/2101.06983); in sentence-transformers `CachedMultipleNegativesRankingLoss`).


# %%
def train_cached(micro_batch, accumulation_steps):
    encoder, texts, partners = encoder_and_texts()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    window = micro_batch * accumulation_steps
    for some, their_partners in zip(texts.split(window), partners.split(window)):
        portions = [*some.split(micro_batch), *their_partners.split(micro_batch)]
        with torch.no_grad():
            embeddings = [encoder(portion) for portion in portions]
        together = torch.cat(embeddings).requires_grad_()
        contrast(*together.chunk(2)).backward()
        for portion, gradient in zip(portions, together.grad.split(micro_batch)):
            encoder(portion).backward(gradient)
        optimizer.step()
        optimizer.zero_grad()


print(same_training(train_cached, batch=16, accumulation_steps=4).outcome)

# %% [markdown]
# **Versions**: `CachedMultipleNegativesRankingLoss` came with sentence-transformers 2.3.0.
#
# ### 18. A sum that stops growing
#
# **Reported**: [DeepSpeed, issue 2352](https://github.com/deepspeedai/DeepSpeed/issues/2352) (September 2022): train in bf16, but add gradients up in fp32.
#
# A weight in bf16 has its `.grad` in bf16, where nothing else is said: 8 bits of precision. All micro-batches have the same gradient here, so their mean is 1.


# %%
def accumulated_mean(k, dtype):
    """The mean of k gradients of 1, as .grad adds it up in this type."""
    weight = torch.zeros(1, dtype=dtype, requires_grad=True)
    for _ in range(k):
        (weight.sum() / k).backward()
    return weight.grad.item()


# %% [markdown]
# **Predict.** 4096 micro-batches. What is their mean in bf16?

# %%
# BEGIN SOLUTION
my_guess = 0.99
# END SOLUTION
guess("mean of 4096 ones in bf16", my_guess, "times the right one")

# %%
for k in (16, 256, 1024, 4096):
    low, high = accumulated_mean(k, torch.bfloat16), accumulated_mean(k, torch.float32)
    print(f"k = {k:4}: bf16 {low:.4f}, fp32 {high:.4f}")
reveal("mean of 4096 ones in bf16", low, "times the right one")

# %% [markdown]
# When the sum is 256 times as large as what is added, adding changes nothing here any more.
#
# **Cure**: keep the weights in fp32 and compute in bf16 (`torch.autocast`): then `.grad` is fp32. In DeepSpeed it is the setting `grad_accum_dtype`.
#
# **Versions**: DeepSpeed has had the setting since 0.7.6, which with ZeRO takes no other type than the model's; torch 2.13 adds up in the type of the weight, as here, unless its `grad_dtype` is another.
#
# **A good place to stop for today.** What follows is about checkpointing and devices.
#
# ## Room 4: what runs twice
#
# ### 19. Another mask
#
# **Reported**: [OLMo-core, pull request 828](https://github.com/allenai/OLMo-core/pull/828) (August 2026): after 150 steps the loss was 2.495 with checkpointing and 2.195 without. [guided-diffusion, issue 167](https://github.com/openai/guided-diffusion/issues/167) (December 2025) found it in that project's own helper.


# %%
def train_with_dropout(micro_batch, accumulation_steps, checkpointing, keep_state=False):
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.5), nn.Tanh())
    head = nn.Linear(32, 1)
    optimizer = torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)
    data = torch.randn(16, 8)
    for number, batch in enumerate(data.split(micro_batch), start=1):
        if checkpointing:
            hidden = checkpoint(block, batch, use_reentrant=False, preserve_rng_state=keep_state)
        else:
            hidden = block(batch)
        (mse_loss(head(hidden)[:, 0], batch[:, 0]) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


# %% [markdown]
# **Predict.** Which is wrong with another mask in the recomputation: the loss of the first micro-batch, its gradient, or both?

# %%
same_training(train_with_dropout, batch=16, accumulation_steps=2, checkpointing=True)

# %% [markdown]
# The gradient. The first forward pass, and so its loss, is as it should be; the backward pass asks for the activations and gets those of another mask. What comes back from the loss belongs to the first mask and goes through the second: what comes out is the gradient of no network.
#
# **Cure**: leave `preserve_rng_state` at its default, `True`. In OLMo-core it had been off.
#
# **Versions**: OLMo-core 2.6.0 and 3.0.0 do not look whether there is dropout.


# %%
def train_with_kept_state(micro_batch, accumulation_steps, checkpointing):
    train_with_dropout(micro_batch, accumulation_steps, checkpointing, keep_state=True)


found = same_training(train_with_kept_state, batch=16, accumulation_steps=2, checkpointing=True)
print(found.outcome)

# %% [markdown]
# ### 20. Averages that move twice
#
# **Reported**: [pytorch, issue 96136](https://github.com/pytorch/pytorch/issues/96136) (March 2023, open when this was written); [YOLO-Master, issue 262](https://github.com/Tencent/YOLO-Master/issues/262) found it in September 2026 while comparing states, after losses and gradients had been equal.


# %%
def running_mean_after(checkpointing, momentum=0.1):
    """The running mean of batch norm after three steps, and how many batches it counted."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=momentum))
    for batch in torch.randn(48, 4).split(16):
        out = checkpoint(block, batch, use_reentrant=False) if checkpointing else block(batch)
        out.square().sum().backward()
    return block[1].running_mean, block[1].num_batches_tracked.item()


# %% [markdown]
# **Predict.** Batch norm keeps a running mean with momentum 0.1. What momentum would make two updates with the same batch count as one?

# %%
plain, batches = running_mean_after(checkpointing=False)
twice, counted = running_mean_after(checkpointing=True)
print(f"batches counted: {batches} and, checkpointed, {counted}")
print(f"running means differ by up to {(plain - twice).abs().max():.3f}")

# %% [markdown]
# Each update keeps $1 - m$ of the old value, two of them keep $(1 - m)^2$. So $m' = 1 - \sqrt{1 - m}$:

# %%
root = 1 - (1 - 0.1) ** 0.5
cured, _ = running_mean_after(checkpointing=True, momentum=root)
print(f"momentum {root:.4f}: equal", torch.allclose(plain, cured, atol=1e-6))

# %% [markdown]
# That is a **cure** here (pytorch-pfn-extras [does this](https://github.com/pfnet/pytorch-pfn-extras/pull/117)); the counter still counts twice. Leaving batch norm outside the checkpointed block is another.
#
# **Versions**: torch 2.13 still; pytorch-pfn-extras has had the cure since 0.4.0.
#
# ### 21. Adapters under checkpointing
#
# **Reported**: [open-unlearning, issue 178](https://github.com/locuslab/open-unlearning/issues/178) (March 2026): with checkpointing not everything was trained that should have been. [cloneofsimo/lora, issue 26](https://github.com/cloneofsimo/lora/issues/26) had met the same in December 2022.


# %%
class Adapted(nn.Module):
    """A frozen layer with a trainable adapter beside it, as LoRA adds one."""

    def __init__(self, width=8):
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down = nn.Linear(width, 2, bias=False)
        self.up = nn.Linear(2, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden):
        return hidden + torch.tanh(self.base(hidden) + self.up(self.down(hidden)))


def learning_adapters(reentrant):
    """How many of four adapters get a gradient, and what torch warned of."""
    torch.manual_seed(0)
    blocks, head = [Adapted() for _ in range(4)], nn.Linear(8, 1)
    hidden = nn.Embedding(10, 8).requires_grad_(False)(torch.arange(6))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for block in blocks:
            hidden = checkpoint(block, hidden, use_reentrant=reentrant)
        head(hidden).square().mean().backward()
    learning = sum(block.up.weight.grad is not None for block in blocks)
    return learning, {str(warning.message) for warning in seen}


# %% [markdown]
# **Predict.** The embedding is frozen, the adapters train, and each block is checkpointed in the older, reentrant way. How many of four adapters get a gradient?

# %%
# BEGIN SOLUTION
my_guess = 3
# END SOLUTION
guess("adapters that learn in exhibit 21", my_guess, "of 4")

# %%
learning, messages = learning_adapters(reentrant=True)
reveal("adapters that learn in exhibit 21", learning, "of 4")
print("torch warned:", *messages)
print("not reentrant:", learning_adapters(reentrant=False)[0], "of 4")

# %% [markdown]
# The reentrant variant asks whether an *input* needs a gradient. None does, so it returns a tensor without one, and so on from block to block. The head learns alone, the adapters stay as they began, and the loss can fall all the same.
#
# **Cure**: `use_reentrant=False`. Where that cannot be changed, let the input require a gradient: in transformers that is `model.enable_input_require_grads()`.
#
# **Versions**: torch 2.13 still. transformers 5.23 calls that itself for a model of `input_ids` when checkpointing is switched on.
#
# ### 22. An error that names something else
#
# **Reported**: [FocalNet, issue 4](https://github.com/microsoft/FocalNet/issues/4) (May 2022), [ms-swift, issue 3171](https://github.com/modelscope/ms-swift/issues/3171) (February 2025) and others, for DDP with checkpointing: "Expected to mark a variable ready only once". The message offers two causes: a parameter used outside `forward`, and one that several checkpoints use.
#
# DDP can be tried in one process. A process group of one sends nothing to anybody, but hooks, flags and this error are there.


# %%
class HalfCheckpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 1), reentrant
        self.spare = nn.Linear(4, 1)  # unused: why people ask for the search below

    def forward(self, batch):
        return checkpoint(self.second, self.first(batch), use_reentrant=self.reentrant)


@contextmanager
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def ddp_outcome(reentrant, find_unused, static_graph=False):
    model = DistributedDataParallel(
        HalfCheckpointed(reentrant),
        find_unused_parameters=find_unused,
        static_graph=static_graph,
    )
    try:
        for _ in range(2):  # DDP sees only in the second step that the first one is not finished
            model(torch.randn(2, 4)).sum().backward()
    except RuntimeError as error:
        return str(error).split(".")[0]
    return "works"


# %% [markdown]
# **Predict.** Two flags: `use_reentrant`, and `find_unused_parameters`, which lets DDP search the graph for weights that get no gradient. Which of the four combinations fail, in one of two steps?

# %%
with one_process():
    for find_unused in (False, True):
        for reentrant in (False, True):
            outcome = ddp_outcome(reentrant, find_unused)
            print(f"find_unused {find_unused!s:5} reentrant {reentrant!s:5}: {outcome}")

# %% [markdown]
# Three of four. Without the search `spare`, which gets no gradient, stops the second step, and the rest of that error says so. With the search and a reentrant checkpoint it is the other error.
#
# Neither of its two causes is in this model: no parameter is used outside `forward`, or by two checkpoints. The search follows the graph of the output, and a reentrant checkpoint hides what is inside it. So `second` looks unused and is ticked off; then the backward pass inside the backward pass reports its gradient all the same.
#
# **Cure**: `use_reentrant=False`. The message itself proposes another, `_set_static_graph()`, which is the argument `static_graph=True` today. It asks that each step uses the same parameters. Here it is tried without accumulation; with `no_sync` from the first window on, torch 2.13 stops with an internal error.

# %%
with one_process():
    for reentrant in (False, True):
        outcome = ddp_outcome(reentrant, find_unused=False, static_graph=True)
        print(f"static graph,     reentrant {reentrant!s:5}: {outcome}")

# %% [markdown]
# **Versions**: torch 1.10.0 (FocalNet's report) and 2.13.
#
# ## Room 5: what is sent
#
# ### 23. Slower on several GPUs
#
# **Reported**: [ClassyVision, pull request 706](https://github.com/facebookresearch/ClassyVision/pull/706) (February 2021; no release had the fault), [SpeechBrain, issue 1802](https://github.com/speechbrain/speechbrain/issues/1802) (January 2023), where several GPUs were slower than one, and [LoongForge, pull request 163](https://github.com/baidu-baige/LoongForge/pull/163) (August 2026): `no_sync` stood around `backward()` only.


# %%
def all_reduces(around, k=4):
    """How often DDP would send gradients in a window of k, with no_sync around this."""
    model, sent = DistributedDataParallel(nn.Linear(4, 1)), []

    def count(state, bucket):  # answers in place of an all-reduce
        sent.append(bucket.index())
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, count)
    for number in range(1, k + 1):
        quiet = model.no_sync if number < k else nullcontext
        with quiet() if around in ("forward", "both") else nullcontext():
            loss = model(torch.randn(2, 4)).mean() / k
            if around == "both":
                loss.backward()
        if around != "both":
            with quiet() if around == "backward" else nullcontext():
                loss.backward()
    return len(sent)


# %% [markdown]
# **Predict.** A window of four. How many all-reduces with `no_sync` around `backward()` alone, as in the reports?

# %%
# BEGIN SOLUTION
my_guess = 1
# END SOLUTION
guess("all-reduces in exhibit 23", my_guess, "in a window of four")

# %%
with one_process():
    counts = {around: all_reduces(around) for around in ("nothing", "backward", "forward", "both")}
for around, count in counts.items():
    print(f"no_sync around {around:8}: {count}")
reveal("all-reduces in exhibit 23", counts["backward"], "in a window of four")

# %% [markdown]
# DDP decides in the *forward* pass whether this backward pass will send. So nothing was saved, and nothing was wrong: the gradients are the same. This fault shows in a count of all-reduces.
#
# **Cure**: forward and backward inside, the last micro-batch outside. `accelerator.accumulate(model)` does that.
#
# **Versions**: SpeechBrain from 0.5.13 to 0.5.16, cured in 1.0.0.
#
# ### 24. The same flag, set a line too late
#
# **Reported**: [build-nanogpt, pull request 30](https://github.com/karpathy/build-nanogpt/pull/30) (June 2024): one accumulation step had become four, a change that should not move the loss. After 1000 steps the validation loss was 4.88, and 4.15 with the pull request.
#
# The loop had no `no_sync`. It set the flag that `no_sync` sets, between the forward pass and `backward()`:


# %%
def who_sends(flag_first, windows=2, k=4):
    """The micro-batches, numbered within their window, whose backward pass sends gradients."""
    model, sent = DistributedDataParallel(nn.Linear(4, 1)), []

    def note(state, bucket):  # answers in place of an all-reduce
        sent.append(number)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, note)
    for number in list(range(1, k + 1)) * windows:
        if flag_first:
            model.require_backward_grad_sync = number == k
        loss = model(torch.randn(2, 4)).mean() / k
        model.require_backward_grad_sync = number == k
        loss.backward()
    return sent


# %% [markdown]
# **Predict.** Two windows of four. Which micro-batches send?

# %%
with one_process():
    print("set after the forward pass: ", who_sends(flag_first=False))
    print("set before it (cured):      ", who_sends(flag_first=True))

# %% [markdown]
# The first of each window: its forward pass finds the flag that the last window left behind (in the first window, the one that DDP begins with). One all-reduce for a window, as it should be, but what the other three add is never sent. Each device steps with a quarter of the mean and three quarters of its own, and the copies drift apart. Exhibit 23 sent too often and was right; this one is wrong.
#
# **Cure**: set the flag before the forward pass, or use `no_sync` around both.
#
# **Versions**: torch 2.3.1 (the report) and 2.13 read the flag in the forward pass; the script was cured in June 2024.
#
# ## Exercise: cure the checkpointed blocks
#
# *Difficulty* ** · *6 minutes* · *Why*: two arguments, two faults of room 4. Torch 2.13 still takes `use_reentrant=True`, with a warning, where nothing is said.
#
# ```python
# def run_blocks(blocks, hidden):
#     for block in blocks:
#         hidden = checkpoint(block, hidden, use_reentrant=True, preserve_rng_state=False)
#     return hidden
# ```
# Write it again as `cured_blocks`. `blocks` is a list of modules, some with dropout, some with frozen layers and an adapter, some frozen as a whole; `hidden` may come from a frozen embedding.
#
# - Every trainable weight gets the gradient that it has without checkpointing, under the same seed.
# - Each block is still checkpointed by itself: it runs once in the forward pass, and once more in the backward pass, just before its own; a block through which no gradient goes need not run again. A block may stand in the list twice.


# %% exercise="cured_blocks" points=3
def cured_blocks(blocks, hidden):
    """Run the blocks, each one checkpointed, without changing what is learned."""
    # BEGIN SOLUTION
    output = hidden
    for block in blocks:
        output = checkpoint(block, output, use_reentrant=False)
    return output
    # END SOLUTION


# %% check="cured_blocks"
check(cured_blocks)

# %% [markdown]
# `hint(cured_blocks)` helps on request.
#
# ## What to keep
#
# - Ask what a loss is divided by, over the whole window and all devices: labels, targets, tokens of this device.
# - A comparison with the large batch finds what accumulation changes. It does not find a factor that both have (exhibit 16), nor what is only sent too often (23), nor, on one device, what needs a second one to show (15, 24).
# - A loss that compares samples cannot be accumulated by adding up gradients; it can be cached.
# - Compare buffers too: batch norm's averages moved twice.
# - Under checkpointing, ask whether the second run computes the same and moves nothing a second time (averages, counters), and whether the backward pass reaches every weight inside. `same_training(..., checkpointing=True)` compares.
# - DDP can be tried in one process, with its flags, hooks and errors.
#
# Next: [Fit the budget](3_fit_the_budget.ipynb), a model that you have not met.
