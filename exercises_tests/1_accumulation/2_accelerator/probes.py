"""The questions of the lesson 1_accumulation/2_accelerator."""

import contextlib
import copy
import random
from dataclasses import dataclass, replace
from datetime import timedelta
from unittest import mock

import numpy as np
import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from exercises_tests.probing.accelerate import fresh_accelerate
from exercises_tests.probing.rank_threads import Rank, as_ranks
from exercises_tests.probing.toys import (
    Case,
    Held,
    Recorder,
    as_it_was,
    draw,
    flat,
    in_groups,
    training,
)
from trainlean.exercises.comparing import Observation

LEARNING_RATE = 0.1


def loader_of(micro_batches) -> DataLoader:
    """A data loader that gives these micro-batches (inputs, targets) in order."""
    inputs, targets = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    return DataLoader(TensorDataset(inputs, targets), batch_size=len(micro_batches[0][0]))


def only_counts(shown: Observation) -> Observation:
    """The numbers of steps and micro-batches, without gradients and weights."""
    return {name: value for name, value in shown.items() if name.startswith("the number of")}


def held_at_once(micro_batches, case) -> Observation:
    return {f"the most micro-batches whose activations are held at once ({case})": micro_batches}


def at_once(model, micro_batches):
    """A function that says of what was `Held` in a case how many micro-batches' activations that is, at the most."""
    with Held(model) as one:
        squared_error(model, micro_batches[0])
    return lambda held, case: held_at_once(round(held.peak / one.peak), case)


def squared_error(model, batch):
    """The loss of a micro-batch, in the form in which the lesson's loops are given it."""
    inputs, targets = batch
    return mse_loss(model(inputs), targets)


# ---------------------------------------------------------------- train_with_accelerator


@dataclass(frozen=True)
class Clipped(Case):
    """A case with a limit for the gradient; the default is longer than any gradient here, a k times too long one too."""

    max_norm: float = 1000.0

    def __str__(self):
        return f"{super().__str__()}, max_norm {self.max_norm:g}"


CLIPPED = (  # clipping hides a wrong factor, so the first case does not clip
    Clipped(8, 4),
    Clipped(8, 4, max_norm=0.05),
    Clipped(3, 1, small=True),
    Clipped(6, 3, tied=True),
    Clipped(6, 2, frozen=True, max_norm=0.05),
)
CLIPPED_REST = Clipped(10, 4)  # only counted: its last gradient is a matter of its own


@contextlib.contextmanager
def accumulate_noted(model):
    """What is seen of `accumulate` where more than one device would see it: what it was not told, what stands outside; and what its clipping makes nothing of."""
    from accelerate import Accelerator

    accumulate, clip, noted, blocks = (
        Accelerator.accumulate,
        Accelerator.clip_grad_norm_,
        {},
        [],
    )

    @contextlib.contextmanager
    def accumulating(accelerator, *models):
        if not any(isinstance(one, nn.Module) for one in models):
            noted["an accumulate block that is not given the model"] = True
        blocks.append(models)
        with accumulate(accelerator, *models):
            yield
        blocks.pop()

    def clipping(accelerator, parameters, *how, **named):
        if isinstance(parameters, torch.Tensor):
            noted["a bare tensor given to accelerator.clip_grad_norm_"] = True
        return clip(accelerator, parameters, *how, **named)

    def forward(*_):
        if not blocks:
            noted["a forward pass outside the accumulate block"] = True

    handle = model.register_forward_pre_hook(forward)
    with mock.patch.multiple(Accelerator, accumulate=accumulating, clip_grad_norm_=clipping):
        yield noted
    handle.remove()


def calls_of(kind, name):
    """A context in which a method does what it does, and notes that it was called."""
    return mock.patch.object(kind, name, autospec=True, side_effect=getattr(kind, name))


def train_with_accelerator(answer, seed):
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderStateMixin
    from accelerate.optimizer import AcceleratedOptimizer

    shown, forgotten = {}, {}
    for case in (*CLIPPED, CLIPPED_REST):
        model, micro_batches = draw(case, seed)
        optimizer = torch.optim.SGD(in_groups(model), lr=LEARNING_RATE)
        most = at_once(model, micro_batches)
        recorder = Recorder(model, optimizer)
        with (
            fresh_accelerate(),
            calls_of(AcceleratedOptimizer, "step") as prepared_step,
            calls_of(DataLoaderStateMixin, "begin") as prepared_read,
            accumulate_noted(model) as noted,
            Held(model) as held,
        ):
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.accumulation_steps)
            loader = loader_of(micro_batches)
            with calls_of(Accelerator, "__init__") as made:
                answer(accelerator, model, optimizer, loader, squared_error, case.max_norm)
        seen = training(case, recorder)
        shown |= only_counts(seen) if case is CLIPPED_REST else seen
        shown |= most(held, case)
        forgotten |= noted
        prepared = {
            "model": accelerator._models,
            "optimizer": accelerator._optimizers,
            "data loader": accelerator._dataloaders,
        }
        if made.called and not any(prepared.values()):
            forgotten["another Accelerator than the one that was given"] = True
        forgotten |= {
            f"the use of {'an' if thing == 'optimizer' else 'a'} {thing} that was not prepared": True
            for thing, found in prepared.items()
            if not found
        }
        if accelerator._optimizers and not prepared_step.called:
            forgotten["a prepared optimizer whose step was never called"] = True
        if accelerator._dataloaders and not prepared_read.called:
            forgotten["a prepared data loader that was never read"] = True
    return shown | forgotten


