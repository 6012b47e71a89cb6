"""What the exercises of the lesson 1_accumulation/2_accelerator must do, and the mistakes known to be made."""

import contextlib
import copy
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from unittest import mock

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from exercises_tests.probing.accelerate import fresh_accelerate
from exercises_tests.probing.toys import Case, Recorder, draw, flat, training, windows
from trainlean.exercises.comparing import Observation
from trainlean.exercises.exercise import Exercise, Mistake

LEARNING_RATE = 0.1


def pretend_to_be_the_first_of(processes: int):
    """Let the Accelerator believe that there are more processes: it shards data and steps schedulers so, but sends nothing."""
    from accelerate.state import AcceleratorState, PartialState

    for state in (AcceleratorState, PartialState):
        state._shared_state["num_processes"] = processes


def loader_of(micro_batches) -> DataLoader:
    """A data loader that gives these micro-batches (inputs, targets) in order."""
    inputs, targets = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    return DataLoader(TensorDataset(inputs, targets), batch_size=len(micro_batches[0][0]))


def only_counts(shown: Observation) -> Observation:
    """The numbers of steps and micro-batches, without gradients and weights."""
    return {name: value for name, value in shown.items() if name.startswith("the number of")}


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
    Clipped(3, 1),
    Clipped(6, 3, tied=True),
    Clipped(6, 2, frozen=True, max_norm=0.05),
)
CLIPPED_REST = Clipped(10, 4)  # only counted: its last gradient is a matter of its own


def probe_accelerated(answer, seed):
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer

    shown, forgotten = {}, {}
    for case in (*CLIPPED, CLIPPED_REST):
        model, micro_batches = draw(case, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        asked = mock.patch.object(
            AcceleratedOptimizer, "step", autospec=True, side_effect=AcceleratedOptimizer.step
        )
        with fresh_accelerate(), asked as prepared_step:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=case.accumulation_steps)
            answer(
                accelerator,
                model,
                optimizer,
                loader_of(micro_batches),
                squared_error,
                case.max_norm,
            )
        seen = training(case, recorder)
        shown |= only_counts(seen) if case is CLIPPED_REST else seen
        prepared = {
            "model": accelerator._models,
            "optimizer": accelerator._optimizers,
            "data loader": accelerator._dataloaders,
        }
        forgotten |= {
            f"{'an' if thing == 'optimizer' else 'a'} {thing} that was not prepared": True
            for thing, found in prepared.items()
            if not found
        }
        if accelerator._optimizers and not prepared_step.called:
            forgotten["a prepared optimizer whose step was never called"] = True
    return shown | forgotten


