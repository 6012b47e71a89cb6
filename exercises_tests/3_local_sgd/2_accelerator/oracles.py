"""What must be seen in the lesson 3_local_sgd/2_accelerator: models averaged by hand, and a count without tensors."""

import copy

from torch.utils.data import DataLoader

from exercises_tests.probing.local_sgd import moment
from exercises_tests.probing.toys import flat, windows
from exercises_tests.truth.local_sgd import average_by_hand

from .probes import CASES, MICRO_BATCH, RANKS, counted, draw, optimizer_of, questions, shown_of


def train_locally(seed):
    """Two models by hand in one process, without Accelerate, without DDP and without checkpointing; each layer would be run again once."""
    shown = {}
    for case in CASES:
        model, samples = draw(case, seed)
        models = [model, copy.deepcopy(model)]
        optimizers = [optimizer_of(model) for model in models]
        micro_batches = list(DataLoader(samples, batch_size=MICRO_BATCH))
        shares = [
            windows(micro_batches[rank::RANKS], case.accumulation_steps) for rank in range(RANKS)
        ]
        moved, moments, start = [], [], flat(model)
        for step, of_ranks in enumerate(zip(*shares, strict=True), 1):
            for model, optimizer, window in zip(models, optimizers, of_ranks, strict=True):
                for batch in window:
                    (model(**batch).loss / len(window)).backward()
                optimizer.step()
                optimizer.zero_grad()
            moved.append(flat(models[0]) - start)
            if step % case.local_steps == 0 or step == len(shares[0]):
                moments.append(moment(step, 0))
                average_by_hand(models)
        shown |= shown_of(
            case, [len(moved)] * RANKS, moments, [*moved, flat(models[0]) - start], 0.0, 0, 1.0
        )
    return shown


def local_sgd_traffic(seed):
    """A training without tensors: micro-batch by micro-batch, parameter by parameter."""
    shown = {}
    for question in questions(seed):
        micro_batches, k, H, parameters, model_bytes, guarded = question
        calls = averages = messages = sent = 0
        for number in range(1, micro_batches + 1):
            steps_here = number % k == 0 or number == micro_batches
            if steps_here or not guarded:
                calls += 1
                averages += calls % H == 0
        for _ in range(averages + 1):
            messages += parameters
            sent += model_bytes
        shown |= counted(question, [averages + 1, messages, sent])
    return shown
