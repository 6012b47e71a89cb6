"""Predicts the memory and the FLOPs of a run that was never made, with fake tensors: shapes without bytes.

Models of repeated layers grow by the same amount with every layer, at every moment of a training. So a model with two
layers and one with three say what one with twenty-four will need, as long as every moment is extrapolated by itself:
in a shallow model the fullest moment may lie in the optimizer's step, in a deep one at the end of the forward pass.

A graphics card keeps other tensors than a CPU, and its allocator holds more than the tensors: `device` says which.
"""

import copy
import math
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from unittest import mock

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import AutoModelForSequenceClassification
from transformers.optimization import Adafactor

from trainlean.costs.allocator import replay
from trainlean.costs.meter import Meter
from trainlean.costs.runs import CATEGORIES, Run

aten = torch.ops.aten


class Adam8bit(torch.optim.Optimizer):
    """The state of bitsandbytes' 8-bit Adam and nothing of its arithmetic, which fake tensors cannot follow.

    Two averages of one byte a weight, and a 4-byte scale for each block of 2048 of them (the value of 2022; newer versions
    take 256); tensors of fewer than 4096 weights keep two averages of 4 bytes. The step itself needs no memory.
    """

    BLOCK, SMALLEST = 2048, 4096

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        """Make the state where there is none."""
        for parameter in (
            parameter for group in self.param_groups for parameter in group["params"]
        ):
            if parameter.grad is not None and not self.state[parameter]:
                self.state[parameter] = self._averages(parameter)

    def _averages(self, parameter):
        if parameter.numel() < self.SMALLEST:
            return {name: torch.zeros_like(parameter) for name in ("average", "square")}
        blocks = math.ceil(parameter.numel() / self.BLOCK)
        quantised = {
            name: torch.zeros_like(parameter, dtype=torch.uint8) for name in ("average", "square")
        }
        return quantised | {f"{name} scales": parameter.new_zeros(blocks) for name in quantised}


# The Trainer's AdamW is the fused one, which needs no temporary memory in its step; that of 2022 went weight by weight.
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True),
    "adafactor": lambda parameters: Adafactor(
        parameters, lr=1e-3, scale_parameter=False, relative_step=False
    ),
    "adam8bit": Adam8bit,
}
PRECISIONS = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}
ATTENTIONS = ("eager", "sdpa")
DEVICES = ("cpu", "gpu", "gpu of 2022")
# Selective checkpointing keeps what the linear layers give, and computes the attention's scores and all small operations again.
SELECTIVE = (aten.mm.default, aten.addmm.default)


def predict_run(
    config,
    *,
    micro_batch: int,
    accumulation_steps: int = 1,
    sequence_length: int = 512,
    checkpointing: bool | int | str = False,
    optimizer: str = "adamw",
    precision: str = "fp32",
    attention: str = "eager",
    device: str = "cpu",
    compiled: bool = False,
    layers: tuple[int, int] | None = (2, 3),
    name: str | None = None,
) -> Run:
    """The run (origin "predicted") that training a sequence classifier of this transformers `config` would be.

    Its peak is that of an optimizer step in the middle of a training, the optimizer's state in place; its samples and
    FLOPs are those of one optimizer step. Traces only as many layers as `layers` says and extrapolates (None: traces all,
    slower, and what the extrapolation is held against). Nothing of the model's size is allocated. A setting that cannot be
    is a ValueError.

    - `checkpointing`: False, True (every layer), n (layers 0, n, 2n, ... are checkpointed), or "selective" (what linear
      layers give is kept, the rest computed again)
    - `optimizer`: "sgd", "momentum", "adamw" (fused), "adafactor" or "adam8bit" (its state by formula)
    - `precision`: "fp32", or "fp16" and "bf16" for autocast: weights, gradients and state stay float32
    - `attention`: "eager", or "sdpa" for torch's fused scaled-dot-product attention
    - `device`: "cpu"; "gpu" for the tensors that CUDA keeps (dropout masks of one byte, softmax and normalisation in
      float32 under autocast) and what its allocator makes of them, in bytes, as `machine["allocator_peak"]` and
      `machine["allocator_reserved"]`; "gpu of 2022" for torch 1.10 and the Trainer of that time: the softmax kept its
      input too (until pull request 66018), gradients were set to zero rather than freed, AdamW was not fused
    - `compiled`: as `torch.compile` would train the model (see `trainlean.costs.compiled`; fp32, without checkpointing; on a GPU with the
      allocator's overhead of the training that is not compiled)
    """
    if layers and not 0 < layers[0] < layers[1]:
        raise ValueError(
            f"layers are two numbers of layers, the smaller first, such as (2, 3), or None, not {layers!r}."
        )
    training = _training(
        config,
        micro_batch,
        accumulation_steps,
        sequence_length,
        checkpointing,
        optimizer,
        precision,
        attention,
        device,
        compiled,
    )
    depth = config.num_hidden_layers
    every = checkpointing if isinstance(checkpointing, int) and checkpointing > 1 else 1
    if layers and every > 1:  # two depths of the same remainder: whole groups of layers are added
        layers = (2 * every + depth % every, 3 * every + depth % every)
    if not layers or depth <= layers[1]:
        trace = _trace(config, depth, **training)
        return _run(config, training, trace["moments"], trace["flops"], trace["overhead"], name)
    few, more = (_trace(config, count, **training) for count in layers)
    further = (depth - layers[0]) / (layers[1] - layers[0])
    moments = [
        _extrapolate(a, b, further) for a, b in zip(few["moments"], more["moments"], strict=True)
    ]
    flops = round(few["flops"] + (more["flops"] - few["flops"]) * further)
    return _run(config, training, moments, flops, more["overhead"], name)


