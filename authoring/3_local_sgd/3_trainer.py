# %% [markdown]
# # Local SGD with the Trainer
#
# **You will be able to** teach the `Trainer` something that it has no argument for, in a callback of your own; say when Local SGD with $H=1$ is the same as DDP and when it is not; and place all three techniques of this course on one plane.
#
# **Minutes**: 70, with a place to stop · **Before this**: [Local SGD with Accelerate](2_accelerator.ipynb) and [Gradient accumulation with the Trainer](../1_accumulation/3_trainer.ipynb).

# %% [markdown]
# ## A question
#
# The `Trainer` has an argument for accumulation and one for checkpointing. For Local SGD transformers 5.23 has none.
#
# But the Trainer calls *callbacks* at fixed moments, and Local SGD is a matter of moments: train alone, average now, go on. Is that enough? And when the Trainer saves the model between two averages, whose weights are in the file?

# %%
import os

import pandas as pd
import torch
from torch.utils.data import DataLoader
from trainlean import (
    check,
    dataset,
    explorer,
    guess,
    hint,
    load_reviews,
    plot_techniques,
    recall,
    reveal,
    small_bert,
    start_devices,
    stop_devices,
)

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # two ranks on the CPU, on machines with GPUs too
torch.set_num_threads(1)
devices = start_devices(2)

# %%
recall("3_local_sgd/3_trainer")

# %% [markdown]
# ## The Trainer on two devices
#
# The recipe of the course as arguments, now on each rank. `train` takes functions that make a callback from the Trainer; why they need the Trainer we will see.

# %%
# %%px
import tempfile

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils.logging import disable_progress_bar
from trainlean import Meter, dataset, load_reviews, measure, small_bert

disable_progress_bar()  # of saving
reviews = dataset(load_reviews()[:64], max_length=64)


def arguments(**changes):
    recipe = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 1,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0,
        "train_sampling_strategy": "sequential",
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "ddp_find_unused_parameters": False,
    }
    return TrainingArguments(tempfile.mkdtemp(), **recipe | changes)


def bert():
    model = small_bert(
        seed=0, use_cache=False
    )  # only text generation needs that cache, and checkpointing warns of it
    model.accepts_loss_kwargs = False  # else gradients come out k x devices times too large
    return model


def train(*make_callbacks, data=reviews, model=None, **changes):
    trainer = Trainer(
        model=model or bert(), args=arguments(**changes), train_dataset=data, eval_dataset=reviews
    )
    trainer.remove_callback(PrinterCallback)
    for make in make_callbacks:
        trainer.add_callback(make(trainer))
    trainer.train()
    return trainer


# %% [markdown]
# 64 reviews are 16 micro-batches, of which the ranks take turns: 8 for each, in windows of 2. What does the Trainer make of the model, and what do the ranks send in these 4 optimizer steps?


# %%
# %%px
class Look(TrainerCallback):
    def __init__(self, trainer):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        print(
            "model:",
            type(self.trainer.model).__name__,
            "| model_wrapped:",
            type(self.trainer.model_wrapped).__name__,
        )


def sent(meter):
    """Optimizer steps, all-reduces and their payload in bytes, of this rank."""
    all_reduces = meter.collectives["all-reduce"]
    return meter.optimizer_steps, all_reduces["calls"], all_reduces["payload"]


with Meter() as meter:
    trainer = train(Look)
size = sum(parameter.nbytes for parameter in trainer.model.parameters())
counts = {"DDP": sent(meter)}
steps, calls, payload = counts["DDP"]
print(f"{steps} steps, {calls} all-reduces, {payload:,} bytes = {payload / size:.0f} x the weights")

