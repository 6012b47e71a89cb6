# %% [markdown]
# # Local SGD with Accelerate
#
# **You will be able to** wrap an Accelerate loop in `LocalSGD`, make it count what you mean, predict what it sends, and find out whether your processes know of each other at all.
#
# **Minutes**: 65, with a place to stop · **Before this**: [Local SGD: averages and bytes](1b_averages_and_bytes.ipynb) and [Gradient checkpointing with Accelerate](../2_checkpointing/2_accelerator.ipynb).

# %% [markdown]
# ## A question
#
# Local SGD by hand was: train alone for $H$ optimizer steps, average the weights, go on; average once more at the end. Accelerate has a class for it. Its guide promises two extra lines, and less communication.
#
# Does the loop that the guide prints send an $H$-th of what DDP sends?

# %%
import inspect
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from torch.utils.data import DataLoader
from trainlean import (
    LINKS,
    DeviceError,
    all_reduce_seconds,
    bert_large_config,
    check,
    dataset,
    format_bytes,
    guess,
    hint,
    load_reviews,
    plot_averages,
    recall,
    reveal,
    small_bert,
    start_devices,
    stop_devices,
    put_in_order,
)
from transformers import BertForSequenceClassification

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # two ranks on the CPU, on machines with GPUs too
devices = start_devices(2)

# %%
recall("3_local_sgd/2_accelerator")

# %% [markdown]
# ## Two lines
#
# Here is the loop that you know, with accumulation and checkpointing. The two lines with a comment are those of the guide: the model goes into a `LocalSGD` context, and `local_sgd.step()` stands at the end of the block.
#
# The model is a very small BERT, because this lesson counts and does not need to learn. (`use_cache=False` spares us a warning of checkpointing.) Everything below runs on both ranks.

# %%
# %%px
import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from torch import nn
from torch.utils.data import DataLoader
from trainlean import Meter, dataset, load_reviews, small_bert


def switch_on(model):
    """Checkpoint every layer; the name is the new one or, before transformers 5.23, the old one."""
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def tiny_bert():
    model = small_bert(
        seed=0,
        use_cache=False,
        num_hidden_layers=1,
        hidden_size=32,
        num_attention_heads=2,
        intermediate_size=64,
    )
    switch_on(model)
    return model


def train_as_in_the_guide(accelerator, model, optimizer, dataloader, local_steps):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(
        accelerator=accelerator, model=model, local_sgd_steps=local_steps
    ) as local_sgd:  # the first line
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()  # the second line


# %% [markdown]
# The class lets each rank train alone, and averages the *weights* with one all-reduce for each parameter of the model. So the number of averages is the number of all-reduces, divided by the number of parameters.
#
# 32 micro-batches, 16 for each rank; 4 accumulation steps, so 4 optimizer steps; and `local_sgd_steps=8` as in the guide.
#
# **Predict.** How often will the weights be averaged?

# %%
# BEGIN SOLUTION
my_guess = 1
# END SOLUTION
guess("averages in 4 optimizer steps with local_sgd_steps=8", my_guess, "averages")

# %%
# %%px
data = dataset(load_reviews()[:64], max_length=16)


