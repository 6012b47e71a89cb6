# %% [markdown]
# # Gradient accumulation with the Trainer
#
# **You will be able to** write the arguments of an accumulated training, see what the `Trainer` does between two updates, and find and cure the places where its gradients are not the large batch's.
#
# **Minutes**: 90, with a place to stop · **Before this**: [Gradient accumulation with Accelerate](2_accelerator.ipynb).

# %% [markdown]
# ## A question
#
# You wrote the loop yourself, and you wrote it with Accelerate. The `Trainer` of transformers has no loop to write. It has an argument: `gradient_accumulation_steps=4`.
#
# Is that the same training?
#
# You have three ways to find out: what it costs, what its log says, and which weights come out at the end. This lesson takes all three. It runs transformers 5.23.

# %%
import copy
import inspect
import tempfile

import pandas as pd
import torch
import transformers
from accelerate import Accelerator
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback
from trainlean import (
    Meter,
    check,
    dataset,
    format_bytes,
    guess,
    hint,
    load_reviews,
    load_tokenizer,
    measure,
    plot_compare,
    plot_memory,
    recall,
    reveal,
    small_bert,
    summary,
)

folder = tempfile.TemporaryDirectory()  # the Trainer wants a place for checkpoints
reviews = load_reviews()
data = dataset(reviews[:64], max_length=64)

# %%
recall("1_accumulation/3_trainer")

# %% [markdown]
# ## The arguments
#
# What your loop did in code, the Trainer takes as arguments. Two of them, and the number of devices, make the effective batch:
#
# > effective batch = `per_device_train_batch_size` × `gradient_accumulation_steps` × devices
#
# The first is the micro-batch: what goes through the model at once, so what has to fit into memory. The second counts micro-batches, not samples.
#
# The rest is the recipe of the last two lessons: plain SGD, a constant learning rate, no clipping, the reviews in their order. Each of these must be stated, because the default is something else.


# %%
def arguments(micro_batch, accumulation_steps, **changes):
    """The recipe of this unit as TrainingArguments; `changes` are arguments by name."""
    recipe = {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": accumulation_steps,
        "num_train_epochs": 1,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0,  # 0 is: do not clip
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
        "disable_tqdm": True,
    }
    return TrainingArguments(folder.name, **recipe | changes)


names = [
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "learning_rate",
    "lr_scheduler_type",
]
names += ["optim", "max_grad_norm", "train_sampling_strategy", "logging_steps", "save_strategy"]
default = TrainingArguments(folder.name, use_cpu=True).to_dict()
here = arguments(4, 4).to_dict()
pd.DataFrame(
    {
        "default": {name: str(default[name]) for name in names},
        "here": {name: str(here[name]) for name in names},
    }
)

# %% [markdown]
# Read the column of defaults once with care. A learning rate that falls to zero, clipping at 1.0 and shuffled data apply unless you say otherwise.
#
# (Some older names of arguments are gone. They are listed at the end of this lesson.)

# %% [markdown]
# ### Exercise: write the arguments
#
# *Difficulty* ** · *8 minutes* · *Why*: nobody warns you when a number stands in the wrong argument; the training just becomes another one.
#
# Write `accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate)`. It returns `TrainingArguments` for one device such that
#
# - at most `micro_batch` samples go through the model at once,
# - every optimizer step uses `effective_batch` samples (a multiple of `micro_batch`), the last one of an epoch what is left,
# - training takes `epochs` epochs over a data set of `samples` samples, in the order of the data set,
# - the optimizer is plain SGD, without clipping,
# - the learning rate rises linearly from 0 during the first epoch, reaches `learning_rate` with the first step of the second epoch, and stays there. (The schedule has a name, `constant_with_warmup`; the argument `warmup_steps` says how long the rate rises.)
#
# Run on the CPU, with `folder` as the output folder.


# %% exercise="accumulation_arguments" points=3
def accumulation_arguments(folder, samples, micro_batch, effective_batch, epochs, learning_rate):
    """The arguments of an accumulated training with a warm-up of one epoch."""
    # BEGIN SOLUTION
    steps_per_epoch = -(
        -samples // effective_batch
    )  # rounded up: the last, shorter window makes a step too
    return TrainingArguments(
        folder,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=effective_batch // micro_batch,
        num_train_epochs=epochs,
        learning_rate=learning_rate,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=steps_per_epoch,
        optim="sgd",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        use_cpu=True,
    )
    # END SOLUTION


# %% check="accumulation_arguments"
check(accumulation_arguments)

