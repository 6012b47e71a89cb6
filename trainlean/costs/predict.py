"""Predicts the memory and the FLOPs of a run that was never made, with fake tensors: shapes without bytes.

Models of repeated layers grow by the same amount with every layer, at every moment of a training. So a model with two
layers and one with three say what one with twenty-four will need, as long as every moment is extrapolated by itself:
in a shallow model the fullest moment may lie in the optimizer's step, in a deep one at the end of the forward pass.

A graphics card keeps other tensors than a CPU, and its allocator holds more than the tensors: `device` says which.
"""

import copy
import math
from contextlib import ExitStack, contextmanager
from dataclasses import replace
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
from trainlean.setup import USUAL, TrainingSetup, changed

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
AUTOCAST = {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}  # by precision
DEVICES = ("cpu", "gpu", "gpu of 2022")
# What a prediction follows; a setup that differs from the usual in anything else is refused, not predicted without it.
PREDICTED = {
    "micro_batch",
    "accumulation_steps",
    "sequence_length",
    "checkpointing",
    "optimizer",
    "precision",
    "attention",
    "compiled",
    "model",
}
USUAL_LENGTH = 512  # tokens, where a setup does not say
# Selective checkpointing keeps what the linear layers give, and computes the attention's scores and all small operations again.
SELECTIVE = (aten.mm.default, aten.addmm.default)


def predict_run(
    config,
    setup: TrainingSetup | None = None,
    *,
    device: str = "cpu",
    layers: tuple[int, int] | None = (2, 3),
    name: str | None = None,
    **settings,
) -> Run:
    """The run (origin "predicted") that training a sequence classifier of this transformers `config` would be.

    `setup` says how it is trained; `settings` are its fields by name, instead of it or to change it: `predict_run(config,
    micro_batch=4, checkpointing=True)`. Where no sequence length is said it is 512 tokens.

    Its peak (bytes by category) is that of an optimizer step in the middle of a training, the optimizer's state in place;
    its samples and FLOPs are those of one optimizer step. Traces only as many layers as `layers` says and extrapolates
    (None: traces all, slower, and what the extrapolation is held against). Nothing of the model's size is allocated.
    ValueError: a setting that cannot be, or that no prediction is made for, such as more than one device.

    - `device`: "cpu"; "gpu" for the tensors that CUDA keeps (dropout masks of one byte, softmax and normalisation in
      float32 under autocast) and what its allocator makes of them, in bytes, as `device_bytes["allocator_peak"]` and
      `device_bytes["allocator_reserved"]`; "gpu of 2022" for torch 1.10 and the Trainer of that time: the softmax kept its
      input too (until pull request 66018), gradients were set to zero rather than freed, AdamW was not fused
    - `optimizer`: AdamW is the fused one, and "adam8bit" has its state by formula
    - `precision`: under autocast weights, gradients and state stay float32
    - `compiled`: as `torch.compile` would train the model (see `trainlean.costs.compiled`; fp32, without checkpointing; on a
      GPU with the allocator's overhead of the training that is not compiled)
    """
    if layers and not 0 < layers[0] < layers[1]:
        raise ValueError(
            f"layers are two numbers of layers, the smaller first, such as (2, 3), or None, not {layers!r}."
        )
    setup = changed(setup, settings)
    setup = replace(setup, sequence_length=setup.sequence_length or USUAL_LENGTH)
    _check_predictable(config, setup, device)
    depth = config.num_hidden_layers
    every = 1 if isinstance(setup.checkpointing, str) else max(1, setup.checkpointing)
    if layers and every > 1:  # two depths of the same remainder: whole groups of layers are added
        layers = (2 * every + depth % every, 3 * every + depth % every)
    if not layers or depth <= layers[1]:
        trace = _trace(config, depth, setup, device)
        return _run(
            config, setup, device, trace["moments"], trace["flops"], trace["overhead"], name
        )
    few, more = (_trace(config, count, setup, device) for count in layers)
    further = (depth - layers[0]) / (layers[1] - layers[0])
    moments = [
        _extrapolate(a, b, further) for a, b in zip(few["moments"], more["moments"], strict=True)
    ]
    flops = round(few["flops"] + (more["flops"] - few["flops"]) * further)
    return _run(config, setup, device, moments, flops, more["overhead"], name)


def predict_largest_batch(
    config, budget: float, setup: TrainingSetup | None = None, *, device: str = "cpu", **settings
) -> int:
    """The largest micro-batch whose predicted peak is at most `budget` bytes; 0 when none is.

    `setup`, `device` and `settings` as for `predict_run`; the setup's own micro-batch does not matter. On a GPU the peak is
    the allocator's reserve. ValueError: a budget that is no number of bytes, and what `predict_run` refuses.
    """
    setup = changed(setup, settings | {"micro_batch": 1})

    @cache
    def needed(batch):
        run = predict_run(config, setup, micro_batch=batch, device=device)
        return run.device_bytes.get("allocator_reserved", run.peak_bytes)

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


