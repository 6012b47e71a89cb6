"""The questions of the lesson 3_local_sgd/4_outer_optimizer."""

import copy
from dataclasses import dataclass

import torch

from exercises_tests.probing.local_sgd import (
    LEARNING_RATE,
    Diary,
    LocalCase,
    local_training,
    squared_error,
)
from exercises_tests.probing.own_globals import for_every_rank
from exercises_tests.probing.rank_threads import as_ranks
from exercises_tests.probing.toys import as_it_was, flat
from trainlean.costs.links import Link
from trainlean.exercises.comparing import Observation

# ---------------------------------------------------------------- train_diloco


@dataclass(frozen=True)
class OuterCase(LocalCase):
    """A training on several ranks with an outer optimizer: SGD with this learning rate, Nesterov momentum and weight decay."""

    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    outer_decay: float = 0.0

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        kind += f", inner momentum {self.momentum:g}" * bool(self.momentum)
        kind += f", outer weight decay {self.outer_decay:g}" * bool(self.outer_decay)
        kind += ", the first micro-batch comes again as the last" * self.twice
        kind += ", a weight without a gradient in the last step of each round" * self.now_and_then
        return (
            f"{self.world_size} ranks, H={self.local_steps}, {self.steps} steps each, "
            f"outer lr {self.outer_lr:g}, momentum {self.outer_momentum:g}{kind}"
        )

    @property
    def steps_without_it(self) -> list[int]:
        return self.averages


OUTER_CASES = (
    OuterCase(accumulation_steps=1, micro_batches=12, local_steps=2, outer_lr=0.5),
    OuterCase(accumulation_steps=1, micro_batches=12, local_steps=2),
    OuterCase(
        accumulation_steps=1, micro_batches=14, local_steps=3, outer_lr=0.7, outer_momentum=0.9
    ),
    OuterCase(
        accumulation_steps=1,
        micro_batches=15,
        local_steps=2,
        outer_lr=0.7,
        outer_momentum=0.5,
        world_size=3,
    ),
    OuterCase(
        accumulation_steps=1,
        micro_batches=8,
        local_steps=2,
        outer_lr=0.8,
        outer_decay=0.1,
        frozen=True,
    ),
    OuterCase(
        accumulation_steps=1,
        micro_batches=12,
        local_steps=3,
        outer_lr=0.6,
        tied=True,
        momentum=0.9,
        twice=True,
    ),
    OuterCase(
        accumulation_steps=1, micro_batches=6, local_steps=1, outer_lr=0.7, outer_momentum=0.9
    ),
    OuterCase(
        accumulation_steps=1, micro_batches=8, local_steps=2, outer_lr=0.6, now_and_then=True
    ),
)


class OuterDiary:
    """What an outer optimizer was given and did: at each of its steps the weights before, the gradient, the weights after."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer, self.steps = model, optimizer, []
        register = optimizer.register_step_pre_hook
        ours = register(self._before)

        def register_before_ours(hook):
            """Ours runs last, so it sees what an answer's own hook has made of gradients and weights."""
            nonlocal ours
            ours.remove()
            handle = register(hook)
            ours = register(self._before)
            return handle

        optimizer.register_step_pre_hook = register_before_ours
        optimizer.register_step_post_hook(lambda *_: self.steps[-1].append(flat(self.model)))

    def _before(self, *_):
        self.steps.append([flat(self.model), flat(self.model, gradients=True)])

    def quiet_afterwards(self, rank) -> bool:
        """Whether a further step of the optimizer, with gradients of zero, sends nothing: a hook that was left on it would."""
        sent = len(rank.sent)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
        self.optimizer.step()
        return len(rank.sent) == sent


def frozen_weights(model) -> list[torch.Tensor]:
    return [one.detach() for one in model.parameters() if not one.requires_grad]


def outer_training(
    case: OuterCase, ranks: list[dict], outer: list[list], still: list[bool]
) -> Observation:
    """What a training with an outer optimizer shows: its steps first, then every inner step; `still` says of each rank whether what is frozen stayed."""
    shown = {ends_with(case): "no error"} if case.now_and_then else {}
    shown |= {
        f"the number of outer steps on rank {number} ({case})": len(steps)
        for number, steps in enumerate(outer)
    }
    for step in range(max(map(len, outer))):
        for number, steps in enumerate(outer):
            for what, value in zip(
                (
                    "gradient at outer step {}",
                    "weight before outer step {}",
                    "weight after outer step {}",
                ),
                (steps[step][place] for place in (1, 0, 2)) if step < len(steps) else (),
                strict=False,
            ):
                shown[f"rank {number}'s {what.format(step + 1)} ({case})"] = value
    shown |= local_training(case, ranks)
    if case.frozen:
        for number, of_rank in enumerate(still):
            shown[f"whether rank {number}'s frozen weights are as they were ({case})"] = of_rank
    return shown


