"""The PyTorch loop, the Accelerator and the Trainer are the same training: they end with the same weights."""

import pytest
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from trainlean import dataset, load_reviews, small_bert

pytestmark = pytest.mark.usefixtures("one_thread")
MICRO_BATCH, STEPS = 4, 4
SETTINGS = {
    "sgd": (
        lambda parameters: torch.optim.SGD(parameters, lr=0.05),
        {"optim": "sgd", "learning_rate": 0.05},
    ),
    "adamw": (
        lambda parameters: torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.0),
        {"optim": "adamw_torch", "learning_rate": 5e-4},
    ),
    "adamw, the Trainer's fused one": (
        lambda parameters: torch.optim.AdamW(parameters, lr=5e-4, weight_decay=0.0),
        {"learning_rate": 5e-4},
    ),
}


@pytest.fixture(scope="module")
def data():
    return dataset(load_reviews()[:64], max_length=64)


def weights(model):
    return torch.cat([parameter.detach().flatten().double() for parameter in model.parameters()])


def large_batch(data, make_optimizer):
    model = small_bert(seed=0)
    optimizer = make_optimizer(model.parameters())
    for batch in DataLoader(data, batch_size=MICRO_BATCH * STEPS):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return weights(model)


def pytorch(data, make_optimizer):
    model = small_bert(seed=0)
    optimizer = make_optimizer(model.parameters())
    for number, batch in enumerate(DataLoader(data, batch_size=MICRO_BATCH), start=1):
        (model(**batch).loss / STEPS).backward()
        if number % STEPS == 0:
            optimizer.step()
            optimizer.zero_grad()
    return weights(model)


def accelerated(data, make_optimizer):
    accelerator = Accelerator(gradient_accumulation_steps=STEPS, cpu=True)
    model = small_bert(seed=0)
    model, optimizer, loader = accelerator.prepare(
        model, make_optimizer(model.parameters()), DataLoader(data, batch_size=MICRO_BATCH)
    )
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    return weights(accelerator.unwrap_model(model))


def trainer(data, folder, *, cured=True, micro_batch=MICRO_BATCH, steps=STEPS, **arguments):
    model = small_bert(seed=0)
    if cured:
        model.accepts_loss_kwargs = False  # transformers #47688
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=steps,
        num_train_epochs=1,
        lr_scheduler_type="constant",
        max_grad_norm=0,
        train_sampling_strategy="sequential",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        **arguments,
    )
    made = Trainer(model=model, args=args, train_dataset=data)
    made.remove_callback(PrinterCallback)
    made.train()
    return made


@pytest.mark.parametrize("name", SETTINGS)
def test_three_versions_end_with_the_same_weights(name, data, tmp_path):
    make_optimizer, arguments = SETTINGS[name]
    reference = pytorch(data, make_optimizer)
    made = trainer(data, tmp_path, **arguments)
    assert made.state.global_step == 4
    ends = {"Accelerator": accelerated(data, make_optimizer), "Trainer": weights(made.model)}
    for version, end in ends.items():
        assert (end - reference).abs().max() < 1e-6, version
    assert (reference - weights(small_bert(seed=0))).abs().max() > 1e-4, "it has trained"


def test_accumulation_ends_where_the_large_batch_ends(data):
    # For SGD only: where a gradient is nearly zero AdamW makes much of its rounding, which differs between one sum and four.
    make_optimizer, _ = SETTINGS["sgd"]
    assert (pytorch(data, make_optimizer) - large_batch(data, make_optimizer)).abs().max() < 1e-6


def test_trainer_without_the_cure_is_another_training(data, tmp_path):
    """When this fails, transformers has been repaired (#47688): the lesson 1_accumulation/3_trainer must say so."""
    make_optimizer, arguments = SETTINGS["sgd"]
    reference = trainer(data, tmp_path, micro_batch=MICRO_BATCH * STEPS, steps=1, **arguments)
    as_it_comes = trainer(data, tmp_path, cured=False, **arguments)
    assert (weights(as_it_comes.model) - weights(reference.model)).abs().max() > 1e-3
    for quantity in ("loss", "grad_norm"):
        first, right = (made.state.log_history[0][quantity] for made in (as_it_comes, reference))
        assert first / right == pytest.approx(STEPS, rel=1e-4), quantity
