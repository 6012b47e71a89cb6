"""The questions of the lesson 3_local_sgd/2_accelerator."""

import copy
import random
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader

from exercises_tests.probing.accelerate import accelerate_on_ranks
from exercises_tests.probing.bert import draw_samples, tiny_bert
from exercises_tests.probing.local_sgd import moment
from exercises_tests.probing.own_globals import for_every_rank
from exercises_tests.probing.rank_threads import as_ranks
from exercises_tests.probing.toys import Recorder, flat
from trainlean.exercises.comparing import Observation

LEARNING_RATE, RANKS, LAYERS, MICRO_BATCH = 0.1, 2, 2, 2

# ---------------------------------------------------------------- train_locally


@dataclass(frozen=True)
class Case:
    """One question: how many micro-batches each rank has, how many make an optimizer step, how many steps lie between averages."""

    micro_batches: int
    accumulation_steps: int
    local_steps: int
    tied: bool = False
    frozen: bool = False

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        return f"k={self.accumulation_steps}, H={self.local_steps}, {self.micro_batches} micro-batches for each rank{kind}"

    @property
    def has_a_rest(self):
        """Whether the last window is shorter: what its loss is divided by is no matter of this exercise."""
        return self.micro_batches % self.accumulation_steps > 0


CASES = (Case(9, 3, 2, tied=True), Case(9, 1, 2, frozen=True), Case(3, 2, 1))


def draw(case: Case, seed: int):
    """A fresh tiny BERT and the samples of both ranks."""
    model = tiny_bert(seed, LAYERS, tied=case.tied, frozen=case.frozen)
    return model.train(), draw_samples(RANKS * case.micro_batches * MICRO_BATCH, seed)


def optimizer_of(model):
    return torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)


class RunAgain:
    """Counts how often a part of the layers is entered in backward passes."""

    def __init__(self, model):
        self.count = 0
        for layer in model.bert.encoder.layer:
            layer.attention.register_forward_pre_hook(self._enter)

    def _enter(self, *_):
        self.count += torch._C._current_graph_task_id() != -1


def shown_of(
    case: Case, steps: list, moments: list, moved: list, gap: float, in_eval: int, again: float
) -> dict:
    shown = {
        f"the list of the ranks' numbers of optimizer steps ({case})": ", ".join(map(str, steps)),
        f"the list of moments at which the ranks communicate ({case})": ", ".join(
            dict.fromkeys(moments)
        )
        or "none",
    }
    if not case.has_a_rest:
        shown |= {
            f"how far rank 0's weights have moved after its optimizer step {number} ({case})": vector
            for number, vector in enumerate(moved[:-1], 1)
        }
        shown[f"how far rank 0's weights have moved at the end ({case})"] = moved[-1]
    shown[f"the largest difference between the ranks' weights at the end ({case})"] = (
        gap if gap > 1e-6 else 0.0
    )
    return shown | {
        f"the number of forward passes in eval mode ({case})": in_eval,
        f"how often a layer is run again for each micro-batch ({case})": again,
    }


def train_locally(answer, seed):
    import accelerate.local_sgd  # noqa: F401  before the ranks start: threads must not import it at once

    shown, answers = {}, for_every_rank(answer, RANKS)
    with accelerate_on_ranks(RANKS):
        for case in CASES:
            model, samples = draw(case, seed)
            models = [model, copy.deepcopy(model)]
            of_ranks = as_ranks(
                lambda rank, case=case, models=models, samples=samples: train_watched(
                    answers[rank.number], case, rank, models[rank.number], samples
                ),
                RANKS,
            )
            steps, moments, moved, in_eval, again = zip(*of_ranks, strict=True)
            gap = float(abs(moved[0][-1] - moved[1][-1]).max())
            shown |= shown_of(case, list(steps), moments[0], moved[0], gap, in_eval[0], again[0])
    return shown


def train_watched(answer, case: Case, rank, model, samples):
    """One rank's training: its optimizer steps, the moments of its all-reduces, the ways of its weights, and how often a layer was run again."""
    from accelerate import Accelerator

    optimizer, start, forwards = optimizer_of(model), flat(model), []
    recorder, again = Recorder(model, optimizer), RunAgain(model)
    model.register_forward_hook(lambda *_: forwards.append(None))
    rank.steps = lambda: len(recorder.weights)
    rank.where = lambda: moment(len(recorder.weights), recorder.since_step)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.accumulation_steps)
    answer(
        accelerator, model, optimizer, DataLoader(samples, batch_size=MICRO_BATCH), case.local_steps
    )
    # What a model begins with is broadcast before the first step; from there on whatever is sent counts.
    moments = [sent.at for sent in rank.sent if sent.at != moment(0, 0)]
    moved = [weights - start for weights in (*recorder.weights, flat(model))]
    again_each = again.count / max(1, LAYERS * len(forwards))
    return len(recorder.weights), moments, moved, recorder.in_eval_mode, again_each


# ---------------------------------------------------------------- local_sgd_traffic


def questions(seed: int):
    """Micro-batches, k, H, parameters, bytes, guarded; among them short windows, k=1, and H beyond the training."""
    draw = random.Random(seed)
    for micro_batches, k, H in (
        (16, 4, 2),
        (18, 4, 2),
        (5, 1, 2),
        (17, 4, 5),
        (19, 4, 5),
        (6, 3, 10),
        (3, 4, 1),
        (draw.randint(40, 90), draw.randint(3, 7), draw.randint(2, 4)),
    ):
        for guarded in (True, False):
            yield (
                micro_batches,
                k,
                H,
                (parameters := draw.randint(3, 40)),
                # no parameter is as large as the next, so that none has a whole share of the bytes
                4 * (parameters * draw.randint(5, 500) + draw.randint(1, parameters - 1)),
                guarded,
            )


def as_question(micro_batches, k, H, parameters, model_bytes, guarded):
    return f"{micro_batches} micro-batches, k={k}, H={H}, {parameters} parameters, {model_bytes:,} bytes, {'guarded' if guarded else 'called in each block'}"


NAMES = ("the number of averages", "the number of all-reduces", "the number of bytes")


def counted(question: tuple, counts: list) -> Observation:
    return {
        f"{name} ({as_question(*question)})": count
        for name, count in zip(NAMES, counts, strict=True)
    }


def local_sgd_traffic(answer, seed):
    shown = {}
    for question in questions(seed):
        given = answer(*question)
        try:
            counts = [int(count) if float(count).is_integer() else float(count) for count in given]
        except (TypeError, ValueError):
            raise TypeError(
                f"local_sgd_traffic returned {given!r}; expected three whole numbers: averages, all-reduces, bytes."
            ) from None
        if len(counts) != len(NAMES):
            raise TypeError(
                f"local_sgd_traffic returned {len(counts)} values; expected three: averages, all-reduces, bytes."
            )
        shown |= counted(question, counts)
    return shown
