# %% [markdown]
# # Decoders with the Trainer
#
# **You will be able to** have the Trainer count tokens over devices, give it a loss in chunks, and evaluate without collecting the logits of a whole data set.
#
# **Minutes**: 65, with a place to stop · **Before this**: [Decoders with Accelerate](2_accelerator.ipynb) and [Accumulation: Trainer](../1_accumulation/3_trainer.ipynb).

# %% [markdown]
# ## A question
#
# The divisor over windows and devices, checkpointing, bf16: the Trainer has an argument for each. The loss in chunks has none that runs here. And evaluation, where nothing is trained, may collect the logits of a whole data set. What of them does a metric need?

# %%
import os
import tempfile
import warnings

import pandas as pd
import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
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
    recall,
    reveal,
    small_decoder,
    start_devices,
    stop_devices,
)
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # two ranks on the CPU, on machines with GPUs too
torch.set_num_threads(1)
# peft 0.21 asks transformers for a name that will go with version 6.
warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)

# %%
recall("5_decoders/3_trainer")

# %% [markdown]
# ## The same training again
#
# Texts with padding at the end; a padded position is no target. No attention mask is needed.


# %%
def texts(number):
    [batch] = batches(load_reviews()[:number], number, max_length=64, shuffle=False)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    return [{"input_ids": ids, "labels": one} for ids, one in zip(batch["input_ids"], labels)]


def arguments(**changes):
    recipe = {
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "num_train_epochs": 1,
        "learning_rate": 0.5,
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
    return TrainingArguments(tempfile.mkdtemp(), **recipe | changes)


def train(kind=Trainer, number=16, **changes):
    model = small_decoder(num_hidden_layers=2)
    trainer = kind(model=model, args=arguments(**changes), train_dataset=texts(number))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return model


def by_hand(number=16, window=8):
    """The large batch: the mean over all targets of the window."""
    model = small_decoder(num_hidden_layers=2)
    for start in range(0, number, window):
        part = texts(number)[start : start + window]
        ids, labels = (torch.stack([one[name] for one in part]) for name in ("input_ids", "labels"))
        logits = model(input_ids=ids).logits[:, :-1]
        cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()).backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.5 * weight.grad
        model.zero_grad()
    return model


def apart(one, other):
    return max((a - b).abs().max().item() for a, b in zip(one.parameters(), other.parameters()))


large = by_hand()
print("moved:", apart(large, small_decoder(num_hidden_layers=2)) > 0.01)
for name, changes in {
    "2 x 4": {},
    "8 x 1": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1},
    "2 x 4, checkpointed": {"activation_checkpointing": True},
}.items():
    print(f"{name}: same weights as by hand, to 1e-6:", apart(train(**changes), large) < 1e-6)

# %% [markdown]
# The same weights as from the loop in PyTorch: the Trainer fetches the window ahead, counts its targets and hands their number to the model as `num_items_in_batch`. `LlamaForCausalLM` divides by it.
#
# Accelerate's loop of the lesson before divides by the same number. On the same texts, then:


# %%
def by_accelerate(number=16, window=8, micro_batch=2):
    accelerator = Accelerator(cpu=True)
    model = small_decoder(num_hidden_layers=2)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.5))
    for start in range(0, number, window):
        part = texts(number)[start : start + window]
        count = sum((one["labels"][1:] != -100).sum() for one in part)
        for first in range(0, window, micro_batch):
            ids, labels = (
                torch.stack([one[name] for one in part[first : first + micro_batch]])
                for name in ("input_ids", "labels")
            )
            logits = model(input_ids=ids).logits[:, :-1].flatten(0, 1)
            loss = cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum")
            accelerator.backward(loss / count)
        optimizer.step()
        optimizer.zero_grad()
    return model


ways = {"PyTorch": large, "Accelerate": by_accelerate(), "Trainer": train()}
pd.DataFrame(
    {f"as {one}": {two: apart(ways[one], ways[two]) < 1e-6 for two in ways} for one in ways}
)