def ends_with(case: OuterCase) -> str:
    return f"what the training ends with ({case})"


def train_diloco(answer, seed):
    shown = {}
    answers = for_every_rank(answer, max(case.world_size for case in OUTER_CASES))
    for case in OUTER_CASES:
        models, micro_batches = case.draw(seed, apart=False)
        before = copy.deepcopy(micro_batches)

        def train(rank, case=case, models=models, micro_batches=micro_batches, before=before):
            model, share = models[rank.number], case.shares(micro_batches)[rank.number]
            parameters = list(model.parameters())
            inner = torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=case.momentum)
            outer = torch.optim.SGD(
                parameters,
                lr=case.outer_lr,
                momentum=case.outer_momentum,
                nesterov=bool(case.outer_momentum),
                weight_decay=case.outer_decay,
            )
            diary, outside = Diary(model, inner, rank, 1), OuterDiary(model, outer)
            frozen = copy.deepcopy(frozen_weights(model))
            answers[rank.number](model, inner, outer, squared_error, share, case.local_steps)
            unchanged = as_it_was(share, case.shares(before)[rank.number])
            still = as_it_was(frozen_weights(model), frozen)
            steps, pages = [*outside.steps], diary.pages()
            quiet = outside.quiet_afterwards(rank) and pages["quiet"]
            return pages | {"as_before": unchanged, "quiet": quiet}, steps, still

        try:
            pages, outer, still = zip(*as_ranks(train, case.world_size), strict=True)
        except Exception as error:
            if not case.now_and_then:
                raise
            # Who sums up gradients fails here; what is wrong with that was seen in the cases before.
            shown[ends_with(case)] = f"{type(error).__name__}: {error}"
            continue
        shown |= outer_training(case, list(pages), list(outer), list(still))
    return shown


# ---------------------------------------------------------------- choose_local_steps


def links_to_choose_for(seed: int) -> list[tuple]:
    """(compute, payload, world_size, link, share) from an easy to a hard link; one rank alone sends nothing, one H is large, one meets its share exactly."""
    generator = torch.Generator().manual_seed(seed)

    def between(low, high):
        return low + (high - low) * torch.rand((), generator=generator).item()

    return [
        (between(0.5, 1.5), between(1e8, 2e8), 4, Link(between(1e-2, 3e-2), between(4e6, 6e6)), 0.1),
        (between(0.5, 1.5), between(2e8, 4e8), 8, Link(between(1e-4, 2e-4), between(1e8, 2e8)), 0.25),
        (between(0.1, 0.2), between(4e5, 8e5), 16, Link(between(5e-2, 8e-2), between(1e9, 2e9)), 0.05),
        (between(1, 2), between(3e8, 6e8), 2, Link(between(1e-3, 2e-3), between(1e6, 2e6)), 0.6),
        (between(1, 2), between(1e6, 2e6), 8, Link(1e-6, 200e9), 0.5),
        (between(0.02, 0.03), between(1e9, 2e9), 64, Link(1e-5, between(5e9, 9e9)), 0.9),
        (between(1, 2), between(1e8, 2e8), 1, Link(1e-2, 1e6), 0.1),
        (between(0.02, 0.03), between(2e8, 4e8), 8, Link(between(1e-2, 3e-2), 1e6), 0.1),  # H above 100,000
        # Powers of two and their multiples: an average of 3 s, and H steps of 3 / H s are exactly as long.
        (3 / H_EXACT[seed % len(H_EXACT)], 2.0**21, 2, Link(0.5, 2.0**20), 0.5),
    ]  # fmt: skip


H_EXACT = 2, 4, 8, 16


def link_case(compute, payload, world_size, link, share):
    return f"{world_size} rank{'s' * (world_size > 1)}, {payload / 1e6:,.1f} MB, {compute:.2f} s of computing, {link}, share {share:g}"