# %% [markdown]
# `check` trains with your arguments on small data sets and looks at batches, steps, learning rates and gradients. `hint(accumulation_arguments)` helps on request.
#
# Note the unit of `warmup_steps` and `max_steps`: *optimizer steps*. The Trainer moves the learning rate once per update. With Accelerate you had to work that out yourself.
#
# ## 16 x 1 against 4 x 4
#
# First the cost. As before, `4 x 4` is short for micro-batches of 4, 4 accumulation steps. `train` below builds a Trainer and runs it without printing. (The Trainer prints each entry of its log; the last one has times, which differ from run to run. The log is also kept in `trainer.state.log_history`.)


# %%
def train(model, args, data, *callbacks, **more):
    """Train silently; returns the Trainer."""
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=list(callbacks), **more)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return trainer


# %% [markdown]
# **Predict.** Batch 16 at once, or micro-batches of 4 accumulated over 4. The activations of 4 reviews are a quarter of those of 16.
# How large is the peak of memory of 4 x 4, in percent of the peak of 16 x 1?

# %%
# BEGIN SOLUTION
my_guess = 25
# END SOLUTION
guess("peak memory of 4 x 4, 16 x 1 being 100", my_guess, "%")

# %%
few = dataset(reviews[:32])
runs = [
    measure(
        lambda: train(small_bert(seed=0), arguments(micro_batch, steps), few),
        name=f"Trainer, {micro_batch} x {steps}",
        model="small-bert",
        optimizer="sgd",
        sequence_length=64,
        micro_batch=micro_batch,
        accumulation_steps=steps,
    )
    for micro_batch, steps in [(16, 1), (4, 4)]
]
reveal(
    "peak memory of 4 x 4, 16 x 1 being 100",
    round(100 * runs[1].peak_bytes / runs[0].peak_bytes),
    "%",
)
summary(runs)

# %%
plot_memory(runs)

# %% [markdown]
# The same number of optimizer steps and the same computation. The activations have shrunk by as much as the micro-batch has. But the *gradients* have grown: with 16 x 1 none are left when the next forward pass begins, with 4 x 4 their sum waits in memory for the last micro-batch.
#
# So accumulation pays where the activations that it removes outweigh the gradients that wait. Here they do; with batches of 2 or 3 reviews they did not, as the [first lesson of this unit](1_pytorch.ipynb) printed.
# Where the brackets of two times overlap, the times say nothing.
#
# The argument does to the *cost* what your loop did. Next: what it does to the gradient.
#
# ## The first gradient
#
# Now the log. The same 64 reviews, once in batches of 16, once as 4 x 4. Both make 4 optimizer steps with 16 reviews each.
#
# **Predict.** If accumulation is exact, the first gradients of the two are equal. How many times as long as the large batch's is the accumulated one?

# %%
# BEGIN SOLUTION
my_guess = 1
# END SOLUTION
guess("first gradient of 4 x 4, relative to the large batch's", my_guess, "times")


# %%
def steps_of(trainer):
    """The log entries of the optimizer steps."""
    return [entry for entry in trainer.state.log_history if "grad_norm" in entry]


large = steps_of(train(small_bert(seed=0), arguments(16, 1), data))
accumulated = steps_of(train(small_bert(seed=0), arguments(4, 4), data))
reveal(
    "first gradient of 4 x 4, relative to the large batch's",
    round(accumulated[0]["grad_norm"] / large[0]["grad_norm"], 2),
    "times",
)
rows = [
    (
        one["step"],
        one["loss"],
        other["loss"],
        other["loss"] / one["loss"],
        one["grad_norm"],
        other["grad_norm"],
    )
    for one, other in zip(large, accumulated)
]
pd.DataFrame(
    rows,
    columns=["step", "loss 16 x 1", "loss 4 x 4", "ratio", "grad_norm 16 x 1", "grad_norm 4 x 4"],
).round(2)

# %% [markdown]
# Four times the loss, four times the gradient. (From the second step on the two training runs have different weights, so their gradients can no longer be compared, and their losses only roughly.)
#
# A loss of the small BERT with two labels should begin near $\ln 2$, about 0.69. The accumulated log begins at four times that.
#
# Where does it come from? Look inside.
#
# ## Inside one step
#
# A callback is an object whose methods the Trainer calls at fixed moments. This one keeps a diary: which moment, and how long the gradient is just then.


# %%
class Diary(TrainerCallback):
    """Notes each event, and the length of the gradient at that moment."""

    def __init__(self):
        self.events = []

    def note(self, event, state, model):
        gradients = [
            parameter.grad for parameter in model.parameters() if parameter.grad is not None
        ]
        length = (
            f"{torch.cat([g.flatten() for g in gradients]).norm():.3f}" if gradients else "none"
        )
        self.events.append((state.global_step, event, length))

    def on_step_begin(self, args, state, control, model, **kwargs):
        self.note("on_step_begin", state, model)

    def on_substep_end(self, args, state, control, model, **kwargs):
        self.note("on_substep_end", state, model)

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.note("on_pre_optimizer_step", state, model)

    def on_optimizer_step(self, args, state, control, model, **kwargs):
        self.note("on_optimizer_step", state, model)

    def on_step_end(self, args, state, control, model, **kwargs):
        self.note("on_step_end", state, model)