# %% [markdown]
# PyTorch at once, Accelerate and the Trainer in four parts: the same weights, each pair to 1e-6.
#
# ## Two devices
#
# `average_tokens_across_devices` is the argument for what you wrote in the last lesson. It is on unless you say otherwise. What happens without it? One step of 8 texts, on two ranks with 2 x 2 each, compared with the large batch.

# %%
devices = start_devices(2)

# %%
# %%px
import tempfile

import torch
from torch.nn.functional import cosine_similarity, cross_entropy
from trainlean import Meter, batches, load_reviews, small_decoder
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

torch.set_num_threads(1)
[batch] = batches(load_reviews()[:8], 8, max_length=64, shuffle=False)
labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
data = [{"input_ids": ids, "labels": one} for ids, one in zip(batch["input_ids"], labels)]


def flat(model):
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def step_of(across):
    args = TrainingArguments(
        tempfile.mkdtemp(),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=1,
        learning_rate=0.5,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        average_tokens_across_devices=across,
    )
    model = small_decoder(num_hidden_layers=2)
    start = flat(model)
    trainer = Trainer(model=model, args=args, train_dataset=data)
    trainer.remove_callback(PrinterCallback)
    with Meter() as meter:
        trainer.train()
    return start - flat(model), meter.collectives


model = small_decoder(num_hidden_layers=2)
logits = model(input_ids=batch["input_ids"]).logits[:, :-1]
cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten()).backward()
large = 0.5 * torch.cat([weight.grad.flatten() for weight in model.parameters()])
for across in (True, False):
    step, collectives = step_of(across)
    if rank == 0:
        print(
            f"{str(across):5}: {step.norm() / large.norm():.3f} times as long, "
            f"cosine {cosine_similarity(step, large, dim=0):.3f}"
        )
        gathers = collectives["all-gather"]
        print(f"       all-gathers: {gathers['calls']}, {gathers['payload']} bytes handed over")

# %%
stop_devices()

# %% [markdown]
# With it the step is that of the large batch. Without it each rank divides by its own targets and DDP averages the means: another direction. For this window the argument costs one all-gather more, of one number.
#
# ## Exercise: the weight of a token
#
# *Difficulty* ** · *6 minutes* · *Why*: it says what a token weighs without the argument, from the counts alone.
#
# Write `token_weights(targets, across)`. `targets[r]` is the number of targets in the window of rank $r$; the list stays as it is. Return a list with one number for each rank: the factor with which the gradient of *one token's loss* on that rank enters the gradient that DDP leaves in `.grad`, with `average_tokens_across_devices=across`.


# %% exercise="token_weights" points=2
def token_weights(targets, across):
    """For each rank, the factor of one of its tokens in the averaged gradient."""
    # BEGIN SOLUTION
    if across:
        return [1 / sum(targets)] * len(targets)
    return [1 / (len(targets) * own) for own in targets]
    # END SOLUTION


# %% check="token_weights"
check(token_weights)

# %% [markdown]
# ## The loss in chunks
#
# TrainingArguments has `use_liger_kernel`, which puts Liger's fused loss into the model; it needs a package of its own, and is not tried here. Instead, a Trainer's `compute_loss` can be written anew. It is handed the model, a micro-batch and the number of targets of the whole window, and what it returns goes to `backward`. (Where the Trainer has not counted, the number is `None`.)
#
# ## Exercise: a loss for the Trainer
#
# *Difficulty* *** · *10 minutes* · *Why*: this is how any loss of your own gets into the Trainer, with the right divisor.
#
# Write `loss_in_chunks(model, inputs, num_items_in_batch, chunk)`.
#
# - `model.model(input_ids=...)` gives an object with `last_hidden_state` `[texts, length, hidden size]`, and `model.lm_head.weight` is the head. `inputs` has `input_ids` and `labels` and stays as it is; position $t$ predicts label $t + 1$, and -100 does not count.
# - Return the sum of the losses of this micro-batch's targets, divided by `num_items_in_batch`, the number of targets of the whole window. Where that is `None`, as for a caller who does not know the window, divide by the targets of this micro-batch.
# - As in the [first lesson](1_pytorch.ipynb): logits of at most `chunk` tokens at a time, and none of them between forward and backward. The last position of a text predicts nothing, so it needs no logits. What stands below the head may be frozen.