# %% [markdown]
# `trainer.model` is the model, `trainer.model_wrapped` the DDP wrapper that synchronises. In each step all gradients go over the link: once, because the Trainer puts all micro-batches of a window but the last into `no_sync` by itself.
#
# ## What Local SGD needs, and when
#
# A callback is not told which Trainer it belongs to. So ours is given the Trainer when it is made. What remains is to find the right event for each thing:
#
# | what | event |
# |---|---|
# | begin to train alone | `on_train_begin` |
# | count an optimizer step, average when due | `on_optimizer_step`: once for each window |
# | average before the Trainer evaluates or saves | `on_step_end` *and* `on_epoch_end`: just before, with the decision in `control` |
# | average a last time, and stop training alone | `on_train_end` |
#
# **Train alone.** `model_wrapped.no_sync()` is a context, and a callback has no block to put `with` around. So enter it by hand with `__enter__()` in one event and leave it by hand with `__exit__(None, None, None)` in another. Does it hold, although the Trainer enters `no_sync` itself, window after window? It does: `no_sync` leaves the flag as it has found it. (The Trainer itself still gathers: the loss each time it logs, and in each window the number of labels, where the model is told it. Our `bert()` is not; elsewhere `average_tokens_across_devices=False` stops that.)
#
# **Before saving.** The Trainer decides in `on_step_end` (strategy `"steps"`) or in `on_epoch_end` (strategy `"epoch"`) whether to evaluate or save, sets `control.should_evaluate` and `control.should_save`, and does it right after the event. Its own callback comes first, so yours finds the flags set. `on_save` would be too late: it comes when the checkpoint is written.
#
# **Predict.** With $H=3$ an average is due after steps 3, 6 and so on, whatever comes in between. There are 4 optimizer steps, and a checkpoint every 2 steps (`save_steps=2`). How many averages are there, if no checkpoint may hold weights that are not averaged and the ranks end equal? (An average right after another one changes nothing: count it once.)

# %%
# BEGIN SOLUTION
my_guess = 2
# END SOLUTION
guess("averages with H=3, 4 steps and save_steps=2", my_guess, "averages")

# %% [markdown]
# ### Exercise: the callback
#
# *Difficulty* *** · *20 minutes* · *Why*: the Trainer has no argument for this.
#
# Complete the class. It is used as `trainer.add_callback(LocalSGDCallback(trainer, local_steps))`.
#
# - No rank sends gradients while it trains, and between averages your callback sends nothing and waits for nobody, not even at a barrier. When the callback is made the Trainer has not wrapped the model yet.
# - All ranks average all parameters (afterwards each holds the mean of all) after optimizer steps $H$, $2H$, $3H$ and so on ($H$ is `local_steps`), whatever comes in between.
# - They also average right before every evaluation and every checkpoint, by steps or by epochs, and at the end of the training. After it the model synchronises again.
# - If the model is not wrapped in `DistributedDataParallel` when training begins (one device, FSDP, DeepSpeed), raise a `ValueError` with a sentence.
# - Any number of ranks. Averages may be made with `torch.distributed` or with the Trainer's accelerator.
#
# Add methods as you need them. Callback methods are called with `(args, state, control, **kwargs)`. In `on_optimizer_step`, the step that has just been made is not yet counted in `state.global_step`.

# %% exercise="LocalSGDCallback" points=5
from torch.nn.parallel import DistributedDataParallel
from transformers import TrainerCallback


class LocalSGDCallback(TrainerCallback):
    """Local SGD for a Trainer: ranks train alone and average every `local_steps` steps."""

    def __init__(self, trainer, local_steps):
        self.trainer = trainer
        self.local_steps = local_steps
        self.steps = 0  # optimizer steps so far

    def average(self):
        """Give every rank the mean of all ranks' weights."""
        # BEGIN SOLUTION
        for parameter in self.trainer.model.parameters():
            torch.distributed.all_reduce(parameter.data)
            parameter.data /= torch.distributed.get_world_size()
        # END SOLUTION

    def on_train_begin(self, args, state, control, **kwargs):
        # BEGIN SOLUTION
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(
                "Local SGD needs a model in DistributedDataParallel, but this one is in "
                f"{type(model).__name__}."
            )
        self.alone = model.no_sync()
        self.alone.__enter__()
        # END SOLUTION

    def on_optimizer_step(self, args, state, control, **kwargs):
        # BEGIN SOLUTION
        self.steps += 1
        if self.steps % self.local_steps == 0:
            self.average()
        # END SOLUTION

    def on_step_end(self, args, state, control, **kwargs):
        # BEGIN SOLUTION
        if control.should_evaluate or control.should_save:
            self.average()
        # END SOLUTION

    def on_epoch_end(self, args, state, control, **kwargs):
        # BEGIN SOLUTION
        if control.should_evaluate or control.should_save:
            self.average()
        # END SOLUTION

    def on_train_end(self, args, state, control, **kwargs):
        # BEGIN SOLUTION
        self.average()
        self.alone.__exit__(None, None, None)
        # END SOLUTION