# ---------------------------------------------------------------- linear_decay

SCHEDULES = (  # micro-batches of all devices, accumulation steps, epochs, devices
    (8, 4, 1, 1),
    (10, 4, 2, 1),
    (3, 1, 2, 1),
    # Of 9 for each device another half would be 5, which is no half of the line, and 3 times 9 / 4 is not whole.
    (18, 4, 3, 2),
)


GROUPS = {"": 1.0, " of a second group of parameters": 0.5}  # how many times the first rate


def schedule_case(micro_batches, accumulation_steps, epochs, processes):
    plural = "s" * (processes > 1)
    return f"k={accumulation_steps}, {micro_batches // processes} micro-batches, {epochs} epoch{'s' * (epochs > 1)}, {processes} device{plural}"


def first_rate(seed):
    return 0.1 + 0.9 * torch.rand((), generator=torch.Generator().manual_seed(seed)).item()


def pretend_to_be_the_first_of(processes: int):
    """Let the Accelerator believe that there are more processes: it shards data and steps schedulers so, but sends nothing."""
    from accelerate.state import AcceleratorState, PartialState

    for state in (AcceleratorState, PartialState):
        state._shared_state["num_processes"] = processes


def linear_decay(answer, seed):
    from accelerate import Accelerator

    shown = {}
    for micro_batches, accumulation_steps, epochs, processes in SCHEDULES:
        with fresh_accelerate():
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
            pretend_to_be_the_first_of(processes)
            model = nn.Linear(1, 1)
            groups = [
                {"params": [one], "lr": first_rate(seed) * times}
                for one, times in zip(model.parameters(), GROUPS.values(), strict=True)
            ]
            plain = torch.optim.SGD(groups)
            rates = []
            plain.register_step_pre_hook(
                lambda optimizer, *_, rates=rates: rates.append(rates_of(optimizer))
            )
            model, optimizer, dataloader = accelerator.prepare(
                model, plain, DataLoader(torch.ones(2 * micro_batches, 1), batch_size=2)
            )
            scheduler = answer(accelerator, optimizer, dataloader, epochs)
            for _ in range(epochs):
                for inputs in dataloader:
                    with accelerator.accumulate(model):
                        accelerator.backward(model(inputs).mean())
                        optimizer.step()
                        scheduler.step()
                        optimizer.zero_grad()
        case = schedule_case(micro_batches, accumulation_steps, epochs, processes)
        of_groups = zip(*rates, rates_of(plain), strict=True)
        for whose, (*at_steps, afterwards) in zip(GROUPS, of_groups, strict=True):
            shown[f"the learning rate{whose} at each optimizer step ({case})"] = at_steps
            shown[f"the learning rate{whose} after the last step ({case})"] = afterwards
    return shown


def rates_of(optimizer) -> list[float]:
    """The learning rate of each group of parameters."""
    return [group["lr"] for group in optimizer.param_groups]


# ---------------------------------------------------------------- train_synchronised_once

RANKS = 2
OF_EACH_RANK = (
    Case(micro_batches=10, accumulation_steps=4),
    Case(micro_batches=3, accumulation_steps=1, small=True),
    Case(micro_batches=6, accumulation_steps=3, tied=True),
    Case(micro_batches=5, accumulation_steps=2, frozen=True),
)


def two_ranks(work):
    """Run `work(rank, process_group)` on two ranks with a gloo group for DDP; the results in the order of ranks.

    The ranks are threads of this process: the gloo group lives on the loopback and gives up after 5 seconds. What an answer
    sends by hand goes through `Rank`, the default group.
    """
    from torch import distributed

    store = distributed.HashStore()

    def on(rank: Rank):
        options = distributed.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=5)
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        group = distributed.ProcessGroup(store, rank.number, RANKS)
        gloo = distributed.ProcessGroupGloo(store, rank.number, RANKS, options)
        group._register_backend(
            torch.device("cpu"), distributed.ProcessGroup.BackendType.GLOO, gloo
        )
        return work(rank, group)

    return as_ranks(on, RANKS)