# %% exercise="loss_in_chunks" points=3
def loss_in_chunks(model, inputs, num_items_in_batch, chunk):
    """This micro-batch's part of the window's mean loss, computed in chunks of tokens."""
    # BEGIN SOLUTION
    hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    targets = inputs["labels"][:, 1:].flatten()
    head = model.lm_head.weight

    def sum_of(hidden, targets):
        return cross_entropy(hidden @ head.T, targets, reduction="sum")

    total = 0
    for one, wanted in zip(hidden.split(chunk), targets.split(chunk)):
        total = total + checkpoint(sum_of, one, wanted, use_reentrant=False)
    if num_items_in_batch is None:
        num_items_in_batch = targets.ne(-100).sum()
    return total / num_items_in_batch
    # END SOLUTION


# %% check="loss_in_chunks"
check(loss_in_chunks)

# %% [markdown]
# In a Trainer it is a few lines. `loss_is_scaled_for_ga` tells the Trainer that the loss is divided already, as it is where there is a number. On several devices the Trainer's own `compute_loss` multiplies by their number, as you did, while `average_tokens_across_devices` is on and there is a number, and so must ours. With `bf16=True` Accelerate puts autocast around the model's own `forward`. A loss that calls `model.model` goes around it, so it must switch autocast on itself. In evaluation `compute_loss` is asked for outputs beside the loss, and has none: so there is a loss and nothing for a metric.