def predict_largest_batch(config, budget: float, **training) -> int:
    """The largest micro-batch whose predicted peak is at most `budget` bytes; 0 when none is.

    `training` as for `predict_run`, without micro_batch. On a GPU the peak is the allocator's reserve.
    """

    @cache
    def needed(batch):
        run = predict_run(config, micro_batch=batch, **training)
        return run.machine.get("allocator_reserved", run.peak_bytes)

    if not budget < math.inf:
        raise ValueError(f"budget is a number of bytes, not {budget!r}.")
    fitting, too_large, trial = 0, math.inf, 1
    while trial < too_large:
        if needed(trial) <= budget:
            fitting = trial
        else:
            too_large = trial
        if fitting == 0:
            return 0
        # Memory grows in lines, so the one through two sizes says where the budget ends, or nearly.
        other = too_large if too_large < math.inf else fitting // 2 or 2
        each = (needed(other) - needed(fitting)) / (other - fitting)
        line = fitting + (budget - needed(fitting)) / each if each > 0 else math.inf
        trial = max(fitting + 1, int(min(line, too_large - 1, 4 * fitting)))
    return fitting


def _training(
    config,
    micro_batch,
    accumulation_steps,
    sequence_length,
    checkpointing,
    optimizer,
    precision,
    attention,
    device,
    compiled,
):
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
        raise ValueError(
            f"The model has {positions} positions: sequence_length cannot be {sequence_length}."
        )
    chosen = {"optimizer": (optimizer, OPTIMIZERS), "precision": (precision, PRECISIONS)}
    chosen |= {"attention": (attention, ATTENTIONS), "device": (device, DEVICES)}
    for label, (value, choices) in chosen.items():
        if value not in choices:
            raise ValueError(f"The {label} is one of {', '.join(choices)}, not {value!r}.")
    if not (checkpointing == "selective" or isinstance(checkpointing, int) and checkpointing >= 0):
        raise ValueError(
            f'checkpointing is True, False, a whole number of layers or "selective", not {checkpointing!r}.'
        )
    if compiled and (checkpointing or precision != "fp32" or device == "gpu of 2022"):
        raise ValueError(
            "A compiled training is predicted in fp32, without checkpointing, and not for the gpu of 2022, which had no torch.compile."
        )
    return (
        counts
        | {"checkpointing": checkpointing, "compiled": compiled}
        | {label: value for label, (value, _) in chosen.items()}
    )