# %% [markdown]
# 24 reviews are 6 micro-batches of 4. With windows of 4, one window is whole and one is short.

# %%
diary = Diary()
train(small_bert(seed=0), arguments(4, 4), dataset(reviews[:24]), diary)
pd.DataFrame(diary.events, columns=["steps done", "event", "length of the gradient"])

# %% [markdown]
# You can read your own loop in this table.
#
# - `on_step_begin`: a new window, no gradients.
# - `on_substep_end`: after each backward pass *but the last of the window*. The gradient accumulates.
# - `on_pre_optimizer_step`: after the last backward pass, and after clipping.
# - `on_optimizer_step`: the weights have moved. The gradients are still there.
# - `on_step_end`: the gradients are gone, and the step is counted. A callback that reads gradients here finds none.

# %% [markdown]
# With names shortened, the Trainer's loop says:
#
# ```python
# for each window of k micro-batches:                  # fetched in advance, all k of them
#     num_items_in_batch = labels in the whole window  # counted before the first forward pass
#     for batch in window:
#         loss = compute_loss(batch, num_items_in_batch)
#         if not already_divided:
#             loss = loss / len(window)
#         loss.backward()                              # then on_substep_end; after the last one instead:
#     clip; on_pre_optimizer_step; optimizer.step(); on_optimizer_step
#     scheduler.step(); model.zero_grad(); on_step_end
# ```
#
# The last window of the epoch is short, and `len(window)` is right for it, as the divisor in Accelerate's loop was not.
#
# One line of it holds a decision: `if not already_divided`. Who divides by $k$, and how does the Trainer know?
#
# Is it really the same gradient, only longer? A second callback keeps the gradient itself. And is it always 4? Learning rate 0 keeps the weights where they are, so that nothing else differs.


# %%
class Gradients(TrainerCallback):
    """Keeps the gradient at each optimizer step, as one vector."""

    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        self.seen.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))


def gradients(model, args, data, **more):
    """The gradient at each step of a training run."""
    watch = Gradients()
    train(model, args, data, watch, **more)
    return watch.seen


def compare(found, reference):
    """Length and direction of a gradient beside another, as text."""
    found, reference = found.double(), reference.double()
    cosine = cosine_similarity(found, reference, dim=0)
    return f"{found.norm() / reference.norm():.3f} times as long, cosine {cosine:.4f}"


# %% [markdown]
# The first gradient of four ways to 16 reviews, beside the large batch's:

# %%
reference = gradients(small_bert(seed=0), arguments(16, 1, learning_rate=0.0), data)[0]
for k in (1, 2, 4, 8):
    first = gradients(
        small_bert(seed=0), arguments(16 // k, k, learning_rate=0.0, max_steps=1), data
    )[0]
    print(f"{16 // k:2} x {k}: {compare(first, reference)}")

# %% [markdown]
# The direction is right, the length is $k$ times too large, and nothing warns you. It is issue [#47688](https://github.com/huggingface/transformers/issues/47688) of transformers, measured here with 5.23.
#
# ## The proof
#
# Why $k$? In your own loop that was the loss that nobody had divided. So let us look for the division. It stands in the Trainer's `training_step`:

# %%
lines = inspect.getsource(Trainer.training_step).splitlines()
start = next(number for number, line in enumerate(lines) if "loss_is_scaled_for_ga" in line)
end = next(number for number, line in enumerate(lines) if "loss / " in line)
print("\n".join(line[12:] for line in lines[start : end + 1]))

# %% [markdown]
# The Trainer leaves the division out when the *model* accepts loss arguments and the targets were counted, for then the model is expected to divide its summed loss by `num_items_in_batch`. (It trusts a `compute_loss_func` in the same way; that comes further below.) How does it know what the model accepts? From these lines, which run once, in `Trainer.__init__`:

# %%
lines = inspect.getsource(Trainer.__init__).splitlines()
start = next(number for number, line in enumerate(lines) if "accepts_loss_kwargs" in line)
print("\n".join(line[8:] for line in lines[start : start + 7]))

# %% [markdown]
# BERT has no such attribute, so the Trainer looks at the signature of `forward`. If there is a `**kwargs`, it assumes that the model divides. Two facts, asked of the live objects:

# %%
trainer = Trainer(model=small_bert(seed=0), args=arguments(4, 4), train_dataset=data)
last = list(inspect.signature(trainer.model.forward).parameters.values())[-1]
print("last parameter of forward:", last.name, "of kind", last.kind.name)
print("trainer.model_accepts_loss_kwargs:", trainer.model_accepts_loss_kwargs)

# %% [markdown]
# And does the model divide? Tell it that the window holds 16 items, or a million:

# %%
model, batch = small_bert(seed=0), next(iter(DataLoader(data, batch_size=4)))
for items in (None, 16, 1_000_000):
    given = {} if items is None else {"num_items_in_batch": items}
    print(f"num_items_in_batch={items!s:8} loss {model(**batch, **given).loss.item():.3f}")

# %% [markdown]
# It does not. BERT's `forward` takes `**kwargs`, passes them on to its layers, and computes its classification loss as a plain mean. The Trainer relies on the model, the model does not know that, and so the means of $k$ micro-batches are added up and not divided.
#
# Which models have the factor? Here two questions decide: does the Trainer believe that the model divides, and does it? Ask several, made tiny:


# %%
def who_divides(name):
    """Is the division left to the model, and does the count change the model's loss?"""
    torch.manual_seed(0)
    tiny = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "vocab_size": 50}
    tiny |= {"num_attention_heads": 2, "pad_token_id": 0, "num_labels": 2}
    tiny |= {"image_size": 8, "patch_size": 4}  # for those that look at images
    tiny |= {"decoder_start_token_id": 0}  # for the one that translates
    tiny |= dict.fromkeys(["bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"])
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**tiny)).eval()
    left = Trainer(model=model, args=arguments(4, 4)).model_accepts_loss_kwargs
    numbers = torch.arange(2, 26).view(4, 6)
    per_sample = name.endswith(("SequenceClassification", "ImageClassification"))
    batch = {"input_ids": numbers, "labels": numbers[:, 0] % 2 if per_sample else numbers % 2}
    if "Image" in name:
        batch["pixel_values"] = torch.randn(4, 3, 8, 8)
        del batch["input_ids"]
    loss = model(**batch).loss
    try:
        counted = model(**batch, num_items_in_batch=1000).loss
    except TypeError:  # there is no such argument
        counted = loss
    return left, not torch.equal(loss, counted)


