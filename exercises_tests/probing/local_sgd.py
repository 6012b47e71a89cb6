"""What the probes of Local SGD share: trainings on several ranks, seen rank by rank and step by step."""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import mse_loss

from exercises_tests.probing.own_globals import for_every_rank
from exercises_tests.probing.rank_threads import as_ranks
from exercises_tests.probing.toys import Case, Recorder, as_it_was, draw, flat, in_groups
from trainlean.exercises.comparing import Observation

LEARNING_RATE = 0.1


@dataclass(frozen=True)
class LocalCase:
    """One question to a training on several ranks; `micro_batches` are those of all ranks together."""

    micro_batches: int
    accumulation_steps: int
    local_steps: int
    world_size: int = 2
    tied: bool = False
    frozen: bool = False
    momentum: float = 0.0
    groups: bool = False  # of parameters in the optimizer: two
    twice: bool = False  # each rank's first micro-batch comes again as its last
    now_and_then: bool = False  # a weight has no gradient in some steps

    def __str__(self):
        return f"{self.world_size} ranks, k={self.accumulation_steps}, H={self.local_steps}, {self.micro_batches} micro-batches{self._kind()}"

    def _kind(self) -> str:
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        kind += f", momentum {self.momentum:g}" * bool(self.momentum)
        kind += ", two groups of parameters" * self.groups
        kind += ", the first micro-batch comes again as the last" * self.twice
        return kind + ", a weight without a gradient in the last step" * self.now_and_then

    @property
    def steps(self) -> int:
        return self.micro_batches // (self.world_size * self.accumulation_steps)

    @property
    def averages(self) -> list[int]:
        """The optimizer steps after which the replicas are averaged."""
        return [
            step
            for step in range(1, self.steps + 1)
            if step % self.local_steps == 0 or step == self.steps
        ]

    @property
    def steps_without_it(self) -> list[int]:
        """The optimizer steps in which the weight of `now_and_then` has no gradient."""
        return [self.steps]

    def shares(self, micro_batches):
        return [micro_batches[rank :: self.world_size] for rank in range(self.world_size)]

    def draw(self, seed: int, *, apart: bool):
        """The models of all ranks, which begin `apart` or equal, and the micro-batches of all ranks."""
        model, micro_batches = draw(
            Case(self.micro_batches, self.accumulation_steps, self.tied, self.frozen), seed
        )
        of_a_step = self.world_size * self.accumulation_steps
        if self.twice:
            end = self.steps * of_a_step
            micro_batches[: self.world_size] = micro_batches[end - self.world_size : end]
        if self.now_and_then:
            model = NowAndThen(model)
            for number, (inputs, _) in enumerate(micro_batches):
                size = inputs[0, 0].abs()
                inputs[0, 0] = -size if number // of_a_step + 1 in self.steps_without_it else size
        generator = torch.Generator().manual_seed(seed + 1)
        models = [model, *(copy.deepcopy(model) for _ in range(self.world_size - 1))]
        for other in models[1:] if apart else []:
            for parameter in other.parameters():
                parameter.data += torch.randn(parameter.shape, generator=generator) / 4
        return models, micro_batches