def oracle_accelerated(seed):
    shown = {}
    for case in (*CLIPPED, CLIPPED_REST):
        model, micro_batches = draw(case, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        groups = windows(micro_batches, case.accumulation_steps)
        for window in groups:
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            mse_loss(model(inputs), targets).backward()
            nn.utils.clip_grad_norm_(model.parameters(), case.max_norm)
            optimizer.step()
            optimizer.zero_grad()
        seen = training(case, recorder, [len(window) for window in groups])
        shown |= only_counts(seen) if case is CLIPPED_REST else seen
    return shown


def clip(accelerator, model, max_norm):
    if accelerator.sync_gradients:
        accelerator.clip_grad_norm_(model.parameters(), max_norm)


def steps_when_gradients_are_in_sync(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    dataloader, optimizer, model = accelerator.prepare(dataloader, optimizer, model)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if accelerator.sync_gradients:
                nn.utils.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                optimizer.zero_grad()


def prepares_one_by_one(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer = accelerator.prepare(model), accelerator.prepare(optimizer)
    optimizer.zero_grad()
    for batch in accelerator.prepare(dataloader):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            clip(accelerator, model, max_norm)
            optimizer.step()
            optimizer.zero_grad()


def zeroes_before_the_block(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for index, batch in enumerate(dataloader):
        if index % accelerator.gradient_accumulation_steps == 0:
            optimizer.zero_grad()  # outside the block the flag still stands as the last window left it
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            clip(accelerator, model, max_norm)
            optimizer.step()


def backward_by_pytorch(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss_of(model, batch).backward()
            clip(accelerator, model, max_norm)
            optimizer.step()
            optimizer.zero_grad()


def divides_twice(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            loss = loss_of(model, batch) / accelerator.gradient_accumulation_steps
            accelerator.backward(loss)
            clip(accelerator, model, max_norm)
            optimizer.step()
            optimizer.zero_grad()


def forgets_to_prepare(*names):
    def train(accelerator, model, optimizer, dataloader, loss_of, max_norm):
        things = {"model": model, "optimizer": optimizer, "dataloader": dataloader}
        things |= {
            name: accelerator.prepare(thing) for name, thing in things.items() if name not in names
        }
        model, optimizer, dataloader = things.values()
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                clip(accelerator, model, max_norm)
                optimizer.step()
                optimizer.zero_grad()

    return train


def drops_what_prepare_returns(*, keep_loader=False):
    def train(accelerator, model, optimizer, dataloader, loss_of, max_norm):
        *_, prepared_loader = accelerator.prepare(model, optimizer, dataloader)
        for batch in prepared_loader if keep_loader else dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                clip(accelerator, model, max_norm)
                optimizer.step()
                optimizer.zero_grad()

    return train


def mixes_up_what_prepare_returns(order):
    def train(accelerator, model, optimizer, dataloader, loss_of, max_norm):
        prepared = accelerator.prepare(model, optimizer, dataloader)
        model, optimizer, dataloader = (prepared[place] for place in order)
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))

    return train


def makes_its_own(**settings):
    def train(accelerator, model, optimizer, dataloader, loss_of, max_norm):
        from accelerate import Accelerator

        given = {name: getattr(accelerator, name) for name in settings}
        accelerator = Accelerator(cpu=True, **given)
        model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
        for batch in dataloader:
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                clip(accelerator, model, max_norm)
                optimizer.step()
                optimizer.zero_grad()

    return train


def without_accumulate(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        accelerator.backward(loss_of(model, batch))
        clip(accelerator, model, max_norm)
        optimizer.step()
        optimizer.zero_grad()


def one_block_around_the_loop(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    with accelerator.accumulate(model):
        for batch in dataloader:
            accelerator.backward(loss_of(model, batch))
            clip(accelerator, model, max_norm)
            optimizer.step()
            optimizer.zero_grad()


def step_outside_the_loop(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
    clip(accelerator, model, max_norm)
    optimizer.step()
    optimizer.zero_grad()


def two_micro_batches_a_block(*, step_inside):
    def train(accelerator, model, optimizer, dataloader, loss_of, max_norm):
        model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)

        def step():
            clip(accelerator, model, max_norm)
            optimizer.step()
            optimizer.zero_grad()

        waiting = []
        for number, batch in enumerate(dataloader, 1):
            waiting.append(batch)
            if len(waiting) < 2 and number < len(dataloader):
                continue
            with accelerator.accumulate(model):
                for batch in waiting:
                    accelerator.backward(loss_of(model, batch))
                    if step_inside:
                        step()
                if not step_inside:
                    step()
            waiting = []

    return train


def splits_the_batch_inside_the_block(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            for start in range(len(batch[0])):
                accelerator.backward(loss_of(model, [part[start : start + 1] for part in batch]))
            clip(accelerator, model, max_norm)
            optimizer.step()
            optimizer.zero_grad()


def several_blocks_a_batch(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        for start in range(len(batch[0])):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, [part[start : start + 1] for part in batch]))
                clip(accelerator, model, max_norm)
                optimizer.step()
                optimizer.zero_grad()


def zeroes_before_backward(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            optimizer.zero_grad()
            accelerator.backward(loss_of(model, batch))
            clip(accelerator, model, max_norm)
            optimizer.step()


def zeroes_through_the_model(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for batch in dataloader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            clip(accelerator, model, max_norm)
            optimizer.step()
            model.zero_grad()


def never_zeroes(*, asks_at_the_first=False):
    def train(accelerator, model, optimizer, dataloader, loss_of, max_norm):
        model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
        for index, batch in enumerate(dataloader):
            with accelerator.accumulate(model):
                if asks_at_the_first and index % accelerator.gradient_accumulation_steps == 0:
                    optimizer.zero_grad()  # ignored: the window has just begun
                accelerator.backward(loss_of(model, batch))
                clip(accelerator, model, max_norm)
                optimizer.step()

    return train


def counts_by_hand_too(accelerator, model, optimizer, dataloader, loss_of, max_norm):
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for number, batch in enumerate(dataloader, 1):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch))
            if number % accelerator.gradient_accumulation_steps == 0:
                clip(accelerator, model, max_norm)
                optimizer.step()
                optimizer.zero_grad()


def clips(place):
    """The right loop, except that it clips at another place: "always", "before backward", "after the step" or "never"."""

    def train(accelerator, model, optimizer, dataloader, loss_of, max_norm):
        model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
        for batch in dataloader:
            with accelerator.accumulate(model):
                if place == "before backward":
                    accelerator.clip_grad_norm_(model.parameters(), max_norm)
                accelerator.backward(loss_of(model, batch))
                if place == "always":
                    accelerator.clip_grad_norm_(model.parameters(), max_norm)
                optimizer.step()
                if place == "after the step":
                    clip(accelerator, model, max_norm)
                optimizer.zero_grad()

    return train


train_with_accelerator = Exercise(
    name="train_with_accelerator",
    points=3,
    probe=probe_accelerated,
    oracle=oracle_accelerated,
    truth="the large batch's",
    mistakes=(
        Mistake(
            "backward without the accelerator",
            backward_by_pytorch,
            why="`loss.backward()` divides nothing, so k micro-batches add up to k times the mean; the division is in `accelerator.backward`.",
            hint="Which of the two backwards knows how many accumulation steps there are?",
        ),
        Mistake(
            "divided twice",
            divides_twice,
            why="`accelerator.backward` already divides the loss by the accumulation steps; with your own division each micro-batch counts 1/k of what it should.",
            hint="Which of the lines of the PyTorch loop does `accelerator.backward` replace?",
        ),
        Mistake(
            "data loader not prepared",
            forgets_to_prepare("dataloader"),
            why="Only a prepared data loader tells the accelerator that its last micro-batch has come; without it the rest stays in `.grad` and is mixed into the next epoch.",
            hint="How could the accelerator know that no further micro-batch comes?",
        ),
        Mistake(
            "optimizer not prepared",
            forgets_to_prepare("optimizer"),
            why="It is the prepared optimizer that ignores `step` and `zero_grad` in the middle of a window; the plain one steps on every micro-batch.",
            hint="What type does your optimizer have when its `step` is called?",
        ),
        Mistake(
            "model not prepared",
            forgets_to_prepare("model"),
            why="On one device nothing changes, but on two the gradients would never be averaged: `prepare` wraps the model in DistributedDataParallel.",
            hint="Who would tell the other device about this device's gradients?",
        ),
        Mistake(
            "what prepare returns not kept",
            drops_what_prepare_returns(),
            drops_what_prepare_returns(keep_loader=True),
            why="`prepare` changes nothing in place, it returns new objects; the optimizer that you step is still the plain one, which steps on every micro-batch.",
            hint="Where do the prepared model, optimizer and data loader go in your function?",
        ),
        Mistake(
            "what prepare returns in another order",
            mixes_up_what_prepare_returns((0, 2, 1)),
            mixes_up_what_prepare_returns((1, 0, 2)),
            mixes_up_what_prepare_returns((2, 1, 0)),
            why="`prepare` returns things in the order in which it was given them, so two of your names stand for each other's thing.",
            hint="In which order did you pass the three, and in which order do you unpack them?",
        ),
        Mistake(
            "an Accelerator of its own",
            makes_its_own(),
            makes_its_own(gradient_accumulation_steps=True),
            why="Making a second Accelerator sets the accumulation steps of all of them anew; the one that you were given is already set up, and is the one to use.",
            hint="Which argument of your function already knows the accumulation steps?",
        ),
        Mistake(
            "clipped in every micro-batch",
            clips("always"),
            clips("before backward"),
            why="`clip_grad_norm_` is not put off until the end of the window as `step` is: it cuts parts of a sum that is not complete, and so turns the gradient.",
            hint="Which flag tells that the gradient of the window is complete?",
        ),
        Mistake(
            "not clipped before the step",
            clips("never"),
            clips("after the step"),
            why="The optimizer steps with the gradient as it finds it; what is clipped later, or not at all, has no effect on the weights.",
            hint="Between which two calls is the gradient complete and not yet used?",
        ),
        Mistake(
            "no accumulate block",
            without_accumulate,
            why="Nothing counts the micro-batches, so the accelerator takes each of them for the last of its window and the optimizer steps every time.",
            hint="Which `with` makes `accelerator.sync_gradients` false in the middle of a window?",
        ),
        Mistake(
            "one block around the whole loop",
            one_block_around_the_loop,
            why="The accelerator counts when a block is entered; one block around the loop counts to 1, so the window is never complete.",
            hint="How often must the `with` line run: once an epoch, once a window, or once a micro-batch?",
        ),
        Mistake(
            "several micro-batches in one block",
            two_micro_batches_a_block(step_inside=False),
            two_micro_batches_a_block(step_inside=True),
            why="The accelerator counts blocks, not backward passes: with two micro-batches in a block the window holds twice as many, and the gradient grows with it.",
            hint="How many forward and backward passes belong into one `accumulate` block?",
        ),
        Mistake(
            "a batch split inside the block",
            splits_the_batch_inside_the_block,
            why="The block counts once for all the pieces, and `accelerator.backward` divides each of them by the accumulation steps only, so the gradient is as many times too large as there are pieces.",
            hint="How many forward and backward passes belong into one `accumulate` block?",
        ),
        Mistake(
            "several blocks for one batch of the loader",
            several_blocks_a_batch,
            why="During the last batch of the data loader every block counts as the end of the epoch, so each of its pieces takes a step of its own; and windows hold pieces, not the loader's micro-batches.",
            hint="Which size must the loader's batches have so that one of them is one forward pass?",
        ),
        Mistake(
            "zeroed inside the window",
            zeroes_before_backward,
            zeroes_through_the_model,
            why="The gradients of the earlier micro-batches are thrown away: in the last block of a window `zero_grad` is no longer ignored, so it must come after `step`; and `model.zero_grad()` is never ignored.",
            hint="When the last block of a window begins, what is in `.grad`, and who empties it before the step?",
        ),
        Mistake(
            "gradients never zeroed",
            never_zeroes(),
            never_zeroes(asks_at_the_first=True),
            why="Nothing empties `.grad` between two windows: `step` leaves it as it is, and a `zero_grad` in the first block of a window is ignored, because that window is not complete.",
            hint="In which block of a window does `zero_grad` happen, and where in that block must it stand?",
        ),
        Mistake(
            "own counter beside accumulate",
            counts_by_hand_too,
            why="The block makes the last micro-batch of the epoch a sync point even in a short window; a counter with the modulo skips that step and leaves the rest in `.grad`.",
            hint="If the prepared optimizer ignores `step` in the middle of a window, what is the `if` for?",
        ),
        Mistake(
            "one step after the loop",
            step_outside_the_loop,
            why="The optimizer is asked only once, after the last micro-batch; all windows are summed up in one gradient.",
            hint="What does a prepared optimizer do when it is asked to step in the middle of a window?",
        ),
    ),
    hints=(
        "Which lines of the loop does Accelerate take over, and which of the rest are put off until the window is complete?",
        "In the loop: the `with accelerator.accumulate(model):` line first, and in it what is done with one micro-batch, without division; only clipping needs an `if`, and it asks `accelerator.sync_gradients`.",
        "prepare(model, optimizer, dataloader); then for each micro-batch, in one block: accelerator.backward(loss), clip if accelerator.sync_gradients, optimizer.step(), optimizer.zero_grad().",
    ),
    also_right=(steps_when_gradients_are_in_sync, prepares_one_by_one, zeroes_before_the_block),
)


# ---------------------------------------------------------------- linear_decay

SCHEDULES = (  # micro-batches of all devices, accumulation steps, epochs, devices
    (8, 4, 1, 1),
    (10, 4, 2, 1),
    (3, 1, 2, 1),
    (14, 4, 2, 2),
)


def schedule_case(micro_batches, accumulation_steps, epochs, processes):
    plural = "s" * (processes > 1)
    return f"k={accumulation_steps}, {micro_batches // processes} micro-batches, {epochs} epoch{'s' * (epochs > 1)}, {processes} device{plural}"


def first_rate(seed):
    return 0.1 + 0.9 * torch.rand((), generator=torch.Generator().manual_seed(seed)).item()


def probe_schedule(answer, seed):
    from accelerate import Accelerator

    shown = {}
    for micro_batches, accumulation_steps, epochs, processes in SCHEDULES:
        with fresh_accelerate():
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
            pretend_to_be_the_first_of(processes)
            model = nn.Linear(1, 1)
            plain = torch.optim.SGD(model.parameters(), lr=first_rate(seed))
            rates = []
            plain.register_step_pre_hook(
                lambda optimizer, *_: rates.append(optimizer.param_groups[0]["lr"])
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
        shown[f"the learning rate at each optimizer step ({case})"] = rates
        shown[f"the learning rate after the last step ({case})"] = plain.param_groups[0]["lr"]
    return shown


def oracle_schedule(seed):
    shown = {}
    for micro_batches, accumulation_steps, epochs, processes in SCHEDULES:
        seen_by_one_device = range(micro_batches // processes)
        steps = sum(len(windows(seen_by_one_device, accumulation_steps)) for _ in range(epochs))
        case = schedule_case(micro_batches, accumulation_steps, epochs, processes)
        shown[f"the learning rate at each optimizer step ({case})"] = [
            first_rate(seed) * (1 - step / steps) for step in range(steps)
        ]
        shown[f"the learning rate after the last step ({case})"] = 0.0
    return shown


def decay_over(length, *, prepare=True, clamp=True):
    """An answer whose line reaches zero after `length(micro-batches, k, epochs, devices)` calls of `scheduler.step`."""

    def linear_decay(accelerator, optimizer, dataloader, epochs):
        total = max(
            1,
            length(
                len(dataloader),
                accelerator.gradient_accumulation_steps,
                epochs,
                accelerator.num_processes,
            ),
        )
        floor = 0.0 if clamp else -math.inf
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: max(floor, 1 - step / total)
        )
        return accelerator.prepare(scheduler) if prepare else scheduler

    return linear_decay


def decays_over(length, **how):
    """The same answer with and without a floor at zero: a line that is too short goes below it."""
    return decay_over(length, **how), decay_over(length, clamp=False, **how)


def polynomial_of_power_one(accelerator, optimizer, dataloader, epochs):
    windows_an_epoch = -(-len(dataloader) // accelerator.gradient_accumulation_steps)
    total = windows_an_epoch * epochs * accelerator.num_processes
    return accelerator.prepare_scheduler(
        torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=total, power=1.0)
    )


def with_transformers(accelerator, optimizer, dataloader, epochs):
    from transformers import get_linear_schedule_with_warmup

    steps = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps) * epochs
    return accelerator.prepare(
        get_linear_schedule_with_warmup(optimizer, 0, steps * accelerator.num_processes)
    )


def steps_in_all(batches, k, epochs, devices):
    return math.ceil(batches / k) * epochs * devices


def in_samples(accelerator, optimizer, dataloader, epochs):
    total = math.ceil(len(dataloader.dataset) / accelerator.gradient_accumulation_steps) * epochs
    return accelerator.prepare(
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / total))
    )


def constant_rate(accelerator, optimizer, dataloader, epochs):
    return accelerator.prepare(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0))


linear_decay = Exercise(
    name="linear_decay",
    points=2,
    probe=probe_schedule,
    oracle=oracle_schedule,
    truth="a straight line to 0",
    mistakes=(
        Mistake(
            "length in micro-batches",
            decay_over(lambda batches, k, epochs, devices: batches * epochs),
            decay_over(lambda batches, k, epochs, devices: batches * epochs * devices),
            why="The prepared scheduler moves once per optimizer step, not once per micro-batch, so a length counted in micro-batches is never reached.",
            hint="How many optimizer steps are there in one epoch?",
        ),
        Mistake(
            "scheduler not prepared",
            *decays_over(steps_in_all, prepare=False),
            decay_over(lambda batches, k, epochs, devices: batches * epochs, prepare=False),
            decay_over(
                lambda batches, k, epochs, devices: math.ceil(batches / k) * epochs, prepare=False
            ),
            decay_over(
                lambda batches, k, epochs, devices: math.ceil(batches / k) * epochs,
                prepare=False,
                clamp=False,
            ),
            why="A plain scheduler does not wait for the end of the window: it moves on every micro-batch.",
            hint="Which schedulers ignore `step` in the middle of a window?",
        ),
        Mistake(
            "the last, shorter window not counted",
            *decays_over(lambda batches, k, epochs, devices: batches // k * epochs * devices),
            why="The rest of the epoch takes an optimizer step too, so the number of windows must be rounded up.",
            hint="How many optimizer steps do 10 micro-batches take with 4 accumulation steps?",
        ),
        Mistake(
            "rounded over all epochs together",
            *decays_over(
                lambda batches, k, epochs, devices: math.ceil(batches * epochs / k) * devices
            ),
            *decays_over(lambda batches, k, epochs, devices: batches * epochs // k * devices),
            *decays_over(
                lambda batches, k, epochs, devices: math.ceil(batches * epochs * devices / k)
            ),
            why="Each epoch ends its last window early, so the rounding happens in every epoch, not once at the end.",
            hint="Does a window go on from one epoch into the next?",
        ),
        Mistake(
            "one epoch only",
            *decays_over(lambda batches, k, epochs, devices: math.ceil(batches / k) * devices),
            why="The line reaches zero after the first epoch; the others train with a learning rate of zero.",
            hint="Which of the four arguments did you not use?",
        ),
        Mistake(
            "devices left out",
            *decays_over(lambda batches, k, epochs, devices: math.ceil(batches / k) * epochs),
            why="A prepared scheduler moves once for every device at each optimizer step, so with 2 devices the line ends half-way.",
            hint="What does `AcceleratedScheduler.step` do `num_processes` times?",
        ),
        Mistake(
            "divided by the devices",
            *decays_over(
                lambda batches, k, epochs, devices: math.ceil(batches / k / devices) * epochs
            ),
            why="The prepared data loader is already one device's share, and the prepared scheduler moves once for every device: multiply.",
            hint="Is `len(dataloader)` after `prepare` the number for one device or for all?",
        ),
        Mistake(
            "length in samples",
            in_samples,
            why="`len(dataloader.dataset)` counts samples; a micro-batch holds several of them, and a window several micro-batches.",
            hint="What does `len(dataloader)` count?",
        ),
        Mistake(
            "zero at the last step already",
            *decays_over(lambda *case: steps_in_all(*case) - 1),
            *decays_over(
                lambda batches, k, epochs, devices: (math.ceil(batches / k) * epochs - 1) * devices
            ),
            why="The line is too short by one: the last optimizer step is made with a learning rate of zero, and so does nothing.",
            hint="Between how many steps does the rate fall, if it is whole at the first and zero after the last?",
        ),
        Mistake(
            "the rate never moves",
            constant_rate,
            why="The factor does not depend on the step that the scheduler gives it.",
            hint="Which factor belongs to step 0, and which to the last one?",
        ),
    ),
    hints=(
        "How often is the optimizer stepped in one epoch, when the last window may be short?",
        "Count the calls that reach the scheduler: optimizer steps of an epoch (rounded up), times epochs, times `accelerator.num_processes`.",
        "steps = math.ceil(len(dataloader) / accelerator.gradient_accumulation_steps) * epochs * accelerator.num_processes; LambdaLR with 1 - step / steps; return it prepared.",
    ),
    also_right=(polynomial_of_power_one, with_transformers),
)


# ---------------------------------------------------------------- train_synchronised_once

RANKS = 2
OF_EACH_RANK = (
    Case(micro_batches=10, accumulation_steps=4),
    Case(micro_batches=3, accumulation_steps=1),
    Case(micro_batches=6, accumulation_steps=3, tied=True),
    Case(micro_batches=5, accumulation_steps=2, frozen=True),
)


def two_ranks(work):
    """Run `work(rank, process_group)` on two ranks with a gloo group of their own; the results in the order of ranks.

    The ranks are threads of this process: their group lives on the loopback and gives up after 5 seconds.
    """
    from torch import distributed

    store = distributed.HashStore()

    def on(rank):
        options = distributed.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=5)
        options._devices = [distributed.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        group = distributed.ProcessGroup(store, rank, RANKS)
        gloo = distributed.ProcessGroupGloo(store, rank, RANKS, options)
        group._register_backend(
            torch.device("cpu"), distributed.ProcessGroup.BackendType.GLOO, gloo
        )
        return work(rank, group)

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(on, range(RANKS)))


class Synchronisation:
    """Notes on one rank how many all-reduces came before each optimizer step, and in which passes no_sync was on."""

    def __init__(self, model: nn.parallel.DistributedDataParallel, optimizer, group):
        self.all_reduces, self.since_step, self.only_backward = [], 0, 0
        self.group = group
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
        self.all_reduces.append(self.since_step)
        self.since_step = 0


def distributed_draw(case, seed):
    """One model, and for each rank the micro-batches that it trains on."""
    model, micro_batches = draw(
        Case(case.micro_batches * RANKS, case.accumulation_steps, case.tied, case.frozen), seed
    )
    return model, [micro_batches[rank::RANKS] for rank in range(RANKS)]


def probe_distributed(answer, seed):
    drawn = []  # before the ranks start: threads share one random state
    for case in OF_EACH_RANK:
        model, shares = distributed_draw(case, seed)
        drawn.append((case, [model, copy.deepcopy(model)], shares))

    def work(rank, group):
        seen = []
        for case, replicas, shares in drawn:
            model = nn.parallel.DistributedDataParallel(replicas[rank], process_group=group)
            optimizer = torch.optim.SGD(replicas[rank].parameters(), lr=LEARNING_RATE)
            recorder, synchronisation = (
                Recorder(replicas[rank], optimizer),
                Synchronisation(model, optimizer, group),
            )
            answer(model, optimizer, squared_error, shares[rank], case.accumulation_steps)
            seen.append((recorder, synchronisation, flat(replicas[rank])))
        return seen

    shown = {}
    for case, (recorder, synchronisation, weights), (_, _, other_weights) in zip(
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
    return shown


def distributed_training(case, recorder, all_reduces, micro_batches_per_forward=None):
    counted = {
        f"the number of all-reduces before step {number} ({case})": count
        for number, count in enumerate(all_reduces, 1)
    }
    return counted | training(case, recorder, micro_batches_per_forward)


def oracle_distributed(seed):
    shown = {}
    for case in OF_EACH_RANK:
        model, shares = distributed_draw(case, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        groups = [windows(share, case.accumulation_steps) for share in shares]
        for window_of_each_rank in zip(*groups, strict=True):
            inputs, targets = (
                torch.cat(parts) for parts in zip(*sum(window_of_each_rank, []), strict=True)
            )
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        sizes = [len(window) for window in groups[0]]
        shown |= distributed_training(case, recorder, [1] * len(sizes), sizes)
        shown[f"the largest difference between the ranks' weights ({case})"] = 0.0
        shown[f"the number of micro-batches with no_sync in the backward pass only ({case})"] = 0
    return shown


def distributed_loop(
    forward_in_no_sync,
    backward_in_no_sync=None,
    *,
    divisor=lambda k, size: size,
    last_window=True,
    step_always=False,
    zero=True,
):
    """The loop with `no_sync` on in the passes for which the two functions of (number in the window from 1, window size) say so."""
    backward_in_no_sync = backward_in_no_sync or forward_in_no_sync

    def train(model, optimizer, loss_of, micro_batches, accumulation_steps):
        count = len(micro_batches)
        for index, batch in enumerate(micro_batches):
            number = index % accumulation_steps + 1
            begin = index - number + 1
            size = min(accumulation_steps, count - begin) if last_window else accumulation_steps
            with model.no_sync() if forward_in_no_sync(number, size) else contextlib.nullcontext():
                loss = loss_of(model, batch) / divisor(accumulation_steps, size)
            with model.no_sync() if backward_in_no_sync(number, size) else contextlib.nullcontext():
                loss.backward()
            if number == size or step_always:
                optimizer.step()
                if zero:
                    optimizer.zero_grad()

    return train


def steps_alone_on_the_rest(divide):
    """`no_sync` up to the k-th micro-batch, but a step at the end of the list, too."""

    def train(model, optimizer, loss_of, micro_batches, accumulation_steps):
        count = len(micro_batches)
        for number, batch in enumerate(micro_batches, 1):
            complete = number % accumulation_steps == 0
            rest = (
                count % accumulation_steps
                if number > count - count % accumulation_steps
                else accumulation_steps
            )
            with contextlib.nullcontext() if complete else model.no_sync():
                (loss_of(model, batch) / divide(accumulation_steps, rest)).backward()
            if complete or number == count:
                optimizer.step()
                optimizer.zero_grad()

    return train


def counts_from_zero(at_the_end):
    def train(model, optimizer, loss_of, micro_batches, accumulation_steps):
        for index, batch in enumerate(micro_batches):
            last = index % accumulation_steps == 0 or (
                at_the_end and index == len(micro_batches) - 1
            )
            with contextlib.nullcontext() if last else model.no_sync():
                (loss_of(model, batch) / accumulation_steps).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()

    return train


def asks_torch_distributed(model, optimizer, loss_of, micro_batches, accumulation_steps):
    torch.distributed.get_world_size()


def by_size_or_k(*where, **how):
    """The loop as a slip leaves it that has nothing to do with the divisor: divided by the window's size, and by k throughout."""
    return distributed_loop(*where, **how), distributed_loop(
        *where, divisor=lambda k, size: k, **how
    )


def before_the_last(number, size):
    return number < size


def always(number, size):
    return True


def never(number, size):
    return False


def sets_the_flag(model, optimizer, loss_of, micro_batches, accumulation_steps):
    groups = windows(micro_batches, accumulation_steps)
    for window in groups:
        optimizer.zero_grad()
        for batch in window[:-1]:
            with model.no_sync():
                (loss_of(model, batch) / len(window)).backward()
        batch = window[-1]
        (loss_of(model, batch) / len(window)).backward()
        optimizer.step()


train_synchronised_once = Exercise(
    name="train_synchronised_once",
    points=3,
    devices=RANKS,
    probe=probe_distributed,
    oracle=oracle_distributed,
    truth="the large batch's",
    mistakes=(
        Mistake(
            "every micro-batch synchronised",
            *by_size_or_k(never),
            why="The gradients are right, but each backward pass sends them to the other rank, although only the sum at the end of the window is needed.",
            hint="Which context manager of a DistributedDataParallel model keeps the gradients on their device?",
        ),
        Mistake(
            "no_sync around backward only",
            *by_size_or_k(never, before_the_last),
            why="DistributedDataParallel decides in the forward pass whether the coming backward pass will synchronise; around backward alone `no_sync` comes too late and saves nothing.",
            hint="In which of the two passes does the model look at the flag that `no_sync` sets?",
        ),
        Mistake(
            "never synchronised",
            *by_size_or_k(always),
            why="No micro-batch is left outside `no_sync`, so each rank steps with its own gradients and the weights drift apart.",
            hint="Which micro-batch of a window must stand outside `no_sync`?",
        ),
        Mistake(
            "synchronised on the first micro-batch",
            *by_size_or_k(lambda number, size: number > 1),
            why="Only the first gradient of each window is averaged; what the later micro-batches add stays on its own rank.",
            hint="When is everything that must be averaged in `.grad`?",
        ),
        Mistake(
            "no_sync on the last micro-batch only",
            *by_size_or_k(lambda number, size: number == size),
            why="The condition is the wrong way round: all micro-batches but the last are sent, and the last one, which must be, is not.",
            hint="For which micro-batches may the gradients stay where they are?",
        ),
        Mistake(
            "loss not divided",
            distributed_loop(before_the_last, divisor=lambda k, size: 1),
            why="The all-reduce averages over the ranks, but nothing averages over the micro-batches of the window: their gradients are added up.",
            hint="Over what does DistributedDataParallel take a mean, and over what does it not?",
        ),
        Mistake(
            "divided by the ranks as well",
            distributed_loop(before_the_last, divisor=lambda k, size: size * RANKS),
            why="DistributedDataParallel already takes the mean over the ranks, so the division by their number makes the gradient too small.",
            hint="What does the all-reduce of DistributedDataParallel do after it has summed the gradients?",
        ),
        Mistake(
            "last, shorter window left over",
            distributed_loop(before_the_last, last_window=False),
            why="The last micro-batches do not fill a window, so neither an all-reduce nor a step comes for them.",
            hint="With 10 micro-batches and 4 accumulation steps: after which micro-batches must there be a step?",
        ),
        Mistake(
            "last window divided by k",
            distributed_loop(before_the_last, divisor=lambda k, size: k),
            why="The last window holds fewer micro-batches than k, so its sum divided by k is less than their mean.",
            hint="Of how many micro-batches is the last window the mean?",
        ),
        Mistake(
            "last window stepped without its all-reduce",
            steps_alone_on_the_rest(lambda k, rest: rest),
            steps_alone_on_the_rest(lambda k, rest: k),
            why="The last window has its step, but its last micro-batch is still in `no_sync`: each rank steps with its own gradient, and the weights drift apart.",
            hint="Do the condition for `no_sync` and the condition for the step name the same micro-batches?",
        ),
        Mistake(
            "gradients never zeroed",
            *by_size_or_k(before_the_last, zero=False),
            why="`step` leaves the gradients where they are, so each window begins with the sum of all windows before it.",
            hint="Who empties `.grad` after a step?",
        ),
        Mistake(
            "counted from 0",
            counts_from_zero(True),
            counts_from_zero(False),
            why="Counted from 0 the modulo is zero at the first micro-batch, so the first step comes after one micro-batch and every later window is cut in the wrong place.",
            hint="What is `number % accumulation_steps` for the first micro-batch?",
        ),
        Mistake(
            "torch.distributed asked",
            asks_torch_distributed,
            why="`check` plays both ranks in one process and has no default process group; and there is nothing to ask, because DistributedDataParallel takes the mean over the ranks.",
            hint="What is left to do by hand, if the model averages over the ranks by itself?",
        ),
        Mistake(
            "step after every micro-batch",
            *by_size_or_k(before_the_last, step_always=True),
            distributed_loop(never, step_always=True),
            why="Step and zero_grad belong to the end of a window; here they come after each micro-batch.",
            hint="How often does the optimizer step in one window?",
        ),
    ),
    hints=(
        "Which micro-batch of a window is the only one whose backward pass must talk to the other rank?",
        "`with model.no_sync():` around forward and backward of all micro-batches of a window but the last; contextlib.nullcontext() stands for no context.",
        "For each window (a slice of k of the list, the last one shorter): `nullcontext()` for its last micro-batch, `model.no_sync()` for the others, around loss and backward of loss / len(window); then step, zero_grad.",
    ),
    also_right=(
        sets_the_flag,
        distributed_loop(before_the_last, never),  # the flag is read in the forward pass
    ),
)


# ---------------------------------------------------------------- train_to_the_last_batch

EPOCHS = 2
ALL_WINDOWS = (
    Case(micro_batches=10, accumulation_steps=4),
    Case(micro_batches=3, accumulation_steps=1),
    Case(micro_batches=7, accumulation_steps=4, tied=True),
    Case(micro_batches=6, accumulation_steps=3),
    Case(micro_batches=5, accumulation_steps=2, frozen=True),
)


def probe_whole(answer, seed):
    from accelerate.state import AcceleratorState

    shown, without = {}, {}
    for case in ALL_WINDOWS:
        model, micro_batches = draw(case, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        with fresh_accelerate():
            answer(
                model,
                optimizer,
                loader_of(micro_batches),
                squared_error,
                case.accumulation_steps,
                EPOCHS,
            )
            if not AcceleratorState._shared_state:
                without["a training without an Accelerator"] = True
        shown |= training(case, recorder)
    return shown | without


def oracle_whole(seed):
    shown = {}
    for case in ALL_WINDOWS:
        model, micro_batches = draw(case, seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        groups = windows(micro_batches, case.accumulation_steps) * EPOCHS
        for window in groups:
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        shown |= training(case, recorder, [len(window) for window in groups])
    return shown


def accelerated_epochs(
    factor=lambda k, size: k / size,
    *,
    plugin=None,
    steps=lambda k: k,
    prepare_loader=True,
    plain_backward=False,
    skip_rest=False,
    guard=False,
    one_epoch=False,
    corrected=lambda index, whole, count: True,
):
    """The whole loop; `factor(k, window size)` multiplies the loss before backward, for the micro-batches that are `corrected`."""

    def train(model, optimizer, dataloader, loss_of, accumulation_steps, epochs):
        from accelerate import Accelerator
        from accelerate.utils import GradientAccumulationPlugin

        k, count = accumulation_steps, len(dataloader)
        accelerator = Accelerator(
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=steps(k), **plugin or {}
            )
        )
        model, optimizer = accelerator.prepare(model, optimizer)
        dataloader = accelerator.prepare(dataloader) if prepare_loader else dataloader
        whole = count // k * k
        for _ in range(1 if one_epoch else epochs):
            for index, batch in enumerate(dataloader):
                if skip_rest and index >= whole:
                    break
                size = k if index < whole else count - whole
                with accelerator.accumulate(model):
                    loss = loss_of(model, batch) * (
                        factor(k, size) if corrected(index, whole, count) else 1
                    )
                    loss.backward() if plain_backward else accelerator.backward(loss)
                    if not guard or (index + 1) % k == 0:
                        optimizer.step()
                        optimizer.zero_grad()

    return train


def scales_the_gradient(model, optimizer, dataloader, loss_of, accumulation_steps, epochs):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
    for _ in range(epochs):
        seen = 0
        for batch in dataloader:
            seen += 1
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                if accelerator.sync_gradients:
                    for parameter in model.parameters():
                        if parameter.grad is not None:
                            parameter.grad.mul_(accumulation_steps / seen)
                    seen = 0
                optimizer.step()
                optimizer.zero_grad()


def sets_the_steps_on_the_way(*, back):
    def train(model, optimizer, dataloader, loss_of, accumulation_steps, epochs):
        from accelerate import Accelerator

        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
        model, optimizer, dataloader = accelerator.prepare(model, optimizer, dataloader)
        whole = len(dataloader) // accumulation_steps * accumulation_steps
        for _ in range(epochs):
            if back:
                accelerator.gradient_accumulation_steps = accumulation_steps
            for index, batch in enumerate(dataloader):
                if index == whole:
                    accelerator.gradient_accumulation_steps = len(dataloader) - whole
                with accelerator.accumulate(model):
                    accelerator.backward(loss_of(model, batch))
                    optimizer.step()
                    optimizer.zero_grad()

    return train


def by_pytorch_alone(model, optimizer, dataloader, loss_of, accumulation_steps, epochs):
    for _ in range(epochs):
        for window in windows(list(dataloader), accumulation_steps):
            for batch in window:
                (loss_of(model, batch) / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()


train_to_the_last_batch = Exercise(
    name="train_to_the_last_batch",
    points=3,
    probe=probe_whole,
    oracle=oracle_whole,
    truth="the large batch's",
    mistakes=(
        Mistake(
            "last window divided by k",
            accelerated_epochs(lambda k, size: 1),
            why="`accelerator.backward` divides by the accumulation steps even where the window holds fewer micro-batches, so the last gradient is too small by their ratio.",
            hint="Of how many micro-batches is the last window the mean, and by what was it divided?",
        ),
        Mistake(
            "windows run over the end of the epoch",
            accelerated_epochs(lambda k, size: 1, plugin={"sync_with_dataloader": False}),
            accelerated_epochs(lambda k, size: 1, prepare_loader=False),
            accelerated_epochs(plugin={"sync_with_dataloader": False}),
            accelerated_epochs(prepare_loader=False),
            why="Without the end of the data loader (a prepared loader, and sync_with_dataloader=True) the rest of one epoch is mixed into the first window of the next, and the last rest is lost.",
            hint="After which micro-batches did the optimizer step, and which of them is the last of its epoch?",
        ),
        Mistake(
            "the rest left out",
            accelerated_epochs(skip_rest=True),
            why="The micro-batches that do not fill a window are never trained on.",
            hint="How many micro-batches of an epoch does your loop see, and how many are there?",
        ),
        Mistake(
            "own counter beside accumulate",
            accelerated_epochs(guard=True),
            accelerated_epochs(lambda k, size: 1, guard=True),
            why="The modulo is never zero in a shorter window, so its step is skipped and its gradient is lost or mixed into the next one.",
            hint="If the prepared optimizer ignores `step` in the middle of a window, what is the `if` for?",
        ),
        Mistake(
            "accumulation steps not given",
            accelerated_epochs(steps=lambda k: 1),
            accelerated_epochs(lambda k, size: 1, steps=lambda k: 1),
            accelerated_epochs(lambda k, size: 1 / size, steps=lambda k: 1),
            accelerated_epochs(lambda k, size: 1 / k, steps=lambda k: 1),
            why="The Accelerator was not told how many micro-batches make a window, so each of them is one and the optimizer steps every time.",
            hint="Which argument of Accelerator says how many micro-batches belong together?",
        ),
        Mistake(
            "only a part of the last window corrected",
            accelerated_epochs(corrected=lambda index, whole, count: index == count - 1),
            accelerated_epochs(corrected=lambda index, whole, count: index > whole),
            why="Every micro-batch of the last window was divided by k, not only the one that ends it, so every one of them must be corrected.",
            hint="With 10 micro-batches and 4 accumulation steps: which micro-batches make up the last window?",
        ),
        Mistake(
            "one epoch only",
            accelerated_epochs(one_epoch=True),
            accelerated_epochs(lambda k, size: 1, one_epoch=True),
            why="The data loader was gone through once, whatever `epochs` says.",
            hint="Which of your arguments did you not use?",
        ),
        Mistake(
            "without an Accelerator",
            by_pytorch_alone,
            why="The training is the right one, but it is the loop of the last notebook: no Accelerator was made, so it would run on one device only.",
            hint="Which loop of this lesson ends each epoch with a step, and what is wrong with that step?",
        ),
        Mistake(
            "the ratio upside down",
            accelerated_epochs(lambda k, size: size / k),
            why="The last window is already too small by size/k; multiplied with size/k once more it gets smaller still.",
            hint="Is the last gradient too large or too small before your correction?",
        ),
        Mistake(
            "divided twice",
            accelerated_epochs(lambda k, size: 1 / size),
            accelerated_epochs(lambda k, size: 1 / k),
            why="`accelerator.backward` divides by the accumulation steps already; your division comes on top of it.",
            hint="What must the loss be multiplied with before `accelerator.backward`, so that after its division by k it is divided by the window's size?",
        ),
        Mistake(
            "not divided",
            accelerated_epochs(lambda k, size: 1, plain_backward=True),
            why="`loss.backward()` divides by nothing, so each window is the sum of its micro-batches, not their mean.",
            hint="By what must the loss be divided before `loss.backward()`?",
        ),
        Mistake(
            "accumulation steps changed on the way",
            sets_the_steps_on_the_way(back=True),
            sets_the_steps_on_the_way(back=False),
            why="The accelerator compares its running count with the new number: after 4 micro-batches a window of 3 is complete at the 6th, so the rest is cut in two; and the number stays changed until it is set back.",
            hint="The counter goes on from the whole windows before; which of its values are multiples of the new number?",
        ),
    ),
    hints=(
        "How many micro-batches does the window hold in which a given micro-batch lies, when it is one of the last?",
        "`accelerator.backward` divides by k whatever comes; so multiply the loss by k and divide it by the size of its window first.",
        "whole = len(dataloader) // k * k; size = k if index < whole else len(dataloader) - whole; accelerator.backward(loss * k / size).",
    ),
    also_right=(
        scales_the_gradient,
        accelerated_epochs(lambda k, size: 1 / size, plain_backward=True),
    ),
)

EXERCISES = (train_with_accelerator, linear_decay, train_synchronised_once, train_to_the_last_batch)