rows = []
for name in (
    "BertForSequenceClassification",
    "RobertaForSequenceClassification",
    "ModernBertForSequenceClassification",
    "LlamaForSequenceClassification",
    "EsmForSequenceClassification",
    "BeitForImageClassification",
    "ViTForImageClassification",
    "BertForTokenClassification",
    "BertForMaskedLM",
    "T5ForConditionalGeneration",
    "LlamaForCausalLM",
):
    left, divides = who_divides(name)
    rows.append((name, left, divides, "k" if left and not divides else 1))
pd.DataFrame(rows, columns=["model", "left to the model", "model divides", "factor"])

# %% [markdown]
# Here the factor is there where the division is left to a model that does not divide: in most of these classifiers, and in the tagger, the masked language model and T5. It is not there where the model divides (Llama's language model, ViT), or where the model says of itself that it does not (ESM).

# %% [markdown]
# **A good place to stop for today.** The factor is found and explained. What follows is its cure, why it stays hidden, and losses over tokens.
#
# ### Exercise: cure the factor
#
# *Difficulty* ** · *6 minutes* · *Why*: most of the models in the table have it.
#
# Write `exact_trainer(model, args, train_dataset)`. It returns a `Trainer` that has not been trained yet. When it is trained,
#
# - the gradient at *every* optimizer step is the large batch's, in the last, shorter window too,
# - no more than a micro-batch goes through the model at once, and its activations are gone before the next one's come,
# - steps, optimizer, learning rate and clipping are those of `args`.
#
# `model` is a classifier like BERT, perhaps with frozen weights, whose loss is a mean and whose `forward` takes `**kwargs`. All micro-batches have the same size. The lines printed above tell what to do.


# %% exercise="exact_trainer" points=3
def exact_trainer(model, args, train_dataset):
    """A Trainer whose accumulated gradients are the large batch's."""
    # BEGIN SOLUTION
    model.accepts_loss_kwargs = False  # before the Trainer looks
    return Trainer(model=model, args=args, train_dataset=train_dataset)
    # END SOLUTION


# %% check="exact_trainer"
check(exact_trainer)

# %% [markdown]
# ## The cure
#
# The next cell is folded, because it holds one answer to the exercise. Open it when yours is done, and run it in any case: it makes a cured BERT, which the rest of the lesson uses.


# %% jupyter={"source_hidden": true}
def cured_bert():
    """The small BERT, saying of itself that it does not divide its loss."""
    model = small_bert(seed=0)
    model.accepts_loss_kwargs = False
    return model


cured = steps_of(train(cured_bert(), arguments(4, 4), data))
pd.DataFrame(
    [
        (one["step"], one["loss"], other["loss"], one["grad_norm"], other["grad_norm"])
        for one, other in zip(large, cured)
    ],
    columns=[
        "step",
        "loss 16 x 1",
        "loss 4 x 4 cured",
        "grad_norm 16 x 1",
        "grad_norm 4 x 4 cured",
    ],
).round(3)

