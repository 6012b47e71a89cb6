"""A training on several processes beside the large batch on one: what DistributedDataParallel does, or Local SGD that averages after every step."""

import math
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import cloudpickle
import torch

from trainlean.audit.accumulated import compare_accumulation
from trainlean.audit.differences import (
    ROUNDING,
    SURE,
    Windows,
    gradient_of,
    of_weights,
    other_setting,
    vector,
)
from trainlean.audit.finding import Sizes, counted, near
from trainlean.audit.gradients import factors_of
from trainlean.audit.inputs import LOW
from trainlean.audit.naming import setting_seen
from trainlean.audit.precision import InFloat32, decided_in_float32
from trainlean.audit.recorded import Recorded, Step
from trainlean.audit.running import call_text, recorded_call
from trainlean.audit.verdict import Audit, cannot_tell, named, unusable, within
from trainlean.exercises.comparing import describe
from trainlean.processes import server_context, start
from trainlean.workspace import CourseError

SECONDS = 300  # of a training on ranks


def compare_ranks(train, batch: int, accumulation_steps: int, world_size: int) -> Audit:
    """The verdict on `train(micro_batch, accumulation_steps)` in `world_size` processes, beside `train(batch, 1)` in one.

    CourseError: a rank raised, or did not end.
    """
    micro = batch // (accumulation_steps * world_size)
    text = call_text(train, micro, accumulation_steps)
    sizes = Sizes(
        batch // world_size,
        accumulation_steps,
        call_text(train, batch, 1),
        f"{text} on {world_size} ranks",
    )
    truth = recorded_call(train, batch, 1)
    if audit := unusable(truth, sizes):
        return audit
    audit = _compared(train, truth, sizes, world_size, text)
    if truth.precision not in LOW.values():
        return audit

    def again() -> tuple[Audit, float]:
        exact = InFloat32(train)
        wide = recorded_call(exact, batch, 1)
        return _compared(exact, wide, sizes, world_size, text), 0.0

    far = math.inf if audit.same is False else 0.0
    return decided_in_float32(audit, far, truth.precision, again)


