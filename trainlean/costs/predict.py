"""Predicts the memory and the FLOPs of a run that was never made, with fake tensors: shapes without bytes.

Models of repeated layers grow by the same amount with every layer, at every moment of a training. So a model with two
layers and one with three say what one with twenty-four will need, as long as every operation is extrapolated by itself:
in a shallow model the fullest moment may lie in the optimizer's step, in a deep one at the end of the forward pass.

A graphics card keeps other tensors than a CPU, and its allocator holds more than the tensors: `device` says which.
"""

import math
import warnings
from dataclasses import replace
from functools import cache

from trainlean.costs.depth import LeavingOut, Stack, extrapolate, stacks_of
from trainlean.costs.kept import kept
from trainlean.costs.patience import with_a_word
from trainlean.costs.runs import Run
from trainlean.costs.subject import Subject, subject_of
from trainlean.costs.tracing import Trace, Tracer
from trainlean.setup import USUAL, TrainingSetup, changed

SHOWN = 4  # parts that are named
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
    "padded",
    "lora",
    "model",
}


def predict_run(
    model,
    setup: TrainingSetup | None = None,
    *,
    task=None,
    batch=None,
    loss=None,
    device: str = "cpu",
    layers: tuple[int, int] | None = (2, 3),
    name: str | None = None,
    **settings,
) -> Run:
    """The run (origin "predicted") that training this model would be.

    `model` is a transformers configuration, a `torch.nn.Module` or a function that makes one. `setup` says how it is trained;
    `settings` are its fields by name, instead of it or to change it: `predict_run(config, micro_batch=4,
    checkpointing=True)`. Where no sequence length is said it is 512 tokens (16000 samples of sound).

    - `task`: of a configuration, one of `trainlean.costs.subject.TASKS` such as "causal-lm", one of transformers' classes or
      its name; without it the class that the configuration names, or else the first of TASKS that there is
    - `batch`: a sample batch, whose tensors are repeated or cut along their first dimension to the micro-batch, or a function
      of micro-batch and sequence length that makes one; for a module it is needed
    - `loss`: a function of module and batch that gives one number; without it the forward pass gives the loss
    - `device`: "cpu"; "gpu" for the tensors that CUDA keeps (dropout masks of one byte, softmax and normalisation in
      float32 under autocast) and what its allocator makes of them, in bytes, as `device_bytes["allocator_peak"]` and
      `device_bytes["allocator_reserved"]`; "gpu of 2022" for torch 1.10 and the Trainer of that time: the softmax kept its
      input too (until pull request 66018), gradients were set to zero rather than freed, AdamW was not fused
    - `layers`: where layers repeat, so many groups of them are traced and the others extrapolated; None traces all, slower,
      and is what the extrapolation is held against

    A configuration's `use_cache` is off, as the Trainer has it. In a loop of your own it is on, unless the configuration says
    otherwise, and layers copy keys and values into a cache that nobody reads: of small models that was up to 5 % of the peak, more or less.

    Of the settings: AdamW is the fused one, and "adam8bit" has its state by formula; under autocast weights, gradients and
    state stay in their own type; `compiled` is as `torch.compile` would train the model (see `trainlean.costs.compiled`;
    fp32, without checkpointing; on a GPU with the allocator's overhead of the training that is not compiled).

    The loop is `loss = ...; (loss / accumulation_steps).backward()`, as in most scripts and with Accelerate; of one step the loss is
    not divided. Batch and loss have their names until the backward pass is over: a mean squared error, for one, is a number in the
    memory of all the squares, which `loss = loss / accumulation_steps`, as in the Trainer, lets go before.

    Its peak (bytes by category) is that of an optimizer step in the middle of a training, the optimizer's state in place;
    its samples and FLOPs are those of one optimizer step. Nothing of
    the model's size is allocated, and that of a configuration is kept in the work folder. ValueError: a setting that cannot be, one that no prediction is made for, such as more
    than one device, or a model whose memory depends on numbers that only a real training has. A warning says which trained weights no
    gradient reaches, such as an image's tower where a batch has text alone.
    """
    if layers and not 0 < layers[0] < layers[1]:
        raise ValueError(
            f"layers are two numbers of layers, the smaller first, such as (2, 3), or None, not {layers!r}."
        )
    subject = subject_of(model, task, batch, loss)
    setup = checked_setup(subject, changed(setup, settings), device)
    with with_a_word(subject.name):
        run, words = predicted(subject, setup, device, layers, name)
    if words:
        warnings.warn(words, stacklevel=3)
    return run