# %%
plot_compare(
    {
        name: [entry["grad_norm"] for entry in log]
        for name, log in {"16 x 1": large, "4 x 4": accumulated, "4 x 4 cured": cured}.items()
    },
    y="grad_norm",
    title="The gradient at each step: cured, it lies on the large batch's",
)

# %% [markdown]
# It must be done *before* the Trainer is built, because the Trainer looks once. (With LoRA from peft it looks at the model inside: set the flag before `get_peft_model`. On the wrapped model it does nothing.)
#
# ## Why so few have noticed
#
# AdamW divides the gradient by its own running size, so a factor that is the same at every step nearly cancels. SGD takes the factor as it is; and clipping compares the gradient with a fixed length, so the factor changes what is cut.
#
# Each row below trains twice, as it comes and cured. *Moved* is the distance of the weights at the end from those at the start. *Apart* is the distance of the two ends from each other, in percent of how far the cured one has moved. *Steps cut* counts the steps, out of 4, at which clipping cut the gradient.


# %%
def vector(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


untrained = vector(small_bert(seed=0))


def as_it_comes_and_cured(**changes):
    trainers = [
        train(model, arguments(4, 4, **changes), data)
        for model in (small_bert(seed=0), cured_bert())
    ]
    ends = [vector(trainer.model) for trainer in trainers]
    moved = [(end - untrained).norm().item() for end in ends]
    apart = (ends[0] - ends[1]).norm().item() / moved[1]
    limit = changes["max_grad_norm"] or float("inf")
    cut = [
        sum(entry["grad_norm"] > limit for entry in steps_of(trainer)) for trainer in trainers
    ]  # logged before clipping
    return *(round(way, 2) for way in moved), f"{100 * apart:.0f} %", *cut


table = []
for optimizer, learning_rate in (("sgd", 0.05), ("adamw_torch", 5e-4)):
    for limit in (0, 1.0):
        row = as_it_comes_and_cured(
            optim=optimizer, learning_rate=learning_rate, max_grad_norm=limit
        )
        table.append((optimizer, limit or "none", *row))
pd.DataFrame(
    table,
    columns=[
        "optimizer",
        "clipped at",
        "moved",
        "moved, cured",
        "apart",
        "steps cut",
        "steps cut, cured",
    ],
)

# %%
row = as_it_comes_and_cured(
    optim="adamw_torch", learning_rate=5e-4, max_grad_norm=0, adam_epsilon=1e-30
)
print("AdamW, not clipped, with an epsilon of 1e-30: apart", row[2])

# %% [markdown]
# - With SGD, not clipped, the factor is a learning rate that is $k$ times too large. (The first step is $k$ times as long; after it the two go different ways, so *moved* is not.)
# - AdamW, not clipped, moves here as far with it as without. (The ends are a little apart because of *epsilon*, a small number that AdamW adds to its divisor: in the last line, with an epsilon that is nearly nothing, they are not.)
# - Clipping at 1.0 is the Trainer's *default*. It also cuts gradients that are too long only because of the factor, and here it becomes another training run, with AdamW too.
#
# Dividing the learning rate by $k$ is therefore no cure: AdamW would move too little, and what was cut stays cut.

# %% [markdown]
# ## Losses over tokens
#
# Why does the Trainer count items at all? For losses over tokens, where dividing by $k$ gives a mean of means. In the [first lesson of this unit](1_pytorch.ipynb) that gave a token more weight in a micro-batch of few targets than in one of many. The right divisor is the number of targets in the whole window.
#
# `num_items_in_batch` is that number. For a language model the target of position $i$ is token $i + 1$, so the first token of a text is nobody's target: a text of $L$ tokens has $L - 1$.
#
# A tiny Llama learns to continue our reviews. Padding gets the label -100, which means: no target.

# %%
tokenizer = load_tokenizer()


def tiny_llama():
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 64,
    }
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **sizes))


texts = [
    item | {"labels": torch.where(item["attention_mask"] == 1, item["input_ids"], -100)}
    for item in dataset(reviews[:16], max_length=64)
]
labels = torch.stack([text["labels"] for text in texts])
print(
    "targets in each micro-batch of 4 texts:",
    (labels[:, 1:] != -100).sum(1).view(4, 4).sum(1).tolist(),
)

# %% [markdown]
# The large batch first, then three ways to accumulate: as it comes; with the cure for classifiers; and with a loss of our own, `compute_loss_func`, that ignores the count.