def _compared(train, truth: Recorded, sizes: Sizes, world_size: int, text: str) -> Audit:
    k, batch = sizes.accumulation_steps, sizes.batch * world_size
    others = _on_ranks(train, (sizes.micro_batch, k), world_size, text)
    audit = _verdict(others, truth, sizes, world_size)
    if audit.same is False and k > 1:
        # What goes wrong on one rank already has nothing to do with ranks.
        called = call_text(train, batch, 1), call_text(train, batch // k, k)
        alone = compare_accumulation(train, Sizes(batch, k, *called))
        return alone if alone.same is False else audit
    return audit


def _verdict(others: list[Recorded], truth: Recorded, sizes: Sizes, world_size: int) -> Audit:
    rounding = ROUNDING[truth.precision]
    note = "Dropout was off for the comparison." if truth.dropout else ""
    counts = [len(one.steps) for one in others]
    if len(set(counts)) > 1 or counts[0] != len(truth.steps):
        mistake = None
        if not all(counts):
            mistake = "rank left out" if any(counts) else "never steps"
        elif len(set(counts)) == 1 and _all_alike(_seen_by(others, truth)):
            mistake = "every rank trains on the same samples"
        return named(
            sizes,
            mistake,
            f"the ranks make {', '.join(map(str, counts[:-1]))} and {counted(counts[-1], 'step')}; {sizes.truth} makes {len(truth.steps)}",
            min(*counts, len(truth.steps)) + 1,
        )
    first = [vector(one.steps[0].weights) for one in others]
    wanted = vector(truth.steps[0].weights)
    if any(weights.shape != wanted.shape for weights in first):
        return cannot_tell(
            sizes, "the optimizers of ranks and large batch do not hold the same weights", 1
        )
    if any(float((weights - wanted).abs().max()) > 0 for weights in first):
        return cannot_tell(
            sizes,
            "not every rank starts from the weights of the large batch: make the model from the same seed on every rank, or broadcast the one of rank 0",
            1,
        )
    largest = 0.0
    for number, right in enumerate(truth.steps, 1):
        steps = [one.steps[number - 1] for one in others]
        want = gradient_of(right)
        mean = sum(gradient_of(step) for step in steps) / world_size
        length = max(float(want.norm()), 1e-30)
        gap = float((mean - want).norm()) / length
        # From the second step on rounding has moved the weights: what counts is no rounding.
        if gap > rounding * (1 if number == 1 else 100):
            return _of_gradient(number, others, truth, sizes, world_size, mean, want, gap, rounding)
        largest = max(largest, gap)
        after = [
            vector(one.steps[number].weights if number < len(truth.steps) else one.weights)
            for one in others
        ]
        target = vector(right.moved)
        moved = max(float((target - vector(right.weights)).norm()), 1e-30)
        apart = max(float((weights - after[0]).norm()) for weights in after)
        if apart > 1e-3 * moved:
            name, seen = _apart(number, others, right, truth, apart / moved)
            return named(sizes, name, seen, number, note)
        off = float((after[0] - target).norm())
        if off > max(1e-2, 100 * rounding) * moved:
            alone = [float((after[0] - vector(step.moved)).norm()) < 1e-3 * moved for step in steps]
            if any(alone) and not all(alone):
                seen = f"after step {number} all ranks have the weights that rank {alone.index(True)} came to by itself"
                return named(sizes, "rank left out", seen, number, note)
            setting, group = other_setting(steps[0], right)
            if setting in right.settings[group]:
                seen = setting_seen(
                    number,
                    setting,
                    steps[0].settings[group].get(setting),
                    right.settings[group][setting],
                    sizes,
                )
                return named(sizes, None, seen, number, note)
            return named(
                sizes,
                None,
                f"after step {number} the weights are {off / moved:.2g} of that step's length from those of {sizes.truth}, though the mean of the ranks' gradients is its gradient: averaging weights equals averaging gradients for plain SGD only",
                number,
                note,
            )
    count = len(truth.steps)
    seen = f"{counted(count, 'optimizer step')} on {world_size} ranks, whose mean gradients differ from the large batch's by less than {within(largest)} of their length"
    return Audit(True, seen, note=note, compared=(sizes.other, sizes.truth))


def _of_gradient(number, others, truth, sizes, world_size, mean, want, gap, rounding) -> Audit:
    seen = f"the mean of the ranks' gradients at step {number} {describe(mean.numpy(), want.numpy(), 'that of ' + sizes.truth)}"
    if _all_alike([Windows(one, truth).of_other[number - 1] for one in others]):
        return named(sizes, "every rank trains on the same samples", seen, number)
    factor = float(mean @ want / want.square().sum())
    straight = float((mean - factor * want).norm()) < 1e-2 * abs(factor) * float(want.norm())
    names = {world_size: "summed over the ranks", 1 / world_size: "averaged over the ranks twice"}
    # Ranks that hold other gradients than each other were neither summed nor averaged: each may hold its share of the weights.
    held = [gradient_of(one.steps[number - 1]) for one in others]
    shared = all(float((one - held[0]).norm()) <= 1e-3 * float(held[0].norm()) for one in held)
    for value, name in names.items():
        if straight and shared and math.isclose(factor, value, rel_tol=1e-2):
            return named(sizes, name, seen, number)
    if truth.batch_norm:
        return named(sizes, "batch norm", seen, number)
    if gap < SURE * rounding or truth.drew:
        why = (
            "random numbers are drawn while it trains, and a large batch draws others than the ranks"
            if truth.drew
            else f"more than rounding mostly does in {truth.precision} and less than a known mistake"
        )
        return cannot_tell(sizes, f"{seen}: {why}", number)
    return named(
        sizes, _by_part([one.steps[number - 1] for one in others], mean, want), seen, number
    )


def _by_part(steps: list[Step], mean, want) -> str | None:
    """A name for how what came to the weights of each rank, in each round, counts in the mean beside how it should."""
    world_size, rounds = len(steps), len(steps[0].rounds)
    if not rounds or any(len(step.rounds) != rounds for step in steps):
        return None
    parts = [of_weights(step, one.flowed) for step in steps for one in step.rounds]
    got, wanted = (factors_of(parts, one, 1e-2) for one in (mean, want))
    if got is None or wanted is None or min(wanted) <= 0 or min(got) <= 0:
        return None
    factor = [
        [got[r * rounds + n] / wanted[r * rounds + n] for n in range(rounds)]
        for r in range(world_size)
    ]
    even = all(near(one, got[0], 1e-2) for one in got)
    if even and not all(near(one, wanted[0], 1e-2) for one in wanted):
        return "mean of the ranks' means"
    if all(near(one, row[0], 1e-2) for row in factor for one in row):
        each = [row[0] for row in factor]
        if all(near(one, each[0], 1e-3) for one in each) and not any(step.clips for step in steps):
            return "a wrong divisor"
        return "clipped before the all-reduce" if _each_cut(steps, each) else None
    again = [
        [float(world_size) ** (rounds - 1 - n) for n in range(rounds)] for _ in range(world_size)
    ]
    if all(
        near(one / factor[0][-1], times, 2e-2)
        for row, expected in zip(factor, again, strict=True)
        for one, times in zip(row, expected, strict=True)
    ):
        return "all-reduced in every micro-batch"
    return None


def _each_cut(steps: list[Step], factors: list[float]) -> bool:
    """Whether each rank's gradient was clipped: by torch's function, or to one length wherever it is shorter."""
    if max(factors) > 1.001:
        return False
    if any(step.clips for step in steps):
        return True
    own = [sum(of_weights(step, one.flowed) for one in step.rounds) for step in steps]
    pairs = zip(own, factors, strict=True)
    cut = [float(part.norm()) * one for part, one in pairs if one < 0.999]
    return len(cut) > 1 and all(near(length, cut[0], 1e-2) for length in cut)


def _apart(
    number: int, others: list[Recorded], right: Step, truth: Recorded, apart: float
) -> tuple[str, str]:
    """The name and what is seen where the ranks end a step with different weights."""
    steps = [one.steps[number - 1] for one in others]
    seen = f"after step {number} the ranks' weights are {apart:.2g} of that step's length apart"
    name = _unshared(steps, number == len(truth.steps) > 1)
    ends = [_after(number, one) for one in others]
    if name != "rank left out" or any(len(one) != len(right.moved or ()) for one in ends):
        return name, seen
    # Of each tensor that moves, by what differs from rank to rank: is it the same on all of them afterwards?
    shared = []
    for at, (before, after) in enumerate(zip(right.weights, right.moved or (), strict=True)):
        came = [
            sum(one.flowed[step.ids[at]] for one in step.rounds if step.ids[at] in one.flowed)
            for step in steps
        ]
        way = float((after - before).norm())
        if way and any(
            float((one - came[0]).norm()) > 0 for one in came[1:] if torch.is_tensor(one)
        ):
            apart_here = max(float((one[at] - ends[0][at]).norm()) for one in ends[1:])
            shared.append(apart_here <= 1e-3 * way)
    if any(shared):
        return (
            "some weights are not averaged",
            f"{seen}, in {shared.count(False)} of their {counted(len(shared), 'tensor')}",
        )
    return name, seen


def _after(number: int, recorded: Recorded) -> list[torch.Tensor]:
    """The weights of a rank's first optimizer behind a step."""
    if number < len(recorded.steps):
        return recorded.steps[number].weights
    return recorded.weights[: len(recorded.steps[number - 1].weights)]


def _unshared(steps: list[Step], last: bool) -> str:
    """A name where the ranks part at a step, by the rounds whose gradients came to all of them."""
    rounds = len(steps[0].rounds)
    if not rounds or any(len(step.rounds) != rounds for step in steps):
        return "rank left out"
    parts = [of_weights(step, one.flowed) for step in steps for one in step.rounds]
    factors = factors_of(parts, gradient_of(steps[0]), 1e-2)
    if factors is None:
        return "rank left out"
    shared = [
        all(abs(factors[rank * rounds + n]) > 1e-3 for rank in range(1, len(steps)))
        for n in range(rounds)
    ]
    if rounds > 1 and shared == [True] + [False] * (rounds - 1):
        return "synchronised on the first micro-batch"
    if rounds > 1 and shared == [True] * (rounds - 1) + [False]:
        return "no_sync on the last micro-batch only"
    if last and not any(shared):
        return "last window stepped without its all-reduce"
    return "rank left out"


def _seen_by(others: list[Recorded], truth: Recorded) -> list[Counter]:
    """The samples of each rank's whole training."""
    return [Windows(one, truth).behind(one.calls) for one in others]


def _all_alike(samples: list[Counter]) -> bool:
    return bool(samples[0]) and all(one == samples[0] for one in samples)


# ---------------------------------------------------------------- the processes


def _on_ranks(train, args: tuple, world_size: int, text: str) -> list[Recorded]:
    """What each rank recorded. CourseError: a rank raised, or did not end."""
    context = server_context(["torch", "torch._dynamo", "trainlean.audit.ranks"])
    packed = _packed(train)
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            start(
                context,
                _rank,
                packed,
                args,
                number,
                world_size,
                folder,
                os.getcwd(),
                sys.path,
                daemon=True,
            )
            for number in range(world_size)
        ]
        for process in processes:
            process.join(SECONDS)
        late = [number for number, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
        results = []
        for number in range(world_size):
            file = Path(folder) / f"{number}.done"
            if not file.exists():
                how = f"did not end within {SECONDS} s" if number in late else "died"
                raise CourseError(f"{text} on {world_size} ranks: rank {number} {how}.")
            results.append(cloudpickle.loads(file.read_bytes()))
    errors = [f"rank {number}: {one}" for number, one in enumerate(results) if isinstance(one, str)]
    if errors:
        raise CourseError(f"{text} on {world_size} ranks failed. {errors[0]}")
    return results


def _packed(train) -> bytes:
    """The function with what its module holds, which other processes need not find."""
    module = sys.modules.get(getattr(train, "__module__", ""))
    file = getattr(module, "__file__", None)
    own = (
        module is not None
        and file
        and "site-packages" not in file
        and module.__name__ != "__main__"
    )
    if own:
        cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps(train)
    except (TypeError, AttributeError, ValueError) as error:
        raise CourseError(
            f"same_training cannot hand the function to other processes ({error}): let it make its model and data inside."
        ) from error
    finally:
        if own:
            cloudpickle.unregister_pickle_by_value(module)


def _rank(
    packed: bytes, args: tuple, number: int, world_size: int, folder: str, here: str, path: list
) -> None:
    """One process: its group, its training, its record in a file."""
    os.chdir(here)
    sys.path[:] = path  # a function imports what lies beside it
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        "ACCELERATE_USE_CPU": "true",
    }
    distributed = torch.distributed
    found: Recorded | str
    try:
        store = distributed.FileStore(f"{folder}/store", world_size)
        distributed.init_process_group("gloo", store=store, rank=number, world_size=world_size)
        found = recorded_call(cloudpickle.loads(packed), *args, rounds=True)
        for step in found.steps:
            for one in step.rounds:
                one.before, one.after = {}, {}
    except BaseException as error:
        found = str(error) or type(error).__name__
    part = Path(folder) / f"{number}.part"
    part.write_bytes(cloudpickle.dumps(found))
    part.rename(Path(folder) / f"{number}.done")
    os._exit(0)  # without waiting for the others in the group's end