def predicted(
    subject: Subject, setup: TrainingSetup, device="cpu", layers=(2, 3), name=None
) -> tuple[Run, str]:
    """`predict_run` of a checked setup, and a sentence where no gradient reaches some of the trained weights."""

    def make():
        trace = _traced(subject, setup, device, layers)
        return {
            "peak": trace.peak,
            "flops": trace.flops,
            "overhead": trace.overhead,
            "unreached": trace.unreached,
        }

    question = ["run", subject.identity, setup.settings(), device, layers]
    found = kept(question, make) if subject.identity else make()
    run = result(subject, setup, device, found["peak"], found["flops"], found["overhead"], name)
    return run, words_of_unreached(found["unreached"])


def words_of_unreached(names) -> str:
    """A sentence about what no gradient reaches (see `Trace`); "" where there is nothing."""
    if not names:
        return ""
    shown = ", ".join(names[:SHOWN]) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )
    return (
        f"No gradient reaches {shown} in this training, so the prediction has neither gradients nor optimizer's state for that: "
        "does the batch have all that the model takes, and the loss all that it gives? What is not to be trained may be frozen, which says so."
    )


def predict_largest_batch(
    model,
    budget: float,
    setup: TrainingSetup | None = None,
    *,
    task=None,
    batch=None,
    loss=None,
    device: str = "cpu",
    **settings,
) -> int:
    """The largest micro-batch whose predicted peak is at most `budget` bytes; 0 when none is.

    Everything else is as for `predict_run`; the setup's own micro-batch does not matter. On a GPU the peak is
    the allocator's reserve. ValueError: a budget that is no number of bytes, and what `predict_run` refuses.
    """
    setup = changed(setup, settings | {"micro_batch": 1})

    @cache
    def needed(size):
        about = dict(task=task, batch=batch, loss=loss, device=device)
        run = predict_run(model, setup, micro_batch=size, **about)
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


def checked_setup(subject: Subject, setup: TrainingSetup, device: str) -> TrainingSetup:
    """The setup with the model's usual length where it says none. ValueError: no prediction is made for it."""
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
    return subject.ready(setup)


def _traced(subject, setup, device, layers) -> Trace:
    stacks = groups_of(subject, setup, layers, device) if layers else []
    if stacks and (traces := traces_of(subject, setup, stacks, layers, device)):
        few, more = layers
        further = [(stack.count - few) / (more - few) for stack in stacks]
        if deep := extrapolate(*traces, further):
            return deep
    return Tracer(subject, setup, device).trace()


def traces_of(
    subject: Subject, setup: TrainingSetup, stacks, layers, device="cpu"
) -> tuple[Trace, list[Trace]]:
    """The trace with few groups of layers in every stack, and for each stack that with more of its groups."""
    few, more = layers
    groups = [[few] * len(stacks)]
    groups += [[more if one is stack else few for one in stacks] for stack in stacks]
    base, *deeper = (
        Tracer(subject, setup, device, LeavingOut(stacks, counts)).trace() for counts in groups
    )
    return base, deeper


_FOUND: dict = {}  # the stacks of models that were looked at before


def groups_of(subject: Subject, setup: TrainingSetup, layers, device="cpu") -> list[Stack]:
    """Where the model's layers repeat; which are alike does not depend on the micro-batch, nor on how steps are taken."""
    about = replace(setup, micro_batch=1, accumulation_steps=1, optimizer="sgd", model="")
    key = subject.identity, about, layers
    tracer = Tracer(subject, setup, device)
    if not subject.identity:
        return stacks_of(tracer, *layers)
    if key not in _FOUND:
        _FOUND[key] = stacks_of(tracer, *layers)
    return _FOUND[key]


def result(subject: Subject, setup: TrainingSetup, device, peak, flops, overhead, name) -> Run:
    """The run of these bytes by category and these FLOPs of an optimizer step."""
    label = f"{setup.micro_batch}x{setup.accumulation_steps}"
    label += ", checkpointed" if setup.checkpointing else ""
    depth = {} if subject.depth is None else {"layers": subject.depth}
    return Run(
        name=name or label,
        settings=replace(setup, model=setup.model or subject.name).settings()
        | {"device": device}
        | depth,
        peak=peak,
        samples=setup.effective_batch,
        flops=flops,
        optimizer_steps=1,
        # The overhead hardly grows with depth: what the allocator cannot use lies at the edges of segments.
        device_bytes={kind: sum(peak.values()) + more for kind, more in overhead.items()},
        origin="predicted",
    )
