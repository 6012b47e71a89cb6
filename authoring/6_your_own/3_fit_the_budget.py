# %% [markdown]
# # Fit the budget
#
# **You will be able to** plan the training of a model that you have not met: say where its bytes go, find every setting that fits a budget, choose one, prove that it is the same training, and compare your choice with a plan's.
#
# **Minutes**: 55, with a place to stop · **Before this**: [The published table](../4_whole_picture/1_published_table.ipynb) and the units on accumulation and checkpointing.

# %% [markdown]
# ## A question
#
# Here is a small decoder with a large vocabulary, a batch of 16 texts to each optimizer step, and a budget of 24 MB on the CPU.
# Plain training does not fit. You know two techniques that make room, and each has a price. Which of them do you take here, and how much of it?

# %%
from functools import cache

import pandas as pd
import torch
from trainlean import (
    Meter,
    TrainingSetup,
    check,
    guess,
    hint,
    plan_training,
    predict_run,
    recall,
    reveal,
    score_training,
    what_if,
)
from transformers import LlamaConfig, LlamaForCausalLM

BUDGET, BATCH, LENGTH = 24_000_000, 16, 64

config = LlamaConfig(
    vocab_size=8000,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    use_cache=False,
)


def new_model():
    """The decoder, with the same random weights each time."""
    torch.manual_seed(0)
    return LlamaForCausalLM(config).train()