# %%
def inside(model):
    """The decoder itself, where an adapter's wrapper is around it."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


class ChunkedTrainer(Trainer):
    loss_is_scaled_for_ga = True
    chunk = 64

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        with self.accelerator.autocast():  # does nothing in float32
            loss = loss_in_chunks(inside(model), inputs, num_items_in_batch, self.chunk)
        if self.args.average_tokens_across_devices and num_items_in_batch is not None:
            loss = loss * self.accelerator.num_processes
        return (loss, {}) if return_outputs else loss


def peak_of(kind, **changes):
    with Meter() as meter:
        model = train(
            kind, 16, per_device_train_batch_size=8, gradient_accumulation_steps=1, **changes
        )
    return meter.peak_bytes, apart(model, large) < 1e-6


large = by_hand()
print(
    "with bf16=True other weights than in float32:",
    apart(train(ChunkedTrainer, bf16=True), large) > 1e-5,
)
rows = []
for kind in (Trainer, ChunkedTrainer):
    for checkpointing in (False, True):
        peak, same = peak_of(kind, activation_checkpointing=checkpointing)
        rows.append(
            {
                "Trainer": kind.__name__,
                "checkpointing": checkpointing,
                "peak": format_bytes(peak),
                "same weights": same,
            }
        )
pd.DataFrame(rows)

# %% [markdown]
# The same weights four times. (As it stands the class runs on one device: DDP's wrapper has no `model.model`. There the whole loss goes into the model's own `forward`, as Llama's does, and only the factor stays in `compute_loss`.)
#
# **A good place to stop for today.** Training is done. What is left is evaluation.
#
# ## Where the logits come back
#
# Evaluation needs no backward pass, and so no softmax that is kept. But with `compute_metrics` the Trainer *collects what the model returned* for the whole evaluation set, and hands it over as one array. (You met its peak in [unit 1](../1_accumulation/3_trainer.ipynb); here it is counted.)
#
# **Predict.** 32 texts of 64 tokens are evaluated, 2 at a time. How many MiB has the array of predictions?

# %%
# BEGIN SOLUTION
my_guess = 2
# END SOLUTION
guess("predictions that are collected", my_guess, "MiB")


# %%
def evaluate(preprocess=None):
    """The predictions that compute_metrics gets, and the peak of memory."""
    got = []

    def compute_metrics(prediction):
        got.append(prediction.predictions)
        return {}

    trainer = Trainer(
        model=small_decoder(num_hidden_layers=2),
        args=arguments(per_device_eval_batch_size=2),
        eval_dataset=texts(32),
        compute_metrics=compute_metrics,
        preprocess_logits_for_metrics=preprocess,
    )
    trainer.remove_callback(PrinterCallback)
    with Meter() as meter:
        trainer.evaluate()
    return got[0], meter.peak_bytes


whole, peak = evaluate()
reveal("predictions that are collected", round(whole.nbytes / 2**20, 2), "MiB")
print(f"shape {whole.shape}, type {whole.dtype}, peak {format_bytes(peak)}")
print(f"one token with Llama's vocabulary: {format_bytes(4 * model_config('llama-1b').vocab_size)}")

# %% [markdown]
# One row of 4,000 numbers for each token of the data set: with Llama's vocabulary half a MiB for a *token*. This grows with the evaluation set, not with the batch; a run has died of it ([issue 8476](https://github.com/huggingface/transformers/issues/8476)).
#
# `preprocess_logits_for_metrics` is asked before anything is collected. The most probable token is all that an accuracy needs:

# %%
small, small_peak = evaluate(lambda logits, labels: logits.argmax(-1))
print(f"shape {small.shape}, type {small.dtype}, {format_bytes(small.nbytes)}")
print(f"peak {format_bytes(small_peak)}")

# %% [markdown]
# (Without `compute_metrics` no predictions are collected.)
#
# ## Exercise: bytes of an evaluation
#
# *Difficulty* * · *4 minutes* · *Why*: a minute of arithmetic tells it before the run.
#
# Write `evaluation_bytes(texts, length, vocabulary, preprocessed)`: the bytes of the array that `compute_metrics` gets for so many texts of this length. Logits are float32; with `preprocessed`, `logits.argmax(-1)` has been kept in their place, in its usual type.


# %% exercise="evaluation_bytes" points=1
def evaluation_bytes(texts, length, vocabulary, preprocessed):
    """Bytes of the collected predictions."""
    # BEGIN SOLUTION
    return texts * length * (8 if preprocessed else 4 * vocabulary)
    # END SOLUTION


# %% check="evaluation_bytes"
check(evaluation_bytes)

# %% [markdown]
# ## Exercise: a metric for tokens
#
# *Difficulty* ** · *6 minutes* · *Why*: the labels are shifted for the loss, not for your metric.
#
# Write `token_accuracy(predictions, labels)`. Both are NumPy arrays `[texts, length]` and stay as they are: the most probable tokens as `argmax` gave them for each position, and the labels, with -100 where nothing is to be predicted. Return the share of targets that were predicted right, as a number; position $t$ predicts label $t + 1$.


# %% exercise="token_accuracy" points=2
def token_accuracy(predictions, labels):
    """The share of the prediction targets that were right."""
    # BEGIN SOLUTION
    predicted, wanted = predictions[:, :-1], labels[:, 1:]
    counted = wanted != -100
    return float((predicted == wanted)[counted].mean())
    # END SOLUTION


# %% check="token_accuracy"
check(token_accuracy)

# %% [markdown]
# ## The arguments for all of it
#
# | what | argument |
# |---|---|
# | micro-batch, accumulation steps | `per_device_train_batch_size`, `gradient_accumulation_steps` |
# | targets of all devices | `average_tokens_across_devices=True` (the default) |
# | layers checkpointed | `activation_checkpointing=True` (its older name: `gradient_checkpointing`) |
# | autocast to bf16 | `bf16=True`, with weights that were loaded in float32 (see below) |
# | fused attention | of the model: `attn_implementation="sdpa"` |
# | adapter | a model from `get_peft_model` is trained like any other |
# | loss in chunks | a `compute_loss` of your own, or `use_liger_kernel=True` (not tried here) |
# | evaluation | no `compute_metrics`, or `preprocess_logits_for_metrics` with it (not with the chunked loss above, which returns no logits) |
#
# `bf16=True` is autocast, which leaves the weights in the type that they have. `from_pretrained` of transformers 5.23 loads them in the type that their configuration names. Save the small decoder in bf16, and train it for a step:

# %%
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

disable_progress_bar()  # of saving and loading
with tempfile.TemporaryDirectory() as folder:
    small_decoder(num_hidden_layers=1).to(torch.bfloat16).save_pretrained(folder)
    for how in ({}, {"dtype": torch.float32}):
        model = AutoModelForCausalLM.from_pretrained(folder, **how)
        args = arguments(bf16=True, optim="adamw_torch", learning_rate=1e-3, max_steps=1)
        trainer = Trainer(model=model, args=args, train_dataset=texts(8))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        averages = {state["exp_avg"].dtype for state in trainer.optimizer.state.values()}
        print(f"loaded with {how or 'no dtype'}: weights {model.dtype}, averages {averages}")

# %% [markdown]
# As it comes, weights and optimizer state are bf16; in the [first lesson](1_pytorch.ipynb) small additions vanished so. With `dtype=torch.float32` it is mixed precision.
#
# What these arguments do to memory, for steps of 8 texts of 64 tokens with AdamW: one by one, then all together. Compare the memory and not the speed here: each point is timed once, for two steps and with the making of model and Trainer.


# %%
def train_point(size, steps, checkpointed, lora, loss_chunk):
    model = small_decoder(num_hidden_layers=2)
    if lora:
        where = ["q_proj", "v_proj"]
        model = get_peft_model(model, LoraConfig(r=lora, target_modules=where))
    args = arguments(
        per_device_train_batch_size=size,
        gradient_accumulation_steps=steps,
        activation_checkpointing=checkpointed,
        optim="adamw_torch_fused",
    )
    kind = ChunkedTrainer if loss_chunk else Trainer
    trainer = kind(model=model, args=args, train_dataset=texts(2 * size * steps))
    trainer.chunk = loss_chunk
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def measure_point(
    micro_batch, accumulation_steps=1, checkpointing="off", lora=None, loss_chunk=None
):
    checkpointed = checkpointing not in ("off", 0, False)
    setting = (micro_batch, accumulation_steps, checkpointed, lora, loss_chunk)
    how = [
        f"{micro_batch} x {accumulation_steps}",
        *["checkpointed"] * checkpointed,
        *[f"chunks of {loss_chunk}"] * bool(loss_chunk),
        *[f"adapter {lora}"] * bool(lora),
    ]
    return measure(
        lambda: train_point(*setting),
        name=", ".join(how),
        samples=2 * micro_batch * accumulation_steps,
        model="small decoder",
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
        checkpointing="every layer" if checkpointed else "off",
        lora=lora,
        loss_chunk=loss_chunk,
        attention="sdpa",
        sequence_length=64,
        repeats=1,
    )


points = [
    measure_point(8),
    measure_point(2, 4),
    measure_point(8, checkpointing="every layer"),
    measure_point(8, loss_chunk=64),
    measure_point(8, lora=4),
    measure_point(8, checkpointing="every layer", lora=4, loss_chunk=64),
]
explorer(points, measure=measure_point)

# %% [markdown]
# ## What to keep
#
# - The Trainer counted the targets of the window on all devices, as `average_tokens_across_devices` is on and the loss uses `num_items_in_batch`.
# - A loss of your own belongs in `compute_loss`: a sum, divided by `num_items_in_batch`, times the number of devices. Where it goes around the model's `forward`, it switches autocast on itself.
# - `compute_metrics` gets what the model returns, for the whole evaluation set. Make it small first.
# - A metric shifts its labels itself.
# - `bf16=True` with `dtype=torch.float32`: otherwise the weights stay in the type in which they were saved.
#
# Next: [Write the test](../6_your_own/1_write_the_test.ipynb), where you say what a right training loop is.
