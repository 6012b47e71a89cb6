"""What must be seen in the lesson 3_local_sgd/3_trainer: models trained and averaged by hand, without Trainer and DDP."""

import copy

import torch

from exercises_tests.probing.local_sgd import moment
from exercises_tests.probing.toys import flat, windows
from exercises_tests.truth.local_sgd import average_by_hand

from .probes import (
    BEGINS,
    BEGUN,
    CASES,
    LEARNING_RATE,
    MICRO_BATCH,
    MUST_REFUSE,
    REFUSED,
    as_question,
    collate,
    draw,
    questions,
    shown_of,
)


def LocalSGDCallback(seed):
    """As many models as ranks in one process and a plain PyTorch loop: no Trainer, no DDP."""
    shown = {BEGINS: BEGUN}
    for case in CASES:
        model, samples = draw(case, seed)
        start, models = flat(model), [copy.deepcopy(model) for _ in range(case.world_size)]
        optimizers = [torch.optim.SGD(model.parameters(), lr=LEARNING_RATE) for model in models]
        micro_batches = windows(samples, MICRO_BATCH)
        shares = [
            windows(micro_batches[rank :: case.world_size], case.accumulation_steps)
            for rank in range(case.world_size)
        ]
        total, step, moments, seen = case.total, 0, [], []
        for _ in range(case.epochs):
            for of_ranks in zip(*shares, strict=True):
                if step == total:
                    break
                step += 1
                for model, optimizer, window in zip(models, optimizers, of_ranks, strict=True):
                    for micro_batch in window:
                        (model(**collate(micro_batch))["loss"] / len(window)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                stops = [
                    (what, step)
                    for what in ("evaluates", "saves")
                    if step in case.stops(getattr(case, what))
                ]
                if step % case.local_steps == 0 or stops or step == total:
                    average_by_hand(models)
                    moments.append(moment(step, 0))
                seen += [(*stop, [flat(model) for model in models]) for stop in stops]
        shown |= shown_of(
            case, [total] * case.world_size, moments, seen, [flat(model) for model in models], start
        )
        shown[f"whether backward passes synchronise again after the training ({case})"] = True
    return shown | dict.fromkeys(MUST_REFUSE, REFUSED)


def same_as_ddp(seed):
    """Trains both ways, with two models in one process, and compares."""
    return {
        f"whether it ends where DDP ends ({as_question(*question)})": ends_together(question, seed)
        for question in questions(seed)
    }


def ends_together(question, seed: int) -> bool:
    """Whether both ways end at the same weights; the data is so large that no gradient is short enough to go unclipped."""
    optimizer, momentum, weight_decay, max_grad_norm, local_steps = question
    generator = torch.Generator().manual_seed(seed)
    batches = [
        [30 * torch.randn(3, 4, generator=generator, dtype=torch.float64) for _ in range(2)]
        for _ in range(6)
    ]
    ends = []
    for local in (True, False):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            models = [torch.nn.Linear(4, 4).double()]
        models.append(copy.deepcopy(models[0]))
        make = {
            "sgd": lambda parameters: torch.optim.SGD(
                parameters, lr=0.001, momentum=momentum, weight_decay=weight_decay
            ),
            "adamw": lambda parameters: torch.optim.AdamW(
                parameters, lr=0.1, weight_decay=weight_decay
            ),
        }[optimizer]
        optimizers = [make(model.parameters()) for model in models]
        for step, of_ranks in enumerate(batches, 1):
            for model, batch in zip(models, of_ranks, strict=True):
                model.zero_grad()
                (model(batch) - batch.roll(1)).square().mean().backward()
            if not local:
                for same_parameter in zip(*(model.parameters() for model in models), strict=True):
                    mean = torch.stack([parameter.grad for parameter in same_parameter]).mean(0)
                    for parameter in same_parameter:
                        parameter.grad.copy_(mean)
            for model, one in zip(models, optimizers, strict=True):
                if max_grad_norm:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
                one.step()
            if local and step % local_steps == 0:
                average_by_hand(models)
        if local:
            average_by_hand(models)
        ends.append(flat(models[0]))
    return bool(abs(ends[0] - ends[1]).max() < 1e-9)