def texts(count=BATCH):
    """Random tokens. Half of the texts, the first ones, begin with a prompt: labels of -100."""
    torch.manual_seed(1)
    tokens = torch.randint(config.vocab_size, (count, LENGTH))
    labels = tokens.clone()
    labels[: count // 2, : LENGTH // 2] = -100
    return {"input_ids": tokens, "labels": labels}


def megabytes(size):
    """Bytes as the budget is given: a MB is a million of them."""
    return f"{size / 1e6:.1f} MB"


print(f"{sum(weight.numel() for weight in new_model().parameters()):,} weights")

# %%
recall("6_your_own/3_fit_the_budget")

# %% [markdown]
# **Predict.** A training with AdamW at micro-batch 1: how many of the bytes at its fullest moment have to do with the vocabulary (the embedding, the output layer, their gradients and state, the logits and what the loss makes of them), in percent?

# %%
# BEGIN SOLUTION
my_guess = 50
# END SOLUTION
guess("share of the vocabulary", my_guess, "%")

# %% [markdown]
# ## By hand: what one row is made of
#
# Each setting will be a row of a table.
#
# A decoder gives a number for each token of the vocabulary at each place of each text. These are the *logits*: micro-batch × length × vocabulary numbers.
# Beside them stand the weights, the optimizer's two averages and, from a batch's second micro-batch on, the gradients.
#
# ### Exercise: explain one row
#
# *Difficulty* * · *6 minutes* · *Why*: a technique saves only bytes that a row has.
#
# Write `explain_row(model, micro_batch, length)`: a dictionary with the bytes of `"weights"`, `"gradients"`, `"optimizer state"` and `"logits"` of a training with AdamW.
#
# - Some weights may be frozen (`requires_grad` is False): they have neither gradient nor state. A weight that is used in two places is there once.
# - AdamW keeps two numbers for each weight that is trained, of the weight's own type. Leave its step counters out.
# - Count 4 bytes for each number of the logits: the loss takes them in float32, whatever type the weights have. `model.config.vocab_size` is the size of the vocabulary.


# %% exercise="explain_row" points=2
def explain_row(model, micro_batch, length):
    """Bytes of weights, gradients, optimizer state and logits."""
    # BEGIN SOLUTION
    trained = sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    return {
        "weights": sum(weight.nbytes for weight in model.parameters()),
        "gradients": trained,
        "optimizer state": 2 * trained,
        "logits": micro_batch * length * model.config.vocab_size * 4,
    }
    # END SOLUTION


# %% check="explain_row"
check(explain_row)

# %% [markdown]
# (`hint(explain_row)` helps; each exercise has its own.) Now compare your four numbers with the prediction for three micro-batches:


# %%
@cache
def predicted(micro_batch, checkpointing=False, tokens=config.vocab_size):
    """The prediction of one setting of this lesson, with so many tokens in the vocabulary."""
    setup = TrainingSetup(
        micro_batch,
        BATCH // micro_batch,
        checkpointing=checkpointing,
        attention="sdpa",
        sequence_length=LENGTH,
    )
    like = LlamaConfig(**config.to_diff_dict() | {"vocab_size": tokens})
    return predict_run(like, setup, task="causal-lm", layers=None)


rows = {}
for size in (1, 2, 4):
    parts = explain_row(new_model(), size, LENGTH)
    peak = predicted(size).peak_bytes
    rest = peak - sum(parts.values())
    more = {
        "rest": f"{rest:,}",
        "peak": f"{peak:,}",
        "rest / logits": f"{rest / parts['logits']:.2f}",
    }
    rows[f"micro-batch {size}"] = {name: f"{value:,}" for name, value in parts.items()} | more
pd.DataFrame(rows).T

# %%
with_half = predicted(1, tokens=config.vocab_size // 2).peak_bytes
reveal(
    "share of the vocabulary",
    round(100 * 2 * (1 - with_half / predicted(1).peak_bytes)),
    "%",
    "predicted",
)

# %% [markdown]
# (The number is twice what goes away when the same model gets half of the vocabulary.)
#
# The rest grows with the micro-batch, and most of it is two further tensors of the logits' size. At the fullest moment three of their shape are there: the kept logarithm of the softmax and two gradients. (The logits are gone, so one of the three stands for the column `logits`.) The layers hardly show.
#
# ## By hand: the search
#
# A setting is a micro-batch, accumulation steps and a way of checkpointing. The batch stays what it is, so the micro-batch divides it.
#
# ### Exercise: the settings that fit
#
# *Difficulty* * · *6 minutes* · *Why*: among these settings you will choose.
#
# Write `settings_that_fit(batch, ways, peak, budget)`: a list of all `(micro_batch, accumulation_steps, way)` whose peak is at most `budget` bytes.
#
# - `ways` is a list of ways of checkpointing, such as `[False, True]`; `peak(micro_batch, way)` gives the bytes of a setting. In each way a larger micro-batch takes more.
# - micro_batch × accumulation_steps must be `batch` exactly. The order of the list does not matter. `ways` stays as it is.


# %% exercise="settings_that_fit" points=2
def settings_that_fit(batch, ways, peak, budget):
    """All (micro_batch, accumulation_steps, way) within the budget."""
    # BEGIN SOLUTION
    fitting = []
    for way in ways:
        for micro_batch in range(1, batch + 1):
            if batch % micro_batch == 0 and peak(micro_batch, way) <= budget:
                fitting.append((micro_batch, batch // micro_batch, way))
    return fitting
    # END SOLUTION


# %% check="settings_that_fit"
check(settings_that_fit)


# %%
table = [
    {"micro_batch": size, "checkpointing": way, "peak": run.peak_bytes, "flops": run.flops}
    for way in (False, True)
    for size in (1, 2, 4, 8, 16)
    for run in [predicted(size, way)]
]


def peak_in_table(size, way):
    """The peak of a row, in bytes; a size between two rows counts as the next larger one."""
    rows = [row for row in table if row["checkpointing"] == way and row["micro_batch"] >= size]
    return min(row["peak"] for row in rows)


fitting = [*map(tuple, settings_that_fit(BATCH, [False, True], peak_in_table, BUDGET))]
pd.DataFrame(
    {
        "micro-batch": [row["micro_batch"] for row in table],
        "checkpointing": ["every layer" if row["checkpointing"] else "off" for row in table],
        "peak": [megabytes(row["peak"]) for row in table],
        "MFLOP a step": [round(row["flops"] / 1e6) for row in table],
        "fits": [
            (row["micro_batch"], BATCH // row["micro_batch"], row["checkpointing"]) in fitting
            for row in table
        ],
    }
)

# %% [markdown]
# Compare the rows with and without checkpointing. What dropped most of BERT's activations saves little here: it drops what the layers keep, and the logits are not part of that. No setting fits with it that would not fit without.
#
# ### Exercise: the fewest FLOPs under the budget
#
# *Difficulty* * · *5 minutes* · *Why*: as long as nobody has measured seconds, FLOPs are what you can compare.
#
# Write `fewest_flops(rows, budget)`: the row (one of the dictionaries of `table`) with the fewest FLOPs among those whose peak is at most `budget`.
# Where several have the fewest, take the one with the largest micro-batch: it needs the fewest passes. Return None where nothing fits, or where there are no rows. The rows stay as they are, and in their order.


# %% exercise="fewest_flops" points=2
def fewest_flops(rows, budget):
    """The row that fits and computes least; of several, that with the largest micro-batch."""
    # BEGIN SOLUTION
    fitting = [row for row in rows if row["peak"] <= budget]
    return min(fitting, key=lambda row: (row["flops"], -row["micro_batch"]), default=None)
    # END SOLUTION


# %% check="fewest_flops"
check(fewest_flops)

# %%
mine = fewest_flops(table, BUDGET)
mine

# %% [markdown]
# Here is a good place to stop.
#
# ## By hand: the training
#
# Now train with it. The texts have different numbers of tokens that count, so the mean of the micro-batches' losses is not the large batch's loss.
#
# ### Exercise: train within the budget
#
# *Difficulty* ** · *15 minutes* · *Why*: bytes, FLOPs and the gradient of the large batch decide whether a loop is right.
#
# Write `train_within(model, optimizer, batch, micro_batch, checkpointing)`: **one** optimizer step on the whole batch.
#
# - `batch` holds `"input_ids"` and `"labels"`, both [samples, length]. Take `micro_batch` samples at a time; the last part may be smaller. The batch stays as it is.
# - `model(input_ids=..., labels=...).loss` is the mean over the part's tokens that count: those from the second place on whose label is not -100 (each is predicted from what stands before it). The step must be that of the mean over all such tokens of the batch.
# - Where `checkpointing` is True, switch the model's own checkpointing on, so that each of its layers is computed twice; else leave it as it is, on or off.
# - Each part goes through the whole model once, logits and all: `check` compares the FLOPs. Keep no more in memory than one part needs: let no name hold the model's output while `backward()` runs. Leave no gradients behind.


# %% exercise="train_within" points=4
def train_within(model, optimizer, batch, micro_batch, checkpointing):
    """One optimizer step on the whole batch, micro_batch samples at a time."""
    # BEGIN SOLUTION
    if checkpointing:
        model.activation_checkpointing_enable()
    tokens = (batch["labels"][:, 1:] != -100).sum()
    for start in range(0, len(batch["labels"]), micro_batch):
        part = {name: value[start : start + micro_batch] for name, value in batch.items()}
        share = (part["labels"][:, 1:] != -100).sum() / tokens
        (model(**part).loss * share).backward()
    optimizer.step()
    optimizer.zero_grad()
    # END SOLUTION


# %% check="train_within"
check(train_within)


# %%
def measured(micro_batch, checkpointing):
    """The meter of two optimizer steps (the first makes AdamW's state), and the weights then."""
    model = new_model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    batch = texts()
    with Meter() as meter:
        for _ in range(2):
            train_within(model, optimizer, batch, micro_batch, checkpointing)
    return meter, torch.nn.utils.parameters_to_vector(model.parameters()).detach()


SAME = 5e-6  # of the weights' length: rounding is less, a gradient 5 % too long is more
meter, weights = measured(mine["micro_batch"], mine["checkpointing"])
large, reference = measured(BATCH, False)
apart = float((weights - reference).norm() / reference.norm())
print(f"within {BUDGET:,} bytes: {meter.peak_bytes <= BUDGET}")
print(f"within them at once:     {large.peak_bytes <= BUDGET}")
print(f"measured {meter.peak_bytes / mine['peak'] - 1:+.1%} from the prediction")
print(f"FLOPs of a step as predicted: {meter.flops == 2 * mine['flops']}")
print(f"weights as after the large batch's steps: {apart < SAME}")

# %% [markdown]
# (AdamW's weights hide most of a factor, so the limit is near rounding. That the gradients are the large batch's is what `check` has compared.)
#
# ## Then the plan
#
# `plan_training` does what you did; here it gets the settings of your table. It asks predictions, keeps what fits, and offers the *front*, the rows that no other beats both in FLOPs and in bytes. After `config.save_pretrained(".")`, `trainlean plan config.json --memory 24MB --batch 16 --sequence-length 64 --task causal-lm` in a terminal in this lesson's folder looks at eager attention and the other ways of checkpointing, too (at other optimizers and precisions where you name them), and measures seconds on your machine.

# %%
found = plan_training(
    config,
    BUDGET,
    BATCH,
    task="causal-lm",
    sequence_length=LENGTH,
    attentions=["sdpa"],
    checkpointings=[0, 1],
)
print(f"{found.fitting} of {found.looked_at} settings fit")
print(found.why)
pd.DataFrame(
    {
        "setting": [row.setup.label for row in found.rows],
        "peak": [megabytes(row.needed) for row in found.rows],
        "MFLOP a step": [round(row.run.flops / 1e6) for row in found.rows],
    }
)

# %%
first = found.rows[0].setup
yours = mine["micro_batch"], mine["checkpointing"]
print("the plan chooses as you do:", (first.micro_batch, bool(first.checkpointing)) == yours)
score = score_training(
    "the decoder in 24 MB",
    peak=meter.peak_bytes,
    budget=BUDGET,
    flops=meter.flops / 2,
    best_flops=found.rows[0].run.flops,
    same=apart < SAME,
)

# %% [markdown]
# The score is the plan's FLOPs in percent of yours, and 0 where the training does not fit or is another one. It is kept beside your guesses; train differently and see whether you come nearer, or above. (You can beat the plan: it computes logits at every place, and where the *next* label is -100 none are needed. Write that beside `train_within`, not in it.)
#
# ## What if
#
# A plan looks at the sizes that you name. How would the bytes change with longer texts? In this model what is alive after one operation is linear in the micro-batch and at most quadratic in the length. So a few traces tell all sizes, and sliders can show them at once. (The traces take some seconds.)

# %%
sliders = what_if(
    config,
    task="causal-lm",
    sequence_length=LENGTH,
    lengths=(16, 256),
    budget=BUDGET,
    accumulation_steps=2,  # the first sum of gradients waits; more steps need no more bytes
)
sliders

# %% [markdown]
# At micro-batch 1, how long may the texts become within 24 MB? Does checkpointing change that? Set the micro-batch to 1, move the length, switch checkpointing, then compare:

# %%
print(f"{megabytes(BUDGET)} are {BUDGET / 2**20:.1f} MiB, the sliders' unit")
for scaling in sliders.scalings:
    fits = [size for size in range(16, 257) if scaling.run(1, size).peak_bytes <= BUDGET]
    how = "every layer" if scaling.setup.checkpointing else "off"
    print(f"checkpointing {how}: up to {max(fits)} tokens")

# %% [markdown]
# ## Your own model
#
# Put a model of your own in place of None: a configuration of transformers, with its task, a budget and a batch. (`from transformers import AutoConfig` first; then `AutoConfig.from_pretrained("a folder on this disk")` reads that of a saved model.) Its plan looks at more settings than the one above, and takes longer. For any other module write a function that returns three things: the module, a sample batch, and a function `loss(model, batch)` that gives one number. Then `trainlean plan file.py:function ...` plans its training from a terminal. `trainlean plan ... --write pytorch train.py` writes the training.

# %%
my_config = None  # such as LlamaConfig(hidden_size=512)
my_task, my_budget, my_batch, my_length = "causal-lm", 16_000_000_000, 64, 512

if my_config is None:
    print("No model of your own yet.")
else:
    own = plan_training(my_config, my_budget, my_batch, task=my_task, sequence_length=my_length)
    for row in own.rows[:5]:
        print(row.setup.label, row.setup.attention, megabytes(row.needed))
    # what_if(my_config, task=my_task, accumulation_steps=2) has the sliders for it.

# %% [markdown]
# ## What to keep
#
# - First ask where the bytes are. A technique saves at most the part that it works on, so begin with the largest.
# - Your setting and the large batch were the same training, with micro-batches weighed by the tokens that count.
# - Of what fits, you and the plan took what computes least; where seconds matter, measure.