def choose_local_steps(answer, seed):
    shown = {}
    for asked in links_to_choose_for(seed):
        chosen = answer(*asked)
        number = float(chosen)
        shown[f"H ({link_case(*asked)})"] = int(number) if number.is_integer() else number
    return shown


# ---------------------------------------------------------------- quantise

ROUNDS = 4
THIRTEEN_BITS = (
    1 + 2.0**-8 + 2.0**-12
)  # too many for a scale of 16 bits, and codes times it fit in 32
FINE = (
    128  # parts of a scale: with scales that are powers of two, 32 bits have room for every result
)


def changes_to_quantise(seed: int) -> dict[str, tuple[torch.Tensor, list[torch.Tensor]]]:
    """By case the error from before and the changes of several rounds, one of whose entries is 127 scales.

    The others are 8 n + 1 parts of a scale, so that no sum of ROUNDS of them lies half-way between two codes.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape, most=100.0, scale=2.0**-6, largest=127):
        parts = (
            8
            * torch.randint(-int(most * FINE / 8), int(most * FINE / 8), shape, generator=generator)
            + 1
        )
        parts.view(-1)[0] = largest * FINE
        return parts * (scale / FINE)

    def rounds(*shape, **how):
        return [drawn(*shape, **how) for _ in range(ROUNDS)]

    none, back = torch.zeros(6), drawn(6)
    from_before = torch.zeros(5)
    from_before[0] = 64 * 2.0**-3
    return {
        "a vector": (torch.zeros(30), rounds(30)),
        "small numbers beside a large one": (torch.zeros(12), rounds(12, most=0.45)),
        "a matrix, the largest value negative": (torch.zeros(4, 5), rounds(4, 5, scale=2.0**-10, largest=-127)),
        "nothing to send at first": (none, [none, none, drawn(6)]),
        "an error that is larger than the change": (
            from_before,
            [drawn(5, most=9, scale=2.0**-3, largest=63), drawn(5, scale=2.0**-3)],
        ),
        "an error alone": (drawn(6), [none, drawn(6)]),
        "a change that takes the error back": (back, [-back, drawn(6)]),
        "tiny numbers": (torch.zeros(8), rounds(8, scale=2.0**-20)),
        "numbers that are hardly anything": (torch.zeros(8), rounds(8, scale=2.0**-60)),
        "64-bit numbers": (
            torch.zeros(8).double(),
            [one.double() + 2.0**-30 for one in rounds(8, scale=4 * THIRTEEN_BITS)],
        ),
    }  # fmt: skip


def quantised(
    case: str, number: int, codes, scale, exact: bool, error, received, untouched, fine: bool
) -> Observation:
    """What one round shows."""
    where = f"{case}, round {number + 1}"
    return {
        f"the type of the codes ({where})": str(codes.dtype).removeprefix("torch."),
        f"the list of codes ({where})": codes.double().numpy(),
        f"the scale ({where})": scale if codes.any() else "not used",
        f"whether the scale is the largest absolute value / 127 to 7 digits ({where})": exact
        or not codes.any(),
        f"what receivers have got so far ({where})": received.double().numpy(),
        f"the error that is left ({where})": error.double().numpy(),
        f"whether the error has as many digits as the change, or more ({where})": fine,
        f"whether change and error are as they were ({where})": untouched,
    }


def one_scale(scale) -> float:
    try:
        return float(scale)
    except (TypeError, ValueError, RuntimeError):
        what = f"of shape {list(scale.shape)}" if hasattr(scale, "shape") else repr(scale)[:60]
        raise TypeError(f"quantise returned a scale {what}; expected one number.") from None


def quantise(answer, seed):
    shown = {}
    for case, (error, changes) in changes_to_quantise(seed).items():
        received = torch.zeros_like(error)
        for number, change in enumerate(changes):
            given, before = (change.clone(), error.clone()), (change.clone(), error.clone())
            codes, scale, error = answer(*given)
            scale, largest = one_scale(scale), float(sum(before).abs().max())
            received = received + codes.to(received.dtype) * scale
            error = error.detach().clone()
            shown |= quantised(
                case,
                number,
                codes,
                scale,
                abs(scale - largest / 127) <= 1e-7 * largest / 127,
                error,
                received,
                as_it_was(given, before),
                error.element_size() >= change.element_size()
                and (change.dtype != torch.float64 or bool((error != error.float()).any())),
            )
    return shown