# %%
def mean_loss(outputs, labels, num_items_in_batch=None):
    """The mean over the micro-batch's own targets, whatever the window holds."""
    return cross_entropy(outputs.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


flagged = tiny_llama()
flagged.accepts_loss_kwargs = False
text_reference = gradients(tiny_llama(), arguments(16, 1), texts)[0]
for name, model, more in [
    ("as it comes", tiny_llama(), {}),
    ("accepts_loss_kwargs = False", flagged, {}),
    ("own mean, count ignored", tiny_llama(), {"compute_loss_func": mean_loss}),
]:
    print(
        f"{name:28} {compare(gradients(model, arguments(4, 4), texts, **more)[0], text_reference)}"
    )

# %% [markdown]
# - As it comes, Llama is exact. It uses the count.
# - The flag that cures a classifier *harms* here. It brings the mean of means back: nearly the right length, another direction. So the flag is not something to set always.
# - A loss of our own that ignores the count is about $k$ times too long, *and* a mean of means. A `compute_loss_func` is trusted to divide.
#
# If you override `Trainer.compute_loss`, the class attribute `loss_is_scaled_for_ga = False` tells the Trainer to divide by the window's micro-batches, as the printed condition says.
#
# ### On several devices
#
# DDP takes the mean of the devices' gradients. If each device divides by its own targets, that is a mean of means again. Take two devices, one with the eight shortest texts and one with the eight longest. Both lines are worked out here in one process, from the gradients of the two. The last line has the divisor that the Trainer uses by default (`average_tokens_across_devices=True`): it divides by the targets of all devices, and multiplies by the number of devices, which DDP divides out.

# %%
by_length = sorted(texts, key=lambda text: int((text["labels"] != -100).sum()))
devices = [by_length[:8], by_length[8:]]


def summed_gradient(part):
    """The gradient of the summed loss of some texts, and how many targets they have."""
    model = tiny_llama()
    batch = {name: torch.stack([text[name] for text in part]) for name in part[0]}
    labels = batch.pop("labels")
    logits = model(**batch).logits[:, :-1].flatten(0, 1)
    cross_entropy(logits, labels[:, 1:].flatten(), reduction="sum").backward()
    vector = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    return vector, int((labels[:, 1:] != -100).sum())


(first, targets_0), (second, targets_1) = map(summed_gradient, devices)
everything = (first + second) / (targets_0 + targets_1)
own = (first / targets_0 + second / targets_1) / 2
counted = (2 * first + 2 * second) / (targets_0 + targets_1) / 2
print(f"targets: {targets_0} and {targets_1}")
print("own means:              ", compare(own, everything))
print("over tokens of all ranks:", compare(counted, everything))

# %% [markdown]
# The multiplication is right for a loss that was divided by the count. But `Trainer.compute_loss` asks whether the model *accepts* loss arguments, not whether it divides. So BERT's classifier gets it too: on two devices its gradients are 2 × $k$ times too large. (Tried with two processes, not run here.) `model.accepts_loss_kwargs = False` takes both factors away.

# %% [markdown]
# ### Exercise: `num_items_in_batch`
#
# *Difficulty* ** · *8 minutes* · *Why*: a loss of your own divides by the window's count itself.
#
# Write `window_token_loss(outputs, labels, num_items_in_batch)` for `Trainer(..., compute_loss_func=window_token_loss)`.
#
# - `outputs.logits` [batch, length, vocabulary]: those at position i predict token i + 1,
# - `labels` [batch, length]: token numbers, and -100 where there is nothing to predict. A whole micro-batch may have nothing to predict. Its loss is 0, and it too must be computed from the logits,
# - `num_items_in_batch`: a tensor without dimensions, the number of targets in the whole window.
#
# It returns the micro-batch's part of the loss: the Trainer adds up the gradients of all micro-batches of the window, and the sum must be the large batch's gradient, whose loss is the mean cross entropy over all its targets. `labels` stay as they are.


# %% exercise="window_token_loss" points=3
def window_token_loss(outputs, labels, num_items_in_batch):
    """This micro-batch's part of the mean cross entropy over the window's targets."""
    # BEGIN SOLUTION
    logits = outputs.logits[:, :-1].flatten(0, 1)
    targets = labels[:, 1:].flatten()
    return cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / num_items_in_batch
    # END SOLUTION


# %% check="window_token_loss"
check(window_token_loss)

# %% [markdown]
# Your loss is only as good as the count. The Trainer leaves out the first token of each text if it knows the model's `loss_type` as one that shifts the labels. Ask it for its count, over 16 texts of 8 tokens. And compare its gradient, with 16 x 1 and with 4 x 4, with that of a plain `backward()`, without a Trainer:

# %%
sizes = {"vocab_size": 50, "bos_token_id": None, "eos_token_id": None}
narrow = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
no_dropout = dict.fromkeys(["embd_pdrop", "resid_pdrop", "attn_pdrop"], 0.0)
configs = {
    LlamaForCausalLM: LlamaConfig(**narrow, num_attention_heads=2, **sizes),
    GPT2LMHeadModel: GPT2Config(n_embd=16, n_layer=1, n_head=2, **no_dropout, **sizes),
}
transformers.logging.set_verbosity_error()  # GPT-2 warns that it takes the default loss
numbers = torch.randint(50, (16, 8))
rows = [{"input_ids": row, "labels": row} for row in numbers]
for model_class, config in configs.items():
    torch.manual_seed(0)
    model = model_class(config)
    trainer = Trainer(model=model, args=arguments(4, 4), train_dataset=rows)
    _, items = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 4, "cpu")
    print(f"{model_class.__name__}: loss_type {model.loss_type}, counts {int(items)} targets")
    for micro_batch, steps in ((16, 1), (4, 4)):
        found = gradients(copy.deepcopy(model), arguments(micro_batch, steps), rows)[0]
        plain = copy.deepcopy(model)
        mean_loss(plain(input_ids=numbers), numbers).backward()
        plain = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()])
        print(f"  {micro_batch:2} x {steps}: {compare(found, plain)}")