# %% check="LocalSGDCallback"
check(LocalSGDCallback)

# %% [markdown]
# `check` trains with your callback on two and on three ranks, and `hint(LocalSGDCallback)` helps on request.
#
# **A good place to stop for today.**
#
# ## Another way to write it
#
# The lesson goes on with a version that does three things differently. It copies all weights into one flat buffer, so that an average is *one* all-reduce. It remembers when it averaged last, so that it never averages twice without a step in between. And it counts by `state.global_step`, not by `self.steps`.
#
# The next cell is folded, because it is an answer to the exercise. Run it as it is; open it (a click on its three dots) when yours is right.


# %% jupyter={"source_hidden": true}
# %%px
class LocalSGD(TrainerCallback):
    def __init__(self, trainer, local_steps, before_saving=True):
        self.trainer, self.local_steps, self.before_saving = trainer, local_steps, before_saving
        self.averages, self.averaged_at = 0, 0

    def average(self, step):
        if step > self.averaged_at:
            parameters = list(self.trainer.model.parameters())
            flat = torch.cat([parameter.detach().flatten() for parameter in parameters])
            torch.distributed.all_reduce(flat)
            flat /= torch.distributed.get_world_size()
            for parameter, mean in zip(
                parameters, flat.split([parameter.numel() for parameter in parameters])
            ):
                parameter.data.copy_(mean.view_as(parameter))
            self.averages, self.averaged_at = self.averages + 1, step

    def on_train_begin(self, args, state, control, **kwargs):
        model = self.trainer.model_wrapped
        if not isinstance(model, DistributedDataParallel):
            raise ValueError(
                "Local SGD needs a model in DistributedDataParallel, but this one is in "
                f"{type(model).__name__}."
            )
        self.alone = model.no_sync()
        self.alone.__enter__()

    def on_optimizer_step(self, args, state, control, **kwargs):
        if (state.global_step + 1) % self.local_steps == 0:  # this step is not yet counted
            self.average(state.global_step + 1)

    def on_step_end(self, args, state, control, **kwargs):
        if self.before_saving and (control.should_evaluate or control.should_save):
            self.average(state.global_step)

    on_epoch_end = on_step_end

    def on_train_end(self, args, state, control, **kwargs):
        self.average(state.global_step)
        self.alone.__exit__(None, None, None)


def every(local_steps, **more):
    """What `train` wants: a function that makes the callback from the Trainer."""
    return lambda trainer: LocalSGD(trainer, local_steps, **more)


# %% [markdown]
# What does it send? Local SGD with three values of $H$ over the same 4 optimizer steps, beside the DDP run from above:

# %%
# %%px
for local_steps in (1, 2, 4):
    with Meter() as meter:
        train(every(local_steps))
    counts[f"H={local_steps}"] = sent(meter)

# %%
rows = [
    (name, steps, calls, f"{payload:,}", f"{payload / steps:,.0f}")
    for name, (steps, calls, payload) in devices.pull("counts")[0].items()
]
pd.DataFrame(rows, columns=["way", "optimizer steps", "all-reduces", "bytes", "bytes per step"])

# %% [markdown]
# The bytes per step fall with $H$: half, a quarter. And an average is one all-reduce, where DDP makes one for each bucket.
#
# ## Whose weights are saved?
#
# Here rank 0 writes the weights of a checkpoint. `Gaps` notes how far the ranks are apart at each checkpoint: with the average before saving, and without it.