class Synchronisation:
    """Notes on one rank how many all-reduces came before each optimizer step, and in which passes no_sync was on."""

    def __init__(self, model: nn.parallel.DistributedDataParallel, optimizer, group, rank: Rank):
        self.all_reduces, self.since_step, self.only_backward = [], 0, 0
        self.group, self.rank, self.sent_before = group, rank, len(rank.sent)
        model.register_comm_hook(None, self._all_reduce)
        model.register_forward_hook(self._forward)
        optimizer.register_step_post_hook(self._stepped)

    def _all_reduce(self, _, bucket):
        self.since_step += 1
        return (
            self.group.allreduce([bucket.buffer()])
            .get_future()
            .then(lambda future: future.value()[0].div_(RANKS))
        )

    def _forward(self, model, _, output):
        synchronises = model.require_backward_grad_sync
        output.register_hook(lambda _: self._backward(model, synchronises))

    def _backward(self, model, synchronised_in_forward):
        self.only_backward += synchronised_in_forward and not model.require_backward_grad_sync

    def _stepped(self, *_):
        by_hand = sum(sent.bytes > 0 for sent in self.rank.sent[self.sent_before :])  # no barriers
        self.all_reduces.append(self.since_step + by_hand)
        self.since_step, self.sent_before = 0, len(self.rank.sent)


def distributed_draw(case, seed):
    """One model, and for each rank the micro-batches that it trains on."""
    model, micro_batches = draw(replace(case, micro_batches=case.micro_batches * RANKS), seed)
    return model, [micro_batches[rank::RANKS] for rank in range(RANKS)]


def train_synchronised_once(answer, seed):
    drawn = []  # before the ranks start: threads share one random state
    for case in OF_EACH_RANK:
        model, shares = distributed_draw(case, seed)
        drawn.append((case, [model, copy.deepcopy(model)], shares))

    def work(rank, group):
        seen = []
        for case, replicas, shares in drawn:
            replica, share = replicas[rank.number], shares[rank.number]
            most = at_once(replica, share)
            model = nn.parallel.DistributedDataParallel(replica, process_group=group)
            optimizer = torch.optim.SGD(in_groups(replica), lr=LEARNING_RATE)
            recorder = Recorder(replica, optimizer)
            synchronisation = Synchronisation(model, optimizer, group, rank)
            before = copy.deepcopy(share)
            with Held(replica) as held:
                answer(model, optimizer, squared_error, share, case.accumulation_steps)
            rest = most(held, case)
            rest[f"whether the micro-batches are as they were ({case})"] = as_it_was(share, before)
            rest[f"whether the model synchronises afterwards ({case})"] = (
                model.require_backward_grad_sync
            )
            seen.append((recorder, synchronisation, flat(replica), rest))
        return seen

    shown = {}
    for case, (recorder, synchronisation, weights, rest), (_, _, other_weights, _) in zip(
        OF_EACH_RANK, *two_ranks(work), strict=True
    ):
        shown |= distributed_training(case, recorder, synchronisation.all_reduces)
        gap = float(abs(weights - other_weights).max())
        shown[f"the largest difference between the ranks' weights ({case})"] = (
            gap if gap > 1e-6 else 0.0
        )
        shown[f"the number of micro-batches with no_sync in the backward pass only ({case})"] = (
            synchronisation.only_backward
        )
        shown |= rest
    return shown


def distributed_training(case, recorder, all_reduces, micro_batches_per_forward=None):
    counted = {
        f"the number of all-reduces before step {number} ({case})": count
        for number, count in enumerate(all_reduces, 1)
    }
    trained = training(case, recorder, micro_batches_per_forward)
    steps = f"the number of optimizer steps ({case})"  # first: without a step nothing is before it
    return {steps: trained[steps]} | counted | trained


# ---------------------------------------------------------------- loss_factor


RATIO_OF_ITS_OWN = (13, 10)  # 10 / 3, rounded down, up, and 10 - 3 are four numbers, and none is 2


def draw_epochs(seed: int) -> list[tuple[int, int]]:
    """(micro-batches in an epoch, accumulation steps): whole windows, a short last one, a short one only, no accumulation."""
    generator = random.Random(seed)
    k = generator.randint(4, 6)
    rest = generator.choice([size for size in range(2, k) if k % size])  # k / rest is not whole
    other = generator.choice([size for size in range(1, k) if size != rest])
    return [(10, 4), (k + rest, k), (k + other, k), (2 * k, k), (rest, k), (7, 1), RATIO_OF_ITS_OWN]


def factors_case(micro_batches, accumulation_steps):
    return (
        f"the list of factors of an epoch (k={accumulation_steps}, {micro_batches} micro-batches)"
    )


def loss_factor(answer, seed):
    return {
        factors_case(n, k): np.array([float(answer(index, n, k)) for index in range(n)])
        for n, k in draw_epochs(seed)
    }