# %% [markdown]
# A text of 8 tokens has 7 targets. GPT-2 has no `loss_type` here. Its loss falls back to the default one, which shifts the labels; the count does not. So all 8 are counted, and the gradient is 7/8 of the right one, with the large batch too. To find such an error, compare with a plain `backward()`, not with the Trainer's own large batch.

# %% [markdown]
# ### Models that ignore the count
#
# BERT as a tagger is a third case: it ignores the count, so the factor is there; and the flag leaves a mean of means. Here it tells even token numbers from odd ones, on the same texts. Its labels are not shifted:


# %%
def tagger():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_labels": 2, "vocab_size": len(tokenizer)}
    return BertForTokenClassification(
        BertConfig(**sizes, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )


def summed_loss(outputs, labels, num_items_in_batch=None):
    loss = cross_entropy(outputs.logits.flatten(0, 1), labels.flatten(), reduction="sum")
    return loss / num_items_in_batch


tags = [
    text | {"labels": torch.where(text["labels"] == -100, -100, text["input_ids"] % 2)}
    for text in texts
]
flagged = tagger()
flagged.accepts_loss_kwargs = False
tag_reference = gradients(tagger(), arguments(16, 1), tags, compute_loss_func=summed_loss)[0]
for name, model, more in [
    ("as it comes", tagger(), {}),
    ("accepts_loss_kwargs = False", flagged, {}),
    ("a sum, divided by the count", tagger(), {"compute_loss_func": summed_loss}),
]:
    print(f"{name:28} {compare(gradients(model, arguments(4, 4), tags, **more)[0], tag_reference)}")

# %% [markdown]
# Only the sum divided by the count is exact here.
#
# ### Evaluation has a peak of its own
#
# An evaluation keeps no activations, since nothing is trained. But with `compute_metrics` the Trainer keeps the logits of the *whole* data set until the end, and those of a language model have a number for each word of the vocabulary. Here is the peak:


# %%
def evaluation_peak(**more):
    args = arguments(4, 4, per_device_eval_batch_size=4)
    trainer = Trainer(model=tiny_llama(), args=args, eval_dataset=texts, **more)
    trainer.remove_callback(PrinterCallback)
    with Meter() as meter:
        trainer.evaluate()
    return format_bytes(meter.peak_bytes)


no_metrics = {"compute_metrics": lambda prediction: {}}
print("the loss only:           ", evaluation_peak())
print("logits for metrics:      ", evaluation_peak(**no_metrics))
best = {"preprocess_logits_for_metrics": lambda logits, labels: logits.argmax(-1)}
print("the best word only:      ", evaluation_peak(**no_metrics, **best))

# %% [markdown]
# `preprocess_logits_for_metrics` keeps of each batch what the metric needs. A smaller `per_device_eval_batch_size` makes each batch smaller, and all the logits are still kept.

# %% [markdown]
# ## The last, shorter window
#
# Once more with learning rate 0, so that all gradients are taken at the same weights. 40 reviews are two whole windows and a last one of two micro-batches. 38 reviews are the same, but the very last micro-batch holds 2 reviews instead of 4.
#
# The third row of each block trains with a loss of its own, which sums and divides by `num_items_in_batch`: for a classifier, the number of reviews in the window.


# %%
def window_loss(outputs, labels, num_items_in_batch=None):
    return cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


still = {"learning_rate": 0.0}
for count in (40, 38):
    some = dataset(reviews[:count])
    truth = gradients(small_bert(seed=0), arguments(16, 1, **still), some)
    ways = {
        "as it comes": gradients(small_bert(seed=0), arguments(4, 4, **still), some),
        "cured": gradients(cured_bert(), arguments(4, 4, **still), some),
        "window_loss": gradients(
            small_bert(seed=0), arguments(4, 4, **still), some, compute_loss_func=window_loss
        ),
    }
    print(f"{count} reviews, {len(truth)} windows; the last one:")
    for name, found in ways.items():
        print(f"  {name:12} {compare(found[-1], truth[-1])}")

# %% [markdown]
# - As it comes, the factor in the last window of 40 reviews is 2: the number of its micro-batches.
# - The cure divides by that number, and is exact where all micro-batches are equally large.
# - With a short last micro-batch it is a mean of means: each of its two reviews counts twice as much as one of the other four, and the gradient points a little elsewhere. `window_loss` is exact there too.
#
# ## Three versions, one training
#
# Here are all three once more, on the recipe of this unit: the first 64 reviews in their order, micro-batches of 4, windows of 4, one epoch.


# %%
def with_pytorch(make_optimizer, **_):
    model = small_bert(seed=0)
    optimizer = make_optimizer(model.parameters())
    for number, batch in enumerate(DataLoader(data, batch_size=4), start=1):
        (model(**batch).loss / 4).backward()
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def with_accelerator(make_optimizer, **_):
    accelerator = Accelerator(gradient_accumulation_steps=4, cpu=True)
    model = small_bert(seed=0)
    model, optimizer, loader = accelerator.prepare(
        model, make_optimizer(model.parameters()), DataLoader(data, batch_size=4)
    )
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    return accelerator.unwrap_model(model)


def with_trainer(make_optimizer, **arguments_of_it):
    return train(cured_bert(), arguments(4, 4, **arguments_of_it), data).model


def with_trainer_as_it_comes(make_optimizer, **arguments_of_it):
    return train(small_bert(seed=0), arguments(4, 4, **arguments_of_it), data).model


# %% [markdown]
# The optimizer must be the same to the last setting. `torch.optim.AdamW` has a weight decay of 0.01 by default, the Trainer has none.


# %%
def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.0)