def _check_predictable(config, setup, device):
    positions = getattr(config, "max_position_embeddings", setup.sequence_length)
    if setup.sequence_length > positions:
        raise ValueError(
            f"The model has {positions} positions: sequence_length cannot be {setup.sequence_length}."
        )
    if device not in DEVICES:
        raise ValueError(f"The device is one of {', '.join(DEVICES)}, not {device!r}.")
    for setting, usual in USUAL.items():
        if setting not in PREDICTED and (value := getattr(setup, setting)) != usual:
            raise ValueError(
                f"No prediction is made for {setting}={value!r}: leave it out, and see what one device without it needs."
            )
    if setup.compiled and (
        setup.checkpointing or setup.precision != "fp32" or device == "gpu of 2022"
    ):
        raise ValueError(
            "A compiled training is predicted in fp32, without checkpointing, and not for the gpu of 2022, which had no torch.compile."
        )


def _trace(config, layers, setup, device):
    """A training with this many layers on fake tensors: its moments, in order, its FLOPs and the allocator's overhead."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = layers
    config.use_cache = False  # it means nothing in training, and checkpointing would warn
    config._attn_implementation = setup.attention
    old = device == "gpu of 2022"
    # From the second micro-batch on all are alike: the gradients of those before are there and stay.
    windows = [min(setup.accumulation_steps, 2)]
    with ExitStack() as stack:
        stack.enter_context(FakeTensorMode())
        model = AutoModelForSequenceClassification.from_config(config).train()
        enable_checkpointing(model, setup.checkpointing)
        passes = []
        if setup.compiled:
            # Loads the compiler, which takes seconds.
            from trainlean.costs.compiled import compiled_peaks

            passes = compiled_peaks(model, _batch(setup))
        if old and setup.optimizer == "adamw":
            opt = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        else:
            opt = OPTIMIZERS[setup.optimizer](model.parameters())
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
                        "cpu",
                        AUTOCAST[setup.precision] or torch.bfloat16,
                        enabled=setup.precision != "fp32",
                    ):
                        loss = model(**_batch(setup)).loss / setup.accumulation_steps
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
            peak
            for phase, peak in meter.segments()
            if not setup.compiled or phase == "optimizer step"
        ]
        return {
            "moments": moments
            + [_with_what_stays(peak, moments[-1], setup.accumulation_steps) for peak in passes],
            "flops": meter.flops // sum(windows) * setup.accumulation_steps,
            "overhead": overhead,
        }


def _with_what_stays(peak, stepping, accumulation_steps):
    """A compiled pass with weights and optimizer state, and with the gradients of the micro-batches before."""
    stays = {"weights": stepping["weights"], "optimizer state": stepping["optimizer state"]}
    stays["gradients"] = peak["gradients"] + (
        stepping["gradients"] if accumulation_steps > 1 else 0
    )
    return peak | stays


def _batch(setup):
    """A batch; without the mask for the fused attention, which leaves out a mask that hides nothing."""
    shape = setup.micro_batch, setup.sequence_length
    batch = {"input_ids": torch.zeros(shape, dtype=torch.int64)}
    if setup.attention == "eager":
        batch["attention_mask"] = torch.ones(shape, dtype=torch.int64)
    return batch | {"labels": torch.zeros(setup.micro_batch, dtype=torch.int64)}


def enable_checkpointing(model, checkpointing: int | str) -> None:
    """Switch a transformers model's checkpointing on, as `TrainingSetup.checkpointing` says: every n layers, or "selective"; 0 leaves it off."""
    if not checkpointing:
        return
    # transformers 5.23 gave it a new name; the old one goes with version 6.
    enable = (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )
    if isinstance(checkpointing, str):  # "selective"
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


def _run(config, setup, device, moments, flops, overhead, name):
    label = f"{setup.micro_batch}x{setup.accumulation_steps}"
    label += ", checkpointed" if setup.checkpointing else ""
    model = setup.model or config.name_or_path or config.model_type
    peak = max(moments, key=lambda moment: sum(moment.values()))
    return Run(
        name=name or label,
        settings=replace(setup, model=model).settings()
        | {"device": device, "layers": config.num_hidden_layers},
        peak=peak,
        samples=setup.effective_batch,
        flops=flops,
        optimizer_steps=1,
        # The overhead hardly grows with depth: what the allocator cannot use lies at the edges of segments.
        device_bytes={kind: sum(peak.values()) + more for kind, more in overhead.items()},
        origin="predicted",
    )
