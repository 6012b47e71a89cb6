"""Local SGD by hand, with Accelerate and with the Trainer is the same training; and what the launchers start."""

import re
import subprocess
import sys
from functools import partial

import pytest
import torch
from patience import patience

from trainlean import dataset, load_reviews, small_bert
from trainlean.devices.engines import run_on_devices
from trainlean.exercises.solutions import answer_from
from trainlean.workspace import COURSE

pytestmark = pytest.mark.usefixtures("one_thread")
LEARNING_RATE, MICRO_BATCH, ACCUMULATION_STEPS, LOCAL_STEPS = 0.05, 4, 2, 3
SECONDS = 90  # for all that the ranks do, on a machine at rest


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).double()


def reviews():
    return dataset(load_reviews()[:64], max_length=64)


def by_hand(local_steps=LOCAL_STEPS):
    """Two models in one process; the ranks take turns with the micro-batches."""
    from torch.utils.data import DataLoader

    models = [small_bert(seed=0) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=LEARNING_RATE) for model in models]
    micro_batches = list(DataLoader(reviews(), batch_size=MICRO_BATCH))
    steps = len(micro_batches) // 2 // ACCUMULATION_STEPS
    for step in range(1, steps + 1):
        for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            for batch in micro_batches[rank::2][
                (step - 1) * ACCUMULATION_STEPS : step * ACCUMULATION_STEPS
            ]:
                (model(**batch).loss / ACCUMULATION_STEPS).backward()
            optimizer.step()
            optimizer.zero_grad()
        if step % local_steps == 0 or step == steps:
            with torch.no_grad():
                for one, other in zip(*(model.parameters() for model in models), strict=True):
                    mean = (one + other) / 2
                    one.copy_(mean)
                    other.copy_(mean)
    return weights(models[0])


def with_accelerate():
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD
    from torch.utils.data import DataLoader

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION_STEPS)
    model = small_bert(seed=0, use_cache=False)
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(reviews(), batch_size=MICRO_BATCH)
    )
    with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=LOCAL_STEPS) as local_sgd:
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(**batch).loss)
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    local_sgd.step()
    return weights(model)


def with_trainer(callback, folder, local_steps, **changes):
    """With the callback of the lesson's solution; `local_steps` None is plain DDP."""
    from transformers import Trainer, TrainingArguments
    from transformers.trainer_callback import PrinterCallback

    model = small_bert(seed=0)
    model.accepts_loss_kwargs = False  # transformers #47688
    recipe = {
        "per_device_train_batch_size": MICRO_BATCH, "gradient_accumulation_steps": ACCUMULATION_STEPS, "num_train_epochs": 1,
        "learning_rate": LEARNING_RATE, "lr_scheduler_type": "constant", "optim": "sgd", "max_grad_norm": 0, "train_sampling_strategy": "sequential",
        "logging_strategy": "no", "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    trainer = Trainer(
        model=model,
        args=TrainingArguments(str(folder), **recipe | changes),
        train_dataset=reviews(),
    )
    trainer.remove_callback(PrinterCallback)
    if local_steps is not None:
        trainer.add_callback(callback(trainer, local_steps))
    trainer.train()
    return weights(model)


SETTINGS = {
    "SGD": {},
    "clipped": {"max_grad_norm": 0.5},
    "AdamW": {"optim": "adamw_torch", "learning_rate": 5e-4},
}  # two steps of each


def all_versions(callback, folder):
    """One start of the ranks for everything that needs them."""
    train = partial(with_trainer, callback, folder)
    pairs = {
        name: (train(None, max_steps=2, **changes), train(1, max_steps=2, **changes))
        for name, changes in SETTINGS.items()
    }
    return {"Accelerate": with_accelerate(), "Trainer": train(LOCAL_STEPS), "pairs": pairs}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    callback = answer_from(
        COURSE / "solutions" / "3_local_sgd" / "3_trainer.ipynb", "LocalSGDCallback"
    )
    return run_on_devices(
        partial(all_versions, callback, tmp_path_factory.mktemp("trainer")),
        fresh=True,
        timeout=patience(SECONDS),
    )


@pytest.mark.timeout(600)
def test_three_versions_end_with_the_same_weights_on_both_ranks(ranks):
    reference, start = by_hand(), weights(small_bert(seed=0))
    assert (reference - start).abs().max() > 1e-4, "it has trained"
    for number, ends in enumerate(ranks):
        for version in ("Accelerate", "Trainer"):
            assert (ends[version] - reference).abs().max() < 1e-6, f"{version}, rank {number}"
    assert (by_hand(local_steps=1) - reference).abs().max() > 1e-5, (
        "averaging at other moments is another training"
    )


@pytest.mark.timeout(600)
def test_one_local_step_is_ddp_for_sgd_only(ranks):
    apart = {name: (ddp - local).abs().max() for name, (ddp, local) in ranks[0]["pairs"].items()}
    assert apart["SGD"] < 1e-6
    assert apart["clipped"] > 2e-6  # 8e-6 after two steps
    assert apart["AdamW"] > 1e-4


SAY = 'print(f"rank {accelerator.process_index} of {accelerator.num_processes}", flush=True)'
CURES = {
    "notebook_launcher": ["notebook.py"],
    "torchrun": [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "script.py",
    ],
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CURES)
def test_cures_of_the_launchers(name, tmp_path, monkeypatch):
    """What the lesson 3_local_sgd/2_accelerator says makes two ranks on a CPU; it measures itself what does not."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if name == "torchrun":
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    (tmp_path / "script.py").write_text(
        f"from accelerate import Accelerator\naccelerator = Accelerator()\n{SAY}\n"
    )
    train = f"def train():\n    from accelerate import Accelerator\n    accelerator = Accelerator(cpu=True)\n    {SAY}\n"
    port = "import socket\nwith socket.create_server(('127.0.0.1', 0)) as server:\n    port = str(server.getsockname()[1])\n"
    (tmp_path / "notebook.py").write_text(
        f"from accelerate import notebook_launcher\n{port}{train}notebook_launcher(train, num_processes=2, use_port=port)\n"
    )
    done = subprocess.run(
        [sys.executable, *CURES[name]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=patience(SECONDS),
    )
    assert sorted(re.findall(r"rank \d+ of \d+", done.stdout)) == ["rank 0 of 2", "rank 1 of 2"], (
        done.stderr[-2000:]
    )