table = []
for make_optimizer, settings in [
    (sgd, {"optim": "sgd", "learning_rate": 0.05}),
    (adamw, {"optim": "adamw_torch", "learning_rate": 5e-4}),
]:
    first = None
    for version in (with_pytorch, with_accelerator, with_trainer, with_trainer_as_it_comes):
        end = vector(version(make_optimizer, **settings)).double()
        first = end if first is None else first
        same = bool((end - first).abs().max() < 1e-6)
        table.append(
            (
                make_optimizer.__name__,
                version.__name__,
                f"{end.norm():.4f}",
                f"{(end - untrained).norm():.4f}",
                same,
            )
        )
pd.DataFrame(table, columns=["optimizer", "version", "norm", "moved by", "same to 1e-6"])

# %% [markdown]
# Three versions, the same weights, all of them, to 1e-6. The norm and distance of the SGD rows are the fingerprint of the [lesson on Accelerate](2_accelerator.ipynb).
# The fourth row of each optimizer shows that the comparison can fail: there is the Trainer without its cure.

# %% [markdown]
# ## Names that no longer work
#
# These names of older versions are gone:

# %%
for name, value in {
    "evaluation_strategy": "steps",
    "no_cuda": True,
    "overwrite_output_dir": True,
    "warmup_ratio": 0.1,
    "group_by_length": True,
}.items():
    try:
        TrainingArguments(folder.name, use_cpu=True, **{name: value})
    except TypeError as error:
        print(error)

# %% [markdown]
# | old name | today |
# |---|---|
# | `evaluation_strategy` | `eval_strategy`; the Trainer then also wants an `eval_dataset` |
# | `no_cuda` | `use_cpu` |
# | `overwrite_output_dir` | gone |
# | `warmup_ratio=0.1` | `warmup_steps=0.1`: below 1 it is a share of all steps, from 1 on a number of optimizer steps |
# | `group_by_length=True` | `train_sampling_strategy="group_by_length"` |
# | `Trainer(tokenizer=...)` | `Trainer(processing_class=...)` |

# %% [markdown]
# ## What to keep
#
# - `per_device_train_batch_size` is the micro-batch; `gradient_accumulation_steps` counts micro-batches; `max_steps` and `warmup_steps` count optimizer steps.
# - Gradients are there in `on_pre_optimizer_step` and `on_optimizer_step`, and gone in `on_step_end`.
# - Classifiers like BERT: `model.accepts_loss_kwargs = False` before the Trainer is built, and before `get_peft_model`. Otherwise gradients and logged loss are $k$ times too large in 5.23.
# - Losses over tokens: a sum, divided by `num_items_in_batch`. Llama does that itself; BERT does not.
# - Compare the first gradient with that of a plain `backward()` on the large batch.
#
# Accumulation takes away the activations of all micro-batches but one. What is left are the activations of that one: the next unit, [gradient checkpointing](../2_checkpointing/1_pytorch.ipynb), takes those.
#
# Optional, before that: [accumulation on lazy tensors](4_lazy_tensors.ipynb), where the loop is recorded first, compiled, and run later.
