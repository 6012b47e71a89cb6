"""Predictions at the speed of a slider: any micro-batch, sequence length and number of layers from a few traces.

The peak is no polynomial of micro-batch and length, since the fullest operation changes. What is alive after one operation
is: linear in the micro-batch, quadratic in the length, linear in the layers, as long as the same operations run. So six
traces for the two sizes tell every operation at all sizes, and a prediction looks for the fullest. Operations that cannot be
the fullest at any size are left out, which leaves a table of some dozens of rows.

Two further traces must agree to the byte, and all traces must run the same operations: else there is no such table.
"""

from dataclasses import dataclass, replace

import numpy as np

from trainlean.costs.depth import LeavingOut, Stack, extrapolate
from trainlean.costs.kept import kept
from trainlean.costs.predict import checked_setup, groups_of, result, traces_of
from trainlean.costs.runs import CATEGORIES, Run
from trainlean.costs.subject import Subject, subject_of
from trainlean.costs.tracing import Tracer, Unpredictable
from trainlean.setup import TrainingSetup, changed

MICRO_BATCHES = (2, 4)  # traced


@dataclass
class Scaling:
    """Predictions for every micro-batch, and every sequence length within `lengths`.

    - `device`: as of `predict_run`; on a GPU these are the tensors' bytes alone, since the allocator's reserve has to be replayed
    - `lengths`: the shortest and the longest sequence; (None, None) where samples have none to choose
    - `smallest`: the smallest micro-batch; a single sample may run other operations
    - `layers`: the numbers of groups of each stack in the model
    - `rows`: bytes, an array of operations by terms by CATEGORIES; the terms are those of `_terms`
    - `flops`: by terms
    - `unreached`: as of `trainlean.costs.tracing.Trace`
    """

    subject: Subject
    setup: TrainingSetup
    lengths: tuple[int | None, int | None]
    smallest: int
    layers: list[int]
    rows: np.ndarray
    flops: np.ndarray
    device: str = "cpu"
    unreached: tuple[str, ...] = ()

    def run(
        self, micro_batch: int, sequence_length: int | None = None, layers: list[int] | None = None
    ) -> Run:
        """The predicted run at this size, and with so many groups of layers instead of the model's own.

        ValueError: a size outside the table's.
        """
        low, high = self.lengths
        length = self.setup.sequence_length if sequence_length is None else sequence_length
        if micro_batch < self.smallest:
            raise ValueError(f"micro_batch is at least {self.smallest} here, not {micro_batch}.")
        if low and high and not low <= (length or 0) <= high:
            raise ValueError(f"sequence_length is {low} to {high} here, not {length}.")
        if layers is not None and len(layers) != len(self.layers):
            raise ValueError(
                f"layers has the groups of each of the {len(self.layers)} stacks that repeat here, such as {self.layers}, not {layers}."
            )
        setup = replace(self.setup, micro_batch=micro_batch, sequence_length=length)
        terms = _terms(micro_batch, length, self.layers if layers is None else layers)
        totals = self.rows.sum(axis=2) @ terms
        peak = np.rint(terms @ self.rows[int(totals.argmax())]).astype(int)
        trace_peak = dict(zip(CATEGORIES, peak.tolist()))
        return result(
            self.subject, setup, self.device, trace_peak, round(float(self.flops @ terms)), {}, None
        )

    def to_dict(self) -> dict:
        """What a page needs to predict by itself: lengths, layers, rows and FLOPs by terms, as lists of numbers."""
        return {
            "lengths": list(self.lengths),
            "smallest": self.smallest,
            "layers": self.layers,
            "categories": list(CATEGORIES),
            "rows": self.rows.tolist(),
            "flops": self.flops.tolist(),
        }


def scaling_of(
    model,
    setup: TrainingSetup | None = None,
    *,
    lengths: tuple[int, int] | None = (32, 512),
    task=None,
    batch=None,
    loss=None,
    device: str = "cpu",
    **settings,
) -> Scaling:
    """The table of predictions for this model and setup; the arguments are those of `predict_run`.

    The setup's micro-batch does not matter. `lengths`: the shortest and the longest sequence; None for the setup's own alone,
    which takes a third of the traces. Of a configuration it is kept in the work folder. ValueError: what `predict_run` refuses, and a model whose memory is no such table: it runs other
    operations at other sizes.
    """
    subject = subject_of(model, task, batch, loss)
    about = settings if setup else {"micro_batch": MICRO_BATCHES[0]} | settings
    setup = checked_setup(subject, changed(setup, about), device)
    if setup.compiled:
        raise ValueError("There is no table of a compiled training: predict_run predicts each.")
    if lengths is not None and not (len(lengths) == 2 and 4 <= lengths[0] <= lengths[1] - 4):
        raise ValueError(
            f"lengths are the shortest and the longest sequence, at least 4 tokens apart, not {lengths!r}."
        )
    own = (setup.sequence_length, setup.sequence_length)
    low, high = (lengths or own) if subject.usual_length is not None else (None, None)

    def make():
        table = _traced(subject, setup, low, high, device)
        return table.to_dict() | {"unreached": table.unreached}

    settings = setup.settings() | {"micro_batch": None}
    question = ["scaling", subject.identity, settings, low, high, device]
    found = kept(question, make) if subject.identity else make()
    return Scaling(
        subject,
        setup,
        (low, high),
        found["smallest"],
        found["layers"],
        np.array(found["rows"]),
        np.array(found["flops"]),
        device,
        tuple(found["unreached"]),
    )


