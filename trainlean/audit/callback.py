"""A Trainer's callback that asks, while the run goes on, whether the window's gradient is the mean that it should be."""

import warnings

import torch
from transformers import TrainerCallback

from trainlean.audit.finding import near
from trainlean.audit.mistakes import MISTAKES
from trainlean.audit.recording import Recorder
from trainlean.audit.verdict import Audit

TOLERANCE = 0.02
IGNORED = -100


class AuditCallback(TrainerCallback):
    """Checks the windows of the first `steps` optimizer steps of a run that is under way; `audits` has the verdicts.

    What each micro-batch added to `.grad` is compared with its own gradient, computed once more from the same inputs and the same
    random state: so noise and dropout cannot hide a factor. A verdict that is not "the same" is a warning; `stop=True` ends
    the run. Costs those windows' passes once more, and the memory of two gradients for each of their micro-batches.
    """

    def __init__(self, steps: int = 1, stop: bool = False):
        self.audits: list[Audit] = []
        self._steps, self._stop = steps, stop
        self._recorder: Recorder | None = None
        self._handle: torch.utils.hooks.RemovableHandle | None = None
        self._inputs: list[tuple] = []

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        """Look on from here."""
        self._end()
        if len(self.audits) < self._steps:
            self._inputs = []
            self._recorder = Recorder()
            self._recorder.__enter__()
            self._handle = model.register_forward_pre_hook(self._note, with_kwargs=True)

    def _note(self, model, positional, named):
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self._inputs.append((positional, dict(named), torch.get_rng_state()))

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        """The window is complete."""
        if self._recorder is None:
            return control
        recorder = self._end()
        audit = _verdict(model, self._inputs, recorder, state.global_step + 1, args)
        self._inputs = []
        self.audits.append(audit)
        if not audit.same:
            warnings.warn(str(audit), stacklevel=2)
        if audit.same is False and self._stop:
            control.should_training_stop = True
        return control

    def on_train_end(self, args, state, control, **kwargs):
        """Nothing stays behind."""
        self._end()

    def _end(self):
        recorder, self._recorder = self._recorder, None
        if recorder is not None and self._handle is not None:
            self._handle.remove()
            recorder.__exit__(None, None, None)
        return recorder


def _verdict(model, inputs: list[tuple], recorder: Recorder, step: int, args) -> Audit:
    compared = (f"step {step} of this run", "the large batch of its window")
    rounds = [one for one in recorder.rounds if one.calls]

    def unknown(why):
        return Audit(None, f"at step {step} {why}", step=step, compared=compared)

    if not rounds or len(rounds) != len(inputs):
        return unknown(
            f"{len(inputs)} forward passes and {len(rounds)} backward passes were seen, not one for one"
        )
    if args.fp16:
        return unknown("the gradients are scaled for float16")
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    shares, counts, labels = [], [], []
    for one, (positional, named, state) in zip(rounds, inputs, strict=True):
        named = {key: value for key, value in named.items() if key != "num_items_in_batch"}
        own = _own_gradient(model, positional, named, state, weights)
        if own is None:
            return unknown(
                "the model gives no loss of its own, so there is nothing to compare with"
            )
        added = torch.cat(
            [
                (
                    one.after.get(id(w), torch.zeros_like(w))
                    - one.before.get(id(w), torch.zeros_like(w))
                )
                .flatten()
                .double()
                for w in weights
            ]
        )
        length = float(own.square().sum())
        if not length:
            return unknown("a micro-batch has no gradient")
        share = float(added @ own) / length
        if float((added - share * own).norm()) > 0.05 * max(float(added.norm()), 1e-30):
            return unknown(
                "what was added to `.grad` is not the gradient of the model's own loss (another loss function, or random numbers of its own?)"
            )
        shares.append(share)
        counts.append(_targets(named))
        labels.append(_targets(named, shifted=False))
    return _judged(step, shares, counts, sum(counts) / max(sum(labels), 1), compared)


def _judged(
    step: int, shares: list[float], counts: list[int], of_labels: float, compared: tuple[str, str]
) -> Audit:
    """The verdict on how much of its own gradient each micro-batch added; `counts` say how much it should, in proportion; `of_labels` is how many labels are targets."""
    k, whole = len(shares), sum(counts)
    wanted = [count / whole for count in counts]
    factor = sum(shares)

    def different(mistake, seen):
        why, lesson = MISTAKES[mistake] if mistake else ("", None)
        return Audit(False, seen, mistake, step, why, lesson, compared=compared)

    if all(near(share, want, TOLERANCE) for share, want in zip(shares, wanted, strict=True)):
        seen = f"at step {step} each of {k} micro-batches counts as in the large batch, all together {factor:.3f} times its mean"
        return Audit(True, seen, compared=compared)
    seen = f"the gradient at step {step} is {factor:.2f} times the mean over its {k} micro-batches"
    if near(factor, k, TOLERANCE) and k > 1:
        return different("the Trainer's factor of k", seen)
    if near(factor, 1 / k, TOLERANCE) and k > 1:
        return different("divided twice", seen)
    if near(factor, 1, TOLERANCE) and all(near(share, 1 / k, TOLERANCE) for share in shares):
        return different(
            "mean of means",
            f"at step {step} each of {k} micro-batches counts the same, though they hold {min(counts)} to {max(counts)} targets",
        )
    if of_labels < 1 and near(factor, of_labels, TOLERANCE):
        return different("labels counted, not targets", seen)
    return different(None, f"{seen}, which should be 1.00")


def _own_gradient(model, positional, named, state, weights) -> torch.Tensor | None:
    """The gradient of one micro-batch's own loss, with the same random numbers; `.grad` stays as it is."""
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.set_rng_state(state)
        output = model(*positional, **named)
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if loss is None:
        return None
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(w) if g is None else g).flatten().double()
            for w, g in zip(weights, found, strict=True)
        ]
    )


def _targets(named: dict, shifted: bool = True) -> int:
    """Over how many targets the loss of a micro-batch is a mean: labels that are not ignored, shifted for sequences; else samples."""
    labels = named.get("labels")
    if labels is None:
        first = next(value for value in named.values() if isinstance(value, torch.Tensor))
        return len(first)
    if shifted and labels.dim() == 2 and not labels.is_floating_point():
        sequences = named.get("input_ids")
        labels = (
            labels[:, 1:] if sequences is not None and sequences.shape == labels.shape else labels
        )
    return int((labels != IGNORED).sum()) if not labels.is_floating_point() else len(labels)