# %%
# %%px
def vector(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def gap(model):
    """The largest difference of any weight between the two ranks."""
    mean = vector(model).clone()
    torch.distributed.all_reduce(mean)
    return 2 * (vector(model) - mean / world_size).abs().max().item()


class Gaps(TrainerCallback):
    def __init__(self, trainer):
        self.trainer, self.seen = trainer, []

    def on_save(self, args, state, control, **kwargs):
        self.seen.append((state.global_step, gap(self.trainer.model)))


def gaps_at_saves(before_saving, **changes):
    trainer = train(every(3, before_saving=before_saving), Gaps, **changes)
    seen = next(
        callback.seen
        for callback in trainer.callback_handler.callbacks
        if isinstance(callback, Gaps)
    )
    averages = next(
        callback.averages
        for callback in trainer.callback_handler.callbacks
        if isinstance(callback, LocalSGD)
    )
    apart = ", ".join(
        f"after step {step} {'apart' if distance > 1e-6 else 'equal'}" for step, distance in seen
    )
    return averages, apart


saving = {"save_strategy": "steps", "save_steps": 2, "save_only_model": True}
with_it, without = gaps_at_saves(True, **saving), gaps_at_saves(False, **saving)
by_epoch = gaps_at_saves(False, **saving | {"save_strategy": "epoch"})
if rank == 0:
    print("average before saving:   ", with_it[1])
    print("without:                 ", without[1])
    print("without, after an epoch: ", by_epoch[1])

# %%
reveal("averages with H=3, 4 steps and save_steps=2", devices.pull("with_it")[0][0], "averages")

# %% [markdown]
# The guess was for $H=3$, 4 steps and `save_steps=2`: one average before the checkpoint after step 2, one that is due after step 3, one before the last checkpoint. (Your own callback may count one more: it may average after step 4 for the checkpoint and again at the end, which changes nothing.)
#
# Without them the checkpoints are rank 0's own, which have seen half of the data since the last average.
#
# Where a checkpoint has the optimizer's state (these have none: `save_only_model`), it is rank 0's, and after a resume all ranks start with it. How far that leads away from the uninterrupted run with AdamW, [a lesson of this unit](1b_averages_and_bytes.ipynb) has measured.
# (The averages stay on the same steps, because the checkpoint holds `state.global_step`. A counter like that of the exercise would begin at 0.)
#
# ## What the log says
#
# The Trainer averages the *loss* over the ranks before it logs it. The length of the gradient it logs as it is. Under DDP that is the same on all ranks. And now?


# %%
# %%px
def logged(*callbacks):
    trainer = train(*callbacks, logging_strategy="steps", logging_steps=1)
    return [
        (entry["loss"], entry["grad_norm"])
        for entry in trainer.state.log_history
        if "grad_norm" in entry
    ]


logs = {"DDP": logged(), "H=4": logged(every(4))}

# %%
first, second = devices.pull("logs")
for way in first:
    same_loss, same_norm = (
        all(abs(one[place] - other[place]) < 1e-5 for one, other in zip(first[way], second[way]))
        for place in (0, 1)
    )
    print(f"{way:4} the ranks log the same loss: {same_loss}, the same grad_norm: {same_norm}")

# %% [markdown]
# Under Local SGD `grad_norm` is one rank's, and so is the length by which it clips. That matters in the next section.
#
# ## Is $H=1$ the same as DDP?
#
# With $H=1$ the weights are averaged after every step. DDP averages the gradients before every step. Starting from equal weights $w$, plain SGD gives
#
# $$\frac{1}{2}\Big((w - \eta g_0) + (w - \eta g_1)\Big) = w - \eta\,\frac{g_0 + g_1}{2},$$
#
# which is DDP's step. The step is *linear* in the gradient, so it does not matter where the mean is taken. That makes $H=1$ a test of the callback: with SGD, without clipping, it must end where DDP ends.
#
# The [second lesson of this unit](1b_averages_and_bytes.ipynb) tried other optimizers. The Trainer's own defaults, AdamW and clipping at 1, are not linear: each rank clips its *own* gradient and divides by the size of its own.

# %%
# %%px
SETTINGS = {
    "SGD, no clipping": {},
    "AdamW, clipped at 1": {
        "optim": "adamw_torch",
        "learning_rate": 5e-4,
        "max_grad_norm": 1.0,
    },
}
start = vector(bert())
pairs = {
    name: (vector(train(**changes).model), vector(train(every(1), **changes).model))
    for name, changes in SETTINGS.items()
}
compared = {
    name: ((ddp - local).abs().max().item(), ((ddp - local).norm() / (ddp - start).norm()).item())
    for name, (ddp, local) in pairs.items()
}

# %%
rows = [
    (name, difference < 1e-6, f"{100 * apart:.0f} %")
    for name, (difference, apart) in devices.pull("compared")[0].items()
]
pd.DataFrame(
    rows, columns=["optimizer", "H=1 equals DDP to 1e-6", "apart, in percent of DDP's way"]
)

# %% [markdown]
# So "Local SGD with $H=1$ is DDP" holds for SGD without clipping. With AdamW and clipping it is another training.
#
# ### Exercise: same as DDP?
#
# *Difficulty* * · *4 minutes* · *Why*: a test that compares with DDP is only a test where the two must agree.
#
# Write `same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps)`. It returns True if Local SGD must end where DDP ends, up to rounding, and False otherwise.
#
# - `optimizer` is `"sgd"` or `"adamw"`, `momentum` is SGD's (the second lesson of this unit tried it), `max_grad_norm` is 0 for no clipping (if it is on, assume that it cuts).
# - `local_steps` is $H$. The optimizer state stays local.


# %% exercise="same_as_ddp" points=1
def same_as_ddp(optimizer, momentum, weight_decay, max_grad_norm, local_steps):
    """Whether Local SGD with these settings is the same training as DDP."""
    # BEGIN SOLUTION
    return optimizer == "sgd" and max_grad_norm == 0 and local_steps == 1
    # END SOLUTION


# %% check="same_as_ddp"
check(same_as_ddp)

# %% [markdown]
# ## What it refuses
#
# Without a DDP wrapper the callback stops with a sentence. Here is the case of one device; for FSDP and DeepSpeed `check` has tried your callback with stand-ins, since this lesson runs neither.


# %%
# %%px
class OnOneDevice:
    model_wrapped = torch.nn.Linear(1, 1)


try:
    LocalSGD(OnOneDevice, 4).on_train_begin(None, None, None)
except ValueError as error:
    print(error)

# %% [markdown]
# ## Three versions, one training
#
# The recipe of this unit, as in its [first lesson](1_pytorch.ipynb): $k=2$, $H=3$, averages after step 3 and at the end. By hand with two models in one process; Accelerate with checkpointing; the Trainer with the callback.

# %%
# %%px
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD as AcceleratesLocalSGD
from torch.utils.data import DataLoader


def with_accelerator():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = bert()
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer, dataloader = accelerator.prepare(
        model, optimizer, DataLoader(reviews, batch_size=4)
    )
    with AcceleratesLocalSGD(accelerator=accelerator, model=model, local_sgd_steps=3) as local_sgd:
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()
    return vector(model)


ends = {
    "Accelerate": with_accelerator(),
    "Trainer": vector(train(every(3)).model),
    "Trainer, DDP": pairs["SGD, no clipping"][0],
}


# %%
def by_hand():
    models = [small_bert(seed=0) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    micro_batches = list(DataLoader(dataset(load_reviews()[:64], max_length=64), batch_size=4))
    for step in range(1, 5):
        for rank in range(2):
            for batch in micro_batches[rank::2][2 * step - 2 : 2 * step]:
                (models[rank](**batch).loss / 2).backward()
            optimizers[rank].step()
            optimizers[rank].zero_grad()
        if step in (3, 4):
            with torch.no_grad():
                for pair in zip(*(model.parameters() for model in models)):
                    mean = torch.stack(pair).mean(0)
                    for parameter in pair:
                        parameter.copy_(mean)
    return flat(models[0])


def flat(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


start, reference = flat(small_bert(seed=0)).double(), by_hand().double()
rows = [("by hand, one process", reference)]
ends = devices.pull("ends")
rows += [(f"{name}, rank {rank}", ends[rank][name].double()) for name in ends[0] for rank in (0, 1)]
table = [
    (
        name,
        f"{end.norm():.4f}",
        f"{(end - start).norm():.4f}",
        bool((end - reference).abs().max() < 1e-6),
    )
    for name, end in rows
]
pd.DataFrame(table, columns=["version", "norm", "moved by", "same to 1e-6"])

# %% [markdown]
# Three versions, the same weights, on both ranks. The rows of DDP show that the comparison can fail: it is another training, which ends close by.
#
# ## All three on one plane
#
# Of the three costs of the first lesson, accumulation and checkpointing lower memory, and Local SGD lowers communication. What does each do to the other two? Stack them, on two devices with 16 reviews of each rank in every optimizer step, and look at memory, communication and computation at once. 64 reviews are 2 such steps. Each row is the Trainer with some more arguments.

# %%
# %%px
name_of_it = (
    "activation_checkpointing"
    if hasattr(TrainingArguments, "activation_checkpointing")
    else "gradient_checkpointing"
)
ROWS = [
    ("DDP, 16 x 1", 16, 1, {}, None),
    ("+ accumulation, 4 x 4", 4, 4, {}, None),
    ("+ checkpointing", 4, 4, {name_of_it: True}, None),
    ("+ Local SGD, H=2", 4, 4, {name_of_it: True}, 2),
]
runs = []
for name, micro_batch, steps, more, local_steps in ROWS:
    callbacks = [every(local_steps)] if local_steps else []
    changes = {
        "per_device_train_batch_size": micro_batch,
        "gradient_accumulation_steps": steps,
        **more,
    }
    settings = {
        "model": "small BERT, two devices",
        "micro_batch": micro_batch,
        "accumulation_steps": steps,
        "sequence_length": 64,
    }
    settings |= {
        "devices": 2,
        "local_steps": local_steps,
        "checkpointing": "every layer" if more else "off",
    }
    runs.append(
        measure(
            lambda: train(*callbacks, **changes),
            name=name,
            repeats=1,
            save=False,
            progress=False,
            **settings,
        )
    )

# %%
runs = devices.pull("runs")[0]
stop_devices()
table = [
    (
        run.name,
        run.optimizer_steps,
        round(run.flops / 1e9, 1),
        run.all_reduces,
        f"{run.collectives['all-reduce']['payload'] / run.optimizer_steps:,.0f}",
    )
    for run in runs
]
pd.DataFrame(table, columns=["run", "optimizer steps", "GFLOP", "all-reduces", "bytes per step"])

# %%
plot_techniques(runs)

# %% [markdown]
# - **Accumulation** goes down, and costs neither communication nor FLOPs. (Seconds are not in this picture.)
# - **Checkpointing** goes down further, and the dot grows: a third more computation here.
# - **Local SGD** goes left, and saves no memory. Here it even takes a little more, for the average's flat buffer. (The explorer below counts it among the activations, and here DDP's bucket, too, since it is never sent; in the other rows the bucket is among the gradients.) It costs no FLOPs, but it is no longer the same training.
#
# By FLOPs and bytes the order follows from that. First accumulation, which costs none of them. Then checkpointing, where memory is still short. Local SGD where the devices wait for the link. By seconds the first two may change places, as the [lesson on checkpointing](../2_checkpointing/3_trainer.ipynb) measured.
#
# Whether the devices wait depends on the link. Below is the explorer with these runs. Choose the number of devices and the link. Memory and counts are measured (all calls of the run, so in every row also the weights that rank 0 sends around once, when the model is wrapped); the time is the link model's of the [second lesson of this unit](1b_averages_and_bytes.ipynb). It adds to what one run took on this computer, waits for the other rank included, so the speeds differ from run to run. Start within a server, end between continents, and see from where on Local SGD makes a difference.

# %%
explorer(runs[::-1], budget=30 * 2**20)

# %% [markdown]
# ## What to keep
#
# - Give the callback its Trainer when you make it; `trainer.model_wrapped` is the DDP wrapper once training begins. `no_sync` is entered in `on_train_begin` and left in `on_train_end`.
# - Average in `on_optimizer_step` when due; in `on_step_end` and `on_epoch_end` when `control` says that the Trainer is about to evaluate or save; at the end. `on_save` is too late.
# - $H=1$ is DDP with SGD, whose step is linear in the gradient. Not with clipping, not with AdamW.
# - `grad_norm` and clipping are one rank's; a saved checkpoint holds rank 0's optimizer state.
# - Memory: accumulation, then checkpointing. Communication: Local SGD. The first two leave the training as it was.
#
# You can now say of a training run that does not fit which of the three costs is in the way, and which technique moves it, in plain PyTorch, with Accelerate and with the Trainer.
#
# Next, but for two optional lessons: [the published table](../4_whole_picture/1_published_table.ipynb), every row of it predicted without the card.