def _trace(
    config,
    layers,
    micro_batch,
    accumulation_steps,
    sequence_length,
    checkpointing,
    optimizer,
    precision,
    attention,
    device,
    compiled,
):
    """A training with this many layers on fake tensors: its moments, in order, its FLOPs and the allocator's overhead."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = layers
    config.use_cache = False  # it means nothing in training, and checkpointing would warn
    config._attn_implementation = attention
    old = device == "gpu of 2022"
    # From the second micro-batch on all are alike: the gradients of those before are there and stay.
    windows = [min(accumulation_steps, 2)]
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode())
        model = AutoModelForSequenceClassification.from_config(config).train()
        enable_checkpointing(model, checkpointing)
        passes = []
        if compiled:
            from trainlean.costs.compiled import (
                compiled_peaks,
            )  # loads the compiler, which takes seconds

            passes = compiled_peaks(model, _batch(micro_batch, sequence_length, attention))
        if old and optimizer == "adamw":
            opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        else:
            opt = OPTIMIZERS[optimizer](model.parameters())
        if device == "cpu":
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            opt.step()  # makes the optimizer's state
            opt.zero_grad()
        else:
            # The first step makes the state between the freed activations; how that lies decides what is reserved.
            stack.enter_context(_like_a_gpu(old))
            windows = [
                windows[0],
                1 if old else windows[0],
            ]  # gradients that were only set to zero are there at once
        with Meter(model, opt) as meter:
            for micro_batches in windows:
                for _ in range(micro_batches):
                    with torch.autocast(
                        "cpu", PRECISIONS[precision] or torch.bfloat16, enabled=precision != "fp32"
                    ):
                        loss = (
                            model(**_batch(micro_batch, sequence_length, attention)).loss
                            / accumulation_steps
                        )
                    loss.backward()
                    del loss
                opt.step()
                opt.zero_grad(set_to_none=not old)
        overhead = {}
        if device != "cpu":
            allocator = replay(meter.blocks)
            peaks = {
                "allocator_peak": allocator.peak_allocated,
                "allocator_reserved": allocator.peak_reserved,
            }
            overhead = {kind: peak - meter.peak_bytes for kind, peak in peaks.items()}
        moments = [
            peak for phase, peak in meter.segments() if not compiled or phase == "optimizer step"
        ]
        return {
            "moments": moments
            + [_with_what_stays(peak, moments[-1], accumulation_steps) for peak in passes],
            "flops": meter.flops // sum(windows) * accumulation_steps,
            "overhead": overhead,
        }


def _with_what_stays(peak, stepping, accumulation_steps):
    """A compiled pass with weights and optimizer state, and with the gradients of the micro-batches before."""
    stays = {"weights": stepping["weights"], "optimizer state": stepping["optimizer state"]}
    stays["gradients"] = peak["gradients"] + (
        stepping["gradients"] if accumulation_steps > 1 else 0
    )
    return peak | stays


def _batch(micro_batch, sequence_length, attention):
    """A batch; without the mask for the fused attention, which leaves out a mask that hides nothing."""
    batch = {"input_ids": torch.zeros(micro_batch, sequence_length, dtype=torch.int64)}
    if attention == "eager":
        batch["attention_mask"] = torch.ones(micro_batch, sequence_length, dtype=torch.int64)
    return batch | {"labels": torch.zeros(micro_batch, dtype=torch.int64)}


def enable_checkpointing(model, checkpointing: bool | int | str) -> None:
    """Switch a transformers model's checkpointing on: True, every n layers, or "selective"; False leaves it off."""
    if not checkpointing:
        return
    # transformers 5.23 gave it a new name; the old one goes with version 6.
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    if checkpointing == "selective":
        enable(
            {
                "use_reentrant": False,
                "context_fn": partial(create_selective_checkpoint_contexts, list(SELECTIVE)),
            }
        )
    elif checkpointing > 1:
        enable({"use_reentrant": False}, every_n_layers=checkpointing)
    else:
        enable()


# What CUDA does differently, for fake tensors on the CPU


@contextmanager
def _like_a_gpu(old):
    """Let the functions that differ keep what they keep on CUDA; those of torch 1.10 when `old`."""
    kept = {
        name: _in_float32(getattr(F, name)) for name in ("layer_norm", "softmax", "cross_entropy")
    }
    if old:
        kept["softmax"] = _softmax_that_keeps_its_input
    with mock.patch.multiple(F, dropout=_dropout, scaled_dot_product_attention=_attention, **kept):
        yield


def _autocast(tensor, dtype):
    return tensor.to(dtype) if torch.is_autocast_enabled("cpu") else tensor


def _in_float32(function):
    return lambda input, *args, **kwargs: function(_autocast(input, torch.float32), *args, **kwargs)


def _dropout(input, p=0.5, training=True, inplace=False):
    return (
        torch.native_dropout(input, p, True)[0] if training and p else input
    )  # its mask has one byte an element


def _attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    query, key, value = (
        _autocast(tensor, torch.get_autocast_dtype("cpu")) for tensor in (query, key, value)
    )
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]


class _KeepingSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, dim):
        output = torch.softmax(input, dim)
        ctx.save_for_backward(input, output)
        ctx.dim = dim
        return output

    @staticmethod
    def backward(ctx, gradient):
        input, output = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, output, ctx.dim, input.dtype), None


def _softmax_that_keeps_its_input(input, dim=-1, **_):
    return _KeepingSoftmax.apply(_autocast(input, torch.float32), dim)


def _extrapolate(few, more, further):
    return {
        category: round(few[category] + (more[category] - few[category]) * further)
        for category in CATEGORIES
    }


def checkpointing_label(checkpointing: bool | int | str) -> str:
    """How a run's settings name it: "off", "every layer", "every 2 layers", "selective"."""
    if checkpointing == "selective":
        return "selective"
    return (
        "off"
        if not checkpointing
        else "every layer"
        if checkpointing == 1
        else f"every {checkpointing} layers"
    )


def _run(config, training, moments, flops, overhead, name):
    checkpointed = bool(training["checkpointing"])
    label = (
        f"{training['micro_batch']}x{training['accumulation_steps']}"
        + checkpointed * ", checkpointed"
    )
    shape = {"model": config.name_or_path or config.model_type, "layers": config.num_hidden_layers}
    peak = max(moments, key=lambda moment: sum(moment.values()))
    return Run(
        name=name or label,
        settings=training
        | shape
        | {"checkpointing": checkpointing_label(training["checkpointing"])},
        peak=peak,
        samples=training["micro_batch"] * training["accumulation_steps"],
        flops=flops,
        optimizer_steps=1,
        # The overhead hardly grows with depth: what the allocator cannot use lies at the edges of segments.
        machine={kind: sum(peak.values()) + more for kind, more in overhead.items()},
        origin="predicted",
    )