def counted(train, accumulation_steps, local_steps, model=None):
    """What one training sends: optimizer steps, all-reduces and payload bytes of this rank."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    model = model or tiny_bert()
    optimizer = torch.optim.SGD(
        [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05
    )
    with Meter() as meter:
        train(accelerator, model, optimizer, DataLoader(data, batch_size=2), local_steps)
    sent = meter.collectives["all-reduce"]
    return {
        "optimizer steps": meter.optimizer_steps,
        "all-reduces": sent["calls"],
        "bytes": sent["payload"],
    }


parameters = len(list(tiny_bert().parameters()))
size = sum(parameter.nbytes for parameter in tiny_bert().parameters())
result = counted(train_as_in_the_guide, 4, 8)
averages = result["all-reduces"] / parameters
print(f"{parameters} parameters, {size:,} bytes; {result}; so {averages:.0f} averages")

# %%
reveal(
    "averages in 4 optimizer steps with local_sgd_steps=8",
    round(devices.pull("averages")[0]),
    "averages",
)

# %% [markdown]
# Four optimizer steps, $H = 8$: no rank reaches 8 steps. Yet there were three averages. The source is short enough to read:

# %%
print(inspect.getsource(LocalSGD.step))
print(inspect.getsource(LocalSGD._sync_and_avg_model_params))
print(inspect.getsource(LocalSGD.__exit__))

# %% [markdown]
# - `step` counts *its own calls*. In the guide's loop it is called in every block, so it counts **micro-batches**: 16 of them, averages after the 8th and the 16th.
# - `__exit__` averages once more. That is the third.
#
# The guide says "one call `local_sgd.step()` after every optimizer step". Its code calls it after every micro-batch. In a loop without accumulation both are the same; with accumulation they are not.
#
# ## When does it average?
#
# Watch a training run, one micro-batch after the other. `watched` notes after each block how many optimizer steps and averages there have been.


# %%
# %%px
def watched(accumulation_steps, local_steps, micro_batches=16):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    model = nn.Linear(1, 1, bias=False)  # one parameter: an average is one all-reduce
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, dataloader = accelerator.prepare(
        model, optimizer, DataLoader(torch.ones(2 * micro_batches, 1), batch_size=1)
    )
    notes = []
    with (
        Meter() as meter,
        LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=local_steps) as local_sgd,
    ):
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).mean())
                optimizer.step()
                optimizer.zero_grad()
                local_sgd.step()
            notes.append((meter.optimizer_steps, meter.all_reduces))
    return notes


WAYS = {
    "k=1, H=4": (1, 4),
    "k=4, H=8": (4, 8),
    "k=4, H=6": (4, 6),
    "k=4, H=2": (4, 2),
}
notes = {name: watched(*way) for name, way in WAYS.items()}

# %%
plot_averages(devices.pull("notes")[0])

# %% [markdown]
# - $k=1$: as intended. Micro-batch and optimizer step are the same.
# - $k=4$, $H=8$: after every *second* optimizer step.
# - $k=4$, $H=6$: the first time in the **middle of a window**. Then a part of the window's gradient was taken at weights that are no longer there when the step comes.
# - $k=4$, $H=2$: twice in every window. The weights do *not change* within a window, so every second average is sent for nothing.
#
# ## Make it count optimizer steps
#
# `local_sgd.step()` should be called only for the micro-batch with which the optimizer steps. The accelerator has an attribute that is true exactly then; you have met it in [Gradient accumulation with Accelerate](../1_accumulation/2_accelerator.ipynb).
#
# ### Exercise: wrap the loop
#
# *Difficulty* ** · *8 minutes* · *Why*: all three techniques in one loop.
#
# Write `train_locally(accelerator, model, optimizer, dataloader, local_steps)`: one pass through the data loader with Local SGD. It runs on two ranks at once.
#
# - Nothing is prepared. The accelerator knows its accumulation steps. `model` is a classifier of transformers (`model(**batch).loss`).
# - Every layer is checkpointed; `switch_on(model)` does it. It stands in the cell once more, since what the `%%px` cells above have defined is known to the ranks of this lesson only.
# - The ranks average after every `local_steps` **optimizer steps**, never inside a window, and once at the end.
# - In between they send nothing and wait for nobody: no gather, no barrier. Afterwards all hold the mean of all weights.


# %%
put_in_order("train_locally")


# %% exercise="train_locally" points=3
def switch_on(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def train_locally(accelerator, model, optimizer, dataloader, local_steps):
    """Train once through the data loader with accumulation, checkpointing and Local SGD."""
    # BEGIN SOLUTION
    switch_on(model)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=local_steps) as local_sgd:
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()
    # END SOLUTION


# %% check="train_locally"
check(train_locally)

# %% [markdown]
# Stuck? `hint(train_locally)` tells a little more each time.
#
# **A good place to stop for today.**
#
# ## What the guard saves
#
# One `if` turns calls into optimizer steps. Call it the *guard*:
#
# ```python
#                 if accelerator.sync_gradients:
#                     local_sgd.step()
# ```
#
# How much does it save? Here is everything at once: DDP, the guide's loop and the guarded one, for $k = 1$ and $4$ and several $H$. In the DDP rows `accumulate` synchronises once in each window, as the accumulation unit showed.


# %%
# %%px
def train_guarded(accelerator, model, optimizer, dataloader, local_steps):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=local_steps) as local_sgd:
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()


def train_ddp(accelerator, model, optimizer, dataloader, local_steps):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()


rows = {}
for k, periods in ((1, (1, 8)), (4, (1, 2, 4, 8))):
    rows[k, "DDP", "–"] = counted(train_ddp, k, None)
    for H in periods:
        rows[k, "guide", H] = counted(train_as_in_the_guide, k, H)
        if k > 1:  # with k = 1 the guard is always open
            rows[k, "guarded", H] = counted(train_guarded, k, H)

# %%
parameters, size = devices.pull("parameters")[0], devices.pull("size")[0]
table = []
for (k, way, H), row in devices.pull("rows")[0].items():
    ddp = devices.pull("rows")[0][k, "DDP", "–"]
    averages = "–" if way == "DDP" else row["all-reduces"] // parameters
    table.append(
        (
            k,
            way,
            H,
            row["optimizer steps"],
            averages,
            row["all-reduces"],
            f"{row['bytes']:,}",
            f"{row['bytes'] / ddp['bytes']:.2f}",
        )
    )
columns = ["k", "loop", "H", "optimizer steps", "averages", "all-reduces", "bytes", "x DDP's bytes"]
pd.DataFrame(table, columns=columns).sort_values(["k", "loop"], kind="stable").reset_index(
    drop=True
)

# %% [markdown]
# Read the last column: the all-reduces' bytes as a multiple of DDP's with the same $k$. (That `prepare` sends the model once, in every row, is not counted.)
#
# - With $k=4$ the guide's loop sends less than DDP only at $H=8$. At $H=4$ it sends *more* than DDP, at $H=1$ more than four times as much.
# - Guarded, $H=2$ sends three averages where DDP sends four gradients: after steps 2 and 4, and on exit. $H=8$ sends one.
# - Even $H=1$ sends more than DDP: the average on exit follows right behind one that has just been made. It is needed where the last steps have not been averaged.
#
# ### Exercise: count what is sent
#
# *Difficulty* ** · *8 minutes* · *Why*: you can know this number before the training.
#
# Write `local_sgd_traffic(micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded)`. It returns three whole numbers: how often one rank averages its weights in one pass, how many all-reduces that makes, and how many bytes it hands to them.
#
# - `micro_batches` are one rank's. The data loader is prepared, so a last, shorter window steps, too.
# - Unlike in the last lesson's `communication`, the class *always* averages once more on exit.
# - `parameters` is the number of parameter tensors, `model_bytes` the bytes of all of them together.
# - `guarded` says whether `local_sgd.step()` is called after each optimizer step (True) or in each block (False).


# %% exercise="local_sgd_traffic" points=2
def local_sgd_traffic(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    """(averages, all-reduces, bytes) of one rank in one pass with accelerate's LocalSGD."""
    # BEGIN SOLUTION
    optimizer_steps = -(-micro_batches // accumulation_steps)  # rounded up
    calls = optimizer_steps if guarded else micro_batches
    averages = calls // local_steps + 1
    return averages, averages * parameters, averages * model_bytes
    # END SOLUTION


# %% check="local_sgd_traffic"
check(local_sgd_traffic)

# %% [markdown]
# The pattern, for $C$ calls of `local_sgd.step()` and weights of $M$ bytes:
#
# > averages = $\lfloor C / H \rfloor + 1$, bytes = averages × $M$
#
# where $C$ is the number of micro-batches in the guide's loop and of optimizer steps in the guarded one.

# %%
agree = True
for (k, way, H), row in devices.pull("rows")[0].items():
    if way != "DDP":
        calls = 16 if way == "guide" else row["optimizer steps"]
        agree &= (
            row["bytes"] == (calls // H + 1) * size
            and row["all-reduces"] == (calls // H + 1) * parameters
        )
print("every row as predicted:", agree)

# %% [markdown]
# ## One all-reduce for each parameter
#
# DDP collects gradients in buckets and makes one all-reduce for each bucket. `LocalSGD` makes one for each parameter. It also sends what no training has changed. Freeze the embeddings:


# %%
# %%px
def frozen():
    model = tiny_bert()
    model.bert.embeddings.requires_grad_(False)
    return model


trained = sum(parameter.nbytes for parameter in frozen().parameters() if parameter.requires_grad)
print(f"trained: {trained:,} of {size:,} bytes")
print(
    "DDP, a step:          ",
    {
        name: value // 4
        for name, value in counted(train_ddp, 4, None, frozen()).items()
        if name != "optimizer steps"
    },
)
print(
    "LocalSGD, an average: ",
    {
        name: value // 3
        for name, value in counted(train_guarded, 4, 2, frozen()).items()
        if name != "optimizer steps"
    },
)

# %% [markdown]
# In a step DDP sends nothing of the frozen part. `LocalSGD` sends every parameter: if you adapt a large model with few trained weights, you send the large model.
#
# Do so many calls matter? Each takes at least the *latency* of its messages. Ask the link model of the [previous lesson](1b_averages_and_bytes.ipynb), for BERT-large on 8 devices: an average in a single all-reduce (the weights copied into one flat buffer first), and one with an all-reduce for each parameter. These are modelled times, not measured ones.

# %%
with torch.device("meta"):  # shapes only: no memory is taken
    large = list(BertForSequenceClassification(bert_large_config()).parameters())
rows = []
for link in LINKS:
    flat = all_reduce_seconds(sum(parameter.nbytes for parameter in large), 8, link)
    each = sum(all_reduce_seconds(parameter.nbytes, 8, link) for parameter in large)
    rows.append((link.name, f"{flat:.3g} s", f"{each:.3g} s", f"{each / flat:.2f}"))
print(f"{len(large)} parameters, {format_bytes(sum(parameter.nbytes for parameter in large))}")
pd.DataFrame(
    rows, columns=["link", "one flat all-reduce", "one for each parameter", "times as long"]
)

# %% [markdown]
# In the middle of the table the bytes take most of the time. At both ends the latency is long beside them, and an average takes three times as long; between continents this costs minutes. torch's averager of the previous lesson sends one flat buffer, which is a second copy of the weights.
#
# ## What stays unequal
#
# The source above averages `model.parameters()` and nothing else. So what the [previous lesson](1b_averages_and_bytes.ipynb) measured holds here as well: optimizer state and buffers stay on their rank. (DDP gives all ranks rank 0's buffers in `prepare` and in the first forward pass after it.) Two things follow for what you save.
#
# - Where there is a BatchNorm, average the buffers before you save rank 0's model.
# - To go on after a stop, save right after an average, and on every rank its optimizer state.
#
# ## The same weights
#
# The recipe of this unit: the small BERT, SGD with learning rate 0.05, the first 64 reviews in their order, micro-batches of 4, of which the two ranks take turns; windows of 2, so 4 optimizer steps for each rank; $H=3$. So there is an average after step 3, and one at the end.
#
# Once with two models by hand, in one process and without Accelerate. Once with the guarded loop, on two devices.


# %%
def by_hand():
    models = [small_bert(seed=0) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in models]
    micro_batches = list(DataLoader(dataset(load_reviews()[:64], max_length=64), batch_size=4))
    for step in range(4):
        for rank in range(2):
            for batch in micro_batches[rank::2][2 * step : 2 * step + 2]:
                (models[rank](**batch).loss / 2).backward()
            optimizers[rank].step()
            optimizers[rank].zero_grad()
        if step + 1 in (3, 4):
            with torch.no_grad():
                for pair in zip(*(model.parameters() for model in models)):
                    mean = torch.stack(pair).mean(0)
                    for parameter in pair:
                        parameter.copy_(mean)
    return torch.cat([parameter.detach().flatten() for parameter in models[0].parameters()])


def with_accelerator():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = small_bert(seed=0, use_cache=False)
    switch_on(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    dataloader = DataLoader(dataset(load_reviews()[:64], max_length=64), batch_size=4)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=3) as local_sgd:
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


torch.set_num_threads(1)
start_of_it = torch.cat(
    [parameter.detach().flatten() for parameter in small_bert(seed=0).parameters()]
).double()
reference = by_hand().double()
ranks = devices.run(with_accelerator)
for name, vector in {
    "by hand": reference,
    "rank 0": ranks[0].double(),
    "rank 1": ranks[1].double(),
}.items():
    same = bool((vector - reference).abs().max() < 1e-6)
    print(
        f"{name:8} norm {vector.norm():.4f}  moved by "
        f"{(vector - start_of_it).norm():.4f}  same to 1e-6: {same}"
    )

# %% [markdown]
# Both ranks, and all three techniques together, end where the two models by hand end.
#
# ## How it fails
#
# `LocalSGD` wants the prepared model. The plain one has no `no_sync`:

# %%
# %%px
accelerator = Accelerator(cpu=True)
plain = nn.Linear(4, 1)
model = accelerator.prepare(plain)
try:
    with LocalSGD(accelerator=accelerator, model=plain, local_sgd_steps=4):
        pass
except AttributeError as error:
    print(error)

# %% [markdown]
# On *one* device the same line runs without a word: there `LocalSGD` does nothing.
#
# The next failure comes with a larger model. FSDP, DeepSpeed and Megatron can divide it, or the optimizer's state, among the ranks, and the class refuses all three. Here a stand-in says that it is one of these:

# %%
from accelerate.utils import DistributedType


class UnderFSDP:
    distributed_type = DistributedType.FSDP


try:
    LocalSGD(accelerator=UnderFSDP(), model=torch.nn.Linear(4, 1), local_sgd_steps=4)
except NotImplementedError as error:
    print("NotImplementedError:", error)

# %% [markdown]
# Another failure is worse. Let rank 0 meet a broken batch in its third step, with $H=4$.
#
# Its `with` block ends with the error. But `__exit__` averages on the way out, and waits for rank 1. Rank 1 comes, for *its own* periodic average in step 4; the two pair up. Then rank 0 is gone, and rank 1 waits for it at step 8.


# %%
def train_with_a_broken_batch(rank):
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=4) as local_sgd:
        for step in range(1, 13):
            if rank == 0 and step == 3:
                raise ValueError("a broken batch")
            accelerator.backward(model(torch.ones(1, 1)).mean())
            optimizer.step()
            optimizer.zero_grad()
            local_sgd.step()


def train_here():
    train_with_a_broken_batch(torch.distributed.get_rank())


try:
    devices.run(train_here)
except DeviceError as error:
    print(error)

# %% [markdown]
# Rank 1 has averaged its weights with those of a rank that had already failed, and then waited in vain. Here the course's devices notice it. In the plain processes of the [first lesson of this unit](1_pytorch.ipynb) rank 1 would fail when rank 0's process ends, and wait while it lives.
#
# Unequal numbers of steps pair up wrongly, too, as that lesson showed. `prepare` deals the micro-batches evenly by default (`even_batches=True`); leave that on.
#
# ## Do the processes know of each other?
#
# All this needs two processes that form a group. Our devices do. A launcher may start two processes that do not: each is "rank 0 of 1", trains a model of its own on *all* data, and raises no error. Three ways to start a script on two processes, here on a CPU:

# %%
folder = Path(tempfile.mkdtemp())
say = 'print(f"rank {accelerator.process_index} of {accelerator.num_processes}", flush=True)'
(folder / "script.py").write_text(
    f"from accelerate import Accelerator\naccelerator = Accelerator()\n{say}\n"
)
train = (
    "def train():\n    from accelerate import Accelerator\n    accelerator = Accelerator()\n"
    f"    {say}\n"
)
(folder / "notebook.py").write_text(
    f"from accelerate import notebook_launcher\n{train}notebook_launcher(train, num_processes=2)\n"
)

LAUNCHES = {
    "notebook_launcher(train, num_processes=2)": ["notebook.py"],
    "accelerate launch --cpu --num_processes 2": [
        "-m",
        "accelerate.commands.launch",
        "--cpu",
        "--num_processes",
        "2",
        "script.py",
    ],
    "torchrun --nproc_per_node 2": [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "script.py",
    ],
}


def start(arguments):
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ACCELERATE_", "RANK", "WORLD_SIZE", "LOCAL_"))
    }
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


stop_devices()
started = {name: start(arguments) for name, arguments in LAUNCHES.items()}
said = {name: process.communicate(timeout=100)[0] for name, process in started.items()}
rows = [
    (name, ", ".join(sorted(re.findall(r"rank \d+ of \d+", text)))) for name, text in said.items()
]
pd.DataFrame(rows, columns=["started with", "the processes say"])

# %% [markdown]
# None of the three is what it seems. `notebook_launcher` even announces GPUs:

# %%
print(said["notebook_launcher(train, num_processes=2)"].splitlines()[0])

# %% [markdown]
# | started with | what is wrong | cure |
# |---|---|---|
# | `notebook_launcher` | two processes that do not look for each other | `Accelerator(cpu=True)` in the function |
# | `accelerate launch --cpu --num_processes 2` | it starts one process | `torchrun`, as in the next row |
# | `torchrun` | Accelerate takes each process for a single one | `ACCELERATE_USE_CPU=true torchrun ...` |
#
# A test of this course (`tests/training/test_local_sgd.py`) holds both cures.
#
# One habit finds all three: a distributed script first prints `accelerator.num_processes`, and you compare it with what you asked for.
#
# ## What to keep
#
# - `with LocalSGD(accelerator, model, local_sgd_steps=H)` around the loop, with the *prepared* model, and `if accelerator.sync_gradients: local_sgd.step()` in the block.
# - It counts calls. Unguarded it counts micro-batches, and with accumulation it can send more than DDP.
# - averages = calls // H + 1; each is one all-reduce for every parameter, frozen ones included.
# - Optimizer state and buffers are not averaged.
# - Print `accelerator.num_processes` first.
#
# Next: [Local SGD with the Trainer](3_trainer.ipynb), which has no such class, so you will write one.
