"""Predicts the memory and the FLOPs of a run that was never made, with fake tensors: shapes without bytes.

Models of repeated layers grow by the same amount with every layer, at every moment of a training. So a model with two
layers and one with three say what one with twenty-four will need, as long as every moment is extrapolated by itself:
in a shallow model the fullest moment may lie in the optimizer's step, in a deep one at the end of the forward pass.
"""

import copy

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForSequenceClassification

from trainlean.meter import Meter
from trainlean.runs import CATEGORIES, Run

# The Trainer's AdamW is the fused one, which needs no temporary memory in its step.
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
}


def predict_run(
    config,
    *,
    micro_batch: int,
    accumulation_steps: int = 1,
    sequence_length: int = 512,
    checkpointing: bool = False,
    optimizer: str = "adamw",
    layers: tuple[int, int] = (2, 3),
    name: str | None = None,
) -> Run:
    """The run (origin "predicted") that training a sequence classifier of this transformers `config` would be.

    Its peak is that of an optimizer step in the middle of a training, the optimizer's state in place; its samples and
    FLOPs are those of one optimizer step. Traces only as many layers as `layers` says and extrapolates; nothing of the
    model's size is allocated. A setting that cannot be is a ValueError.
    """
    if not 0 < layers[0] < layers[1]:
        raise ValueError(f"layers are two numbers of layers, the smaller first, such as (2, 3), not {layers!r}.")
    training = _training(config, micro_batch, accumulation_steps, sequence_length, checkpointing, optimizer)
    depth = config.num_hidden_layers
    if depth <= layers[1]:
        return predict_peak_full(config, **training, name=name)
    few, more = (_trace(config, count, **training) for count in layers)
    further = (depth - layers[0]) / (layers[1] - layers[0])
    moments = [_extrapolate(a, b, further) for a, b in zip(few["moments"], more["moments"], strict=True)]
    flops = round(few["flops"] + (more["flops"] - few["flops"]) * further)
    return _run(config, training, moments, flops, name)


def predict_peak_full(
    config,
    *,
    micro_batch: int,
    accumulation_steps: int = 1,
    sequence_length: int = 512,
    checkpointing: bool = False,
    optimizer: str = "adamw",
    name: str | None = None,
) -> Run:
    """The same prediction with every layer traced: slower, and what `predict_run` is held against."""
    training = _training(config, micro_batch, accumulation_steps, sequence_length, checkpointing, optimizer)
    trace = _trace(config, config.num_hidden_layers, **training)
    return _run(config, training, trace["moments"], trace["flops"], name)


def _training(config, micro_batch, accumulation_steps, sequence_length, checkpointing, optimizer):
    counts = {
        "micro_batch": micro_batch,
        "accumulation_steps": accumulation_steps,
        "sequence_length": sequence_length,
    }
    for label, value in counts.items():
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{label} is a whole number from 1 on, not {value!r}.")
    positions = getattr(config, "max_position_embeddings", sequence_length)
    if sequence_length > positions:
        raise ValueError(f"The model has {positions} positions: sequence_length cannot be {sequence_length}.")
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"The optimizer is one of {', '.join(OPTIMIZERS)}, not {optimizer!r}.")
    return counts | {"checkpointing": bool(checkpointing), "optimizer": optimizer}


def _trace(config, layers, micro_batch, accumulation_steps, sequence_length, checkpointing, optimizer):
    """One window of the training with this many layers on fake tensors: its moments, in order, and its FLOPs."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = layers
    config.use_cache = False  # it means nothing in training, and checkpointing would warn
    with FakeTensorMode():
        model = AutoModelForSequenceClassification.from_config(config).train()
        if checkpointing:
            _enable_checkpointing(model)
        opt = OPTIMIZERS[optimizer](model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        opt.step()  # makes the optimizer's state
        opt.zero_grad()
        # From the second micro-batch on all are alike: the gradients of those before are there and stay.
        micro_batches = min(accumulation_steps, 2)
        with Meter(model, opt) as meter:
            for _ in range(micro_batches):
                batch = {
                    "input_ids": torch.zeros(micro_batch, sequence_length, dtype=torch.int64),
                    "attention_mask": torch.ones(micro_batch, sequence_length, dtype=torch.int64),
                    "labels": torch.zeros(micro_batch, dtype=torch.int64),
                }
                (model(**batch).loss / accumulation_steps).backward()
            opt.step()
            opt.zero_grad()
        return {
            "moments": [peak for _, peak in meter.segments()],
            "flops": meter.flops // micro_batches * accumulation_steps,
        }


def _enable_checkpointing(model):
    # transformers 5.23 gave it a new name; the old one goes with version 6.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable()


def _extrapolate(few, more, further):
    return {category: round(few[category] + (more[category] - few[category]) * further) for category in CATEGORIES}


def _run(config, training, moments, flops, name):
    checkpointed = training["checkpointing"]
    label = f"{training['micro_batch']}x{training['accumulation_steps']}" + checkpointed * ", checkpointed"
    shape = {"model": config.name_or_path or config.model_type, "layers": config.num_hidden_layers}
    return Run(
        name=name or label,
        settings=training | shape | {"checkpointing": "every layer" if checkpointed else "off"},
        peak=max(moments, key=lambda moment: sum(moment.values())),
        samples=training["micro_batch"] * training["accumulation_steps"],
        flops=flops,
        optimizer_steps=1,
        origin="predicted",
    )