def _traced(subject, setup, low, high, device):
    if low == high:
        sizes = [(batch, low) for batch in MICRO_BATCHES]
        further = [(7, low), (1, low)]
    else:
        middle = (low + high) // 2
        sizes = [(batch, length) for batch in MICRO_BATCHES for length in (low, middle, high)]
        further = [(7, (low + middle) // 2), (1, (middle + high) // 2 + 1)]

    def sized(batch, length):
        return replace(setup, micro_batch=batch, sequence_length=length)

    stacks: list[Stack] = groups_of(subject, sized(*sizes[-1]), (2, 3), device)
    measured = [traces_of(subject, sized(*size), stacks, (2, 3), device) for size in sizes]
    if any(
        map(_is_decided_by_scratch, (trace for base, more in measured for trace in (base, *more)))
    ):
        raise _no_table(subject, "has kernels whose own memory follows no line")
    layers = [stack.count for stack in stacks]
    counts = [[2] * len(stacks)] + [
        [3 if one is stack else 2 for one in stacks] for stack in stacks
    ]
    matrix = np.array([_terms(*size, count) for size in sizes for count in counts])
    usage = [rows for one in measured if (rows := _same_rows(one, measured[0])) is not None]
    if len(usage) < len(measured):
        raise _no_table(subject)
    values = np.concatenate(usage)  # points by operations by categories
    scale = np.maximum(matrix.max(axis=0), 1)  # terms of one size, or their sum loses bytes
    inverse = np.linalg.pinv(matrix / scale) / scale[:, None]
    rows = np.einsum("tp,prc->rtc", inverse, values)
    flops = inverse @ np.array([trace.flops for base, more in measured for trace in (base, *more)])
    unreached = measured[-1][0].unreached
    table = Scaling(subject, setup, (low, high), 1, layers, rows, flops, device, unreached)
    few = [2] * len(stacks)
    for size in further:
        # With few groups of layers: that more of them only add the same was seen at every size before.
        true = Tracer(subject, sized(*size), device, LeavingOut(stacks, few)).trace()
        if _is_near(table.run(*size, layers=few), true):
            continue
        if size[0] > 1:
            raise _no_table(subject)
        table.smallest = 2
    table.rows = rows[_may_be_fullest(rows.sum(axis=2))]
    return table


def _is_near(run, trace):
    """Whether both say the same but for what rounding in the fit leaves, far below a page of memory."""
    true = trace.peak_of_tensors
    return all(abs(run.peak[name] - true[name]) <= 64 for name in CATEGORIES) and (
        abs(run.flops - trace.flops) <= 1e-9 * trace.flops
    )


def _is_decided_by_scratch(trace):
    """Whether what kernels take beside is more than a thousandth of the peak."""
    return sum(trace.peak.values()) > 1.001 * sum(trace.peak_of_tensors.values())


def _same_rows(traces, first):
    """The usage of base and deeper traces in the rows of the base, if they ran what those of the first point ran."""
    base, more = traces
    # What ran, without the bytes that it gave: these are what differs between sizes.
    did, first_did = (
        [[did for did, _ in one.operations] for one in (traces[0], *traces[1])]
        for traces in (traces, first)
    )
    if did != first_did:
        return None
    deep = [found for one in more if (found := extrapolate(base, [one], [1.0]))]
    if len(deep) < len(more):
        return None
    return np.stack([base.usage, *(one.usage for one in deep)]).astype(float)


def _terms(batch, length, layers):
    """1, b, s, bs, s², bs² of micro-batch and length, and each of them times the groups of every stack above two."""
    length = 0 if length is None else length
    sizes = np.array([1, batch, length, batch * length, length**2, batch * length**2], dtype=float)
    return np.concatenate([sizes, *(sizes * (count - 2) for count in layers)])


def _may_be_fullest(totals):
    """The rows for which no other has at least as much in every term."""
    whole = np.unique(np.rint(totals * 16), axis=0, return_index=True)
    order = whole[1][np.argsort(-totals[whole[1]].sum(axis=1))]
    kept: list[int] = []
    for row in order:
        if not kept or not (totals[kept] >= totals[row] - 1e-3).all(axis=1).any():
            kept.append(int(row))
    return sorted(kept)


def _no_table(subject, why="does not run the same operations at all sizes"):
    return Unpredictable(
        f"{subject.name} {why}, so there is no table: predict_run predicts each size."
    )