class NowAndThen(nn.Module):
    """A model with one weight more, which takes part where the first input is above 0."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model, self.shift = model, nn.Parameter(torch.zeros(4))

    def forward(self, inputs):
        outputs = self.model(inputs)
        return outputs + self.shift if inputs[0, 0] > 0 else outputs


class Diary(Recorder):
    """What one rank did: the weights at its first step, all that a Recorder notes, and where in its training it communicated."""

    def __init__(self, model, optimizer, rank, accumulation_steps: int):
        super().__init__(model, optimizer)
        self.model, self.optimizer, self.rank, self.at_first = model, optimizer, rank, None
        optimizer.register_step_pre_hook(lambda *_: self._first())
        rank.steps = lambda: len(self.weights)
        rank.where = lambda: len(self.weights) + self.since_step / accumulation_steps

    def _first(self):
        if self.at_first is None:
            self.at_first = flat(self.model)

    def pages(self) -> dict:
        """What is compared."""
        # Whatever is sent counts: a barrier, too, lets nobody go on alone.
        averages = sorted({sent.at for sent in self.rank.sent if sent.at > 0})
        return {
            "forwards": [*self.forwards],
            "at_first": self.at_first,
            "gradients": [*self.gradients],
            "weights": [*self.weights],
            "averages": averages,
            "at_end": flat(self.model),
            "messages": len(self.rank.sent),
            "at_start": sum(sent.at == 0 for sent in self.rank.sent),
            "in_eval_mode": self.in_eval_mode,
            "quiet": self._quiet_afterwards(),
        }

    def _quiet_afterwards(self) -> bool:
        """Whether a further step of the optimizer, which has no gradients, sends nothing: a hook that was left on it would."""
        sent, steps = len(self.rank.sent), len(self.weights)
        self.rank.steps = lambda: steps  # of the answer, without this one
        self.optimizer.zero_grad()
        self.optimizer.step()
        return len(self.rank.sent) == sent


def in_words(moments: list[float]) -> str:
    """Moments of a training, in optimizer steps, as a list to be read."""
    return (
        ", ".join(
            f"at step {int(moment)}"
            if moment == int(moment)
            else f"inside the window of step {int(moment) + 1}"
            for moment in moments
        )
        or "empty"
    )


def no_training(case: LocalCase, steps: list[int], messages: int) -> Observation:
    """What is seen where the micro-batches fill no window: `messages` are those beyond what a start takes."""
    return {
        f"the number of optimizer steps on rank {number} ({case})": of_rank
        for number, of_rank in enumerate(steps)
    } | {f"the number of messages beside those before a first step ({case})": messages}


def local_training(case: LocalCase, ranks: list[dict]) -> Observation:
    """What a training on several ranks shows, rank by rank and step by step."""
    shown = {
        f"the number of optimizer steps on rank {number} ({case})": len(pages["weights"])
        for number, pages in enumerate(ranks)
    }
    for number, pages in enumerate(ranks):
        if pages["at_first"] is not None:
            shown[f"rank {number}'s weight at its first optimizer step ({case})"] = pages[
                "at_first"
            ]
    # The last rank never has more micro-batches than the others, so nothing is left over there.
    shown[f"the list of moments at which the ranks communicated ({case})"] = in_words(
        ranks[-1]["averages"]
    )
    for step in range(max(len(pages["weights"]) for pages in ranks)):
        for number, pages in enumerate(ranks):
            if step < len(pages["weights"]):
                shown[
                    f"the number of micro-batches behind rank {number}'s step {step + 1} ({case})"
                ] = pages["forwards"][step]
                shown[f"rank {number}'s gradient at step {step + 1} ({case})"] = pages["gradients"][
                    step
                ]
                shown[f"rank {number}'s weight right after step {step + 1} ({case})"] = pages[
                    "weights"
                ][step]
    gap = max(float(abs(ranks[0]["at_end"] - pages["at_end"]).max()) for pages in ranks)
    shown[f"the largest difference between the ranks' weights at the end ({case})"] = (
        gap if gap > 1e-6 else 0.0
    )
    for number, pages in enumerate(ranks):
        shown[f"rank {number}'s weight at the end ({case})"] = pages["at_end"]
        shown[f"the number of forward passes in eval mode on rank {number} ({case})"] = pages[
            "in_eval_mode"
        ]
        shown[f"whether rank {number}'s micro-batches are as they were ({case})"] = pages[
            "as_before"
        ]
        shown[f"whether rank {number} sends nothing in an optimizer step afterwards ({case})"] = (
            pages["quiet"]
        )
    return shown


def probe_on_ranks(
    cases: tuple[LocalCase, ...],
    arguments: Callable[[LocalCase, list, int], tuple],
    *,
    apart: bool,
):
    """A probe that trains on the ranks of every case (those with steps first); `arguments(case, micro_batches, rank)` follow the loss function."""

    def probe(answer, seed):
        shown, at_start = {}, 0
        answers = for_every_rank(answer, max(case.world_size for case in cases))
        for case in cases:
            models, micro_batches = case.draw(seed, apart=apart)
            before = copy.deepcopy(micro_batches)

            def train(rank, case=case, models=models, micro_batches=micro_batches, before=before):
                model = models[rank.number]
                optimizer = torch.optim.SGD(
                    in_groups(model) if case.groups else model.parameters(),
                    lr=LEARNING_RATE,
                    momentum=case.momentum,
                )
                diary = Diary(model, optimizer, rank, case.accumulation_steps)
                given = arguments(case, micro_batches, rank.number)
                answers[rank.number](model, optimizer, squared_error, *given)
                as_given = arguments(case, before, rank.number)
                return diary.pages() | {"as_before": as_it_was(given, as_given)}

            ranks = as_ranks(train, case.world_size)
            if case.steps:
                shown |= local_training(case, ranks)
                at_start = max(at_start, *(pages["at_start"] for pages in ranks))
            else:
                steps = [len(pages["weights"]) for pages in ranks]
                messages = max(pages["messages"] for pages in ranks) - at_start
                shown |= no_training(case, steps, max(0, messages))
        return shown

    return probe


def squared_error(model, batch):
    """The loss of a micro-batch, in the form in which the lesson's loops are given it."""
    inputs, targets = batch
    return mse_loss(model(inputs), targets)


def moment(steps: int, micro_batches: int) -> str:
    """The moment of a message, in words."""
    return f"after step {steps}" if not micro_batches else f"inside the window of step {steps + 1}"
