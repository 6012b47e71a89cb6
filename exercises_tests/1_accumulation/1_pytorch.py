"""What the exercises of the lesson 1_accumulation/1_pytorch must do, and the mistakes known to be made."""

from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from exercises_tests.toys import (
    Case,
    Held,
    Recorder,
    draw,
    flat,
    large_batch_training,
    training,
    windows,
)
from trainlean.exercises.exercise import Exercise, Mistake

LEARNING_RATE = 0.1
SAMPLES = 3  # in a micro-batch


# ---------------------------------------------------------------- the loop, and the ways of writing it wrong
#
# Four questions make an accumulation loop: when does the optimizer step, by what is a loss multiplied, and when do
# gradients start from zero, seen from before the forward pass and from after the step. A wrong loop answers one of them
# wrongly. Each answer is a function of the micro-batch's index, the accumulation steps k and the number of micro-batches n.


def full(index, k, n):
    return (index + 1) % k == 0


def full_or_last(index, k, n):
    return full(index, k, n) or index + 1 == n


def on_the_first(index, k, n):
    return index % k == 0


def on_the_first_or_last(index, k, n):
    return index % k == 0 or index + 1 == n


def one_late(index, k, n):
    return index > 0 and index % k == 0


def one_late_or_last(index, k, n):
    return one_late(index, k, n) or index + 1 == n


def always(index, k, n):
    return True


def never(index, k, n):
    return False


def one_kth(index, k, n):
    return 1 / k


def one_kth_of_one_kth(index, k, n):
    return 1 / k**2


def whole(index, k, n):
    return 1.0


def own_size(index, k, n):
    """One over the number of micro-batches in the window that the micro-batch belongs to."""
    return 1 / min(k, n - index // k * k)


def one_sample(index, k, n):
    return 1 / SAMPLES


def one_sample_of_one_kth(index, k, n):
    return 1 / (SAMPLES * k)


def tail_whole(index, k, n):
    return 1.0 if index >= n // k * k else 1 / k


def what_is_left(index, k, n):
    return 1 / min(k, n - index)


def last_size_everywhere(index, k, n):
    return 1 / (n % k or k)


def loop(*, step, scale, zero_before=never, zero_after=None, zero_first=False):
    """An accumulation loop that answers the four questions as given; gradients start from zero after a step unless told otherwise."""
    zero_after = step if zero_after is None else zero_after

    def train(model, optimizer, loss_function, micro_batches, accumulation_steps):
        size = accumulation_steps, len(micro_batches)
        for index, (inputs, targets) in enumerate(micro_batches):
            if zero_before(index, *size):
                optimizer.zero_grad()
            (loss_function(model(inputs), targets) * scale(index, *size)).backward()
            if zero_first and step(index, *size):
                optimizer.zero_grad()
            if step(index, *size):
                optimizer.step()
            if zero_after(index, *size):
                optimizer.zero_grad()

    return train


def window_loop(backward, *, rest):
    """A loop over windows: `backward(model, loss_function, window)` leaves the gradient; `rest`: the last, shorter window counts too."""

    def train(model, optimizer, loss_function, micro_batches, accumulation_steps):
        for window in windows(micro_batches, accumulation_steps):
            if rest or len(window) == accumulation_steps:
                backward(model, loss_function, window)
                optimizer.step()
                optimizer.zero_grad()

    return train


def sum_of_losses(model, loss_function, window):
    loss = 0
    for inputs, targets in window:
        loss = loss + loss_function(model(inputs), targets) / len(window)
    loss.backward()


def mean_of_a_list(model, loss_function, window):
    torch.stack(
        [loss_function(model(inputs), targets) for inputs, targets in window]
    ).mean().backward()


def glued(model, loss_function, window):
    inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
    loss_function(model(inputs), targets).backward()


def running_total(model, loss_function, window):
    total = 0
    for inputs, targets in window:
        total = total + loss_function(model(inputs), targets) / len(window)
        total.backward(retain_graph=True)


def one_by_one(model, loss_function, window):
    for inputs, targets in window:
        loss_function(model(inputs), targets).div(len(window)).backward()


def divide_gradients(model, loss_function, window):
    for inputs, targets in window:
        loss_function(model(inputs), targets).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= len(window)


def by_autograd(model, loss_function, window):
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    sums = [torch.zeros_like(weight) for weight in weights]
    for inputs, targets in window:
        for total, part in zip(
            sums, torch.autograd.grad(loss_function(model(inputs), targets), weights), strict=True
        ):
            total += part / len(window)
    for weight, total in zip(weights, sums, strict=True):
        weight.grad = total


OFF_BY_ONE = {
    "why": "`index % k == 0` is already true for index 0: the first update has seen one micro-batch, and every later window is shifted by one.",
    "hint": "Counting from 0, which index does the last micro-batch of the first window have, and what is its remainder?",
}


def loop_mistakes(step, scale, first, late, *, rest):
    """The mistakes that every accumulation loop knows, around the right answers to when to `step` and how to `scale`."""
    return (
        Mistake(
            "steps on the first micro-batch",
            loop(step=first, scale=scale),
            loop(step=first, scale=one_kth),
            **OFF_BY_ONE,
        ),
        Mistake(
            "steps one micro-batch late",
            loop(step=late, scale=scale),
            loop(step=late, scale=one_kth),
            why="Leaving out index 0 does not cure `index % k == 0`: the first window now holds k + 1 micro-batches, and the last one is short.",
            hint="How many micro-batches have been seen when the loop stands at index k?",
        ),
        Mistake(
            "loss not divided",
            loop(step=step, scale=whole),
            why="backward() adds gradients up, so the micro-batches give the sum of their means, not the mean over the window.",
            hint="The large batch's loss is a mean over all its samples; by what must each micro-batch's loss be divided so that the sum is that mean?",
        ),
        Mistake(
            "divided twice",
            loop(step=step, scale=one_kth_of_one_kth),
            loop(step=step, scale=lambda *where: scale(*where) ** 2),
            why="The loss is divided and then something is divided once more (the loss again, or the gradients): the step is too short by that factor.",
            hint="Where does your loop divide, and which of these places can go?",
        ),
        Mistake(
            "divided by the number of samples",
            loop(step=step, scale=one_sample_of_one_kth),
            loop(step=step, scale=one_sample),
            loop(step=step, scale=lambda *where: scale(*where) / SAMPLES),
            why="`loss_function` already is a mean over the samples of its micro-batch; dividing by their number counts them twice.",
            hint="Over what does the loss function take its mean, and what is then left to divide by?",
        ),
        Mistake(
            "zeroed inside the window",
            loop(step=step, scale=scale, zero_before=always),
            loop(step=step, scale=one_kth, zero_before=always),
            why="zero_grad() runs for every micro-batch, so only the last one of the window is left in the gradient when the optimizer steps.",
            hint="How often must the gradients start from zero in one window?",
        ),
        Mistake(
            "zeroed before the step",
            loop(step=step, scale=scale, zero_first=True),
            why="The gradients are emptied after the last backward and before the step, so the optimizer moves by nothing.",
            hint="In which order do backward, step and zero_grad have to come at the end of a window?",
        ),
        Mistake(
            "never zeroed",
            loop(step=step, scale=scale, zero_after=never),
            loop(step=step, scale=one_kth, zero_after=never),
            why="The gradients of one window are still there in the next: window 2 steps with windows 1 and 2 together.",
            hint="What is in `.grad` right after step(), and who removes it?",
        ),
        Mistake(
            "steps on every micro-batch",
            *(
                loop(step=always, scale=how, zero_after=when)
                for how in (scale, one_kth, whole)
                for when in (always, never, step)
            ),
            why="The optimizer moves after each micro-batch, which is training with small batches; nothing is accumulated.",
            hint="Which lines belong into the loop, and which ones only happen when a window is complete?",
        ),
        Mistake(
            "never steps",
            loop(step=never, scale=scale),
            loop(step=never, scale=one_kth),
            why="Gradients are computed, but no optimizer step ever uses them.",
            hint="Is your condition ever true, and what is below it?",
        ),
        Mistake(
            "keeps the whole window",
            *(
                window_loop(backward, rest=rest)
                for backward in (sum_of_losses, mean_of_a_list, glued)
            ),
            why="The gradient is right, but one backward for the window needs the activations of all its micro-batches at once: the memory of the large batch.",
            hint="When can the activations of a micro-batch go: which call frees them, and when do you make it?",
        ),
        Mistake(
            "backward on the running total",
            window_loop(running_total, rest=rest),
            why="Each backward on the total goes through the earlier micro-batches again, so the first one counts k times; retain_graph=True hides the error that would have said so.",
            hint="Who does the adding up over the window: your total, or backward() itself?",
        ),
    )


def probe_loop(cases, read_result=None, arguments=lambda case: ()):
    """A probe that trains on every case and shows all steps, and how many micro-batches' activations lived at once."""

    def probe(answer, seed):
        shown = {}
        for case in cases:
            model, micro_batches = draw(case, seed, samples=SAMPLES)
            with Held(model) as one:
                mse_loss(model(micro_batches[0][0]), micro_batches[0][1])
            optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
            recorder = Recorder(model, optimizer, SAMPLES)
            with Held(model) as held:
                result = answer(
                    model,
                    optimizer,
                    mse_loss,
                    micro_batches,
                    case.accumulation_steps,
                    *arguments(case),
                )
            shown |= training(case, recorder)
            shown[f"the most micro-batches whose activations are held at once ({case})"] = round(
                held.peak / one.peak
            )
            if read_result:
                shown |= read_result(result, case)
        return shown

    return probe


def oracle_loop(cases):
    """The large batch on every case, and one micro-batch in memory at a time."""

    def oracle(seed):
        shown = {}
        for case in cases:
            shown |= large_batch_training(case, seed, mse_loss, LEARNING_RATE)
            shown[f"the most micro-batches whose activations are held at once ({case})"] = 1
        return shown

    return oracle


# ---------------------------------------------------------------- train_accumulated

WHOLE_WINDOWS = (
    Case(micro_batches=8, accumulation_steps=4),
    Case(micro_batches=3, accumulation_steps=1),
    Case(micro_batches=6, accumulation_steps=3, tied=True),
    Case(micro_batches=6, accumulation_steps=2, frozen=True),
)

train_accumulated = Exercise(
    name="train_accumulated",
    points=3,
    probe=probe_loop(WHOLE_WINDOWS),
    oracle=oracle_loop(WHOLE_WINDOWS),
    truth="the large batch's",
    mistakes=loop_mistakes(full, one_kth, on_the_first, one_late, rest=False),
    hints=(
        "When does `.grad` start again from zero, and who makes it do so?",
        "A window is complete when as many micro-batches as accumulation steps have been seen: count from 1, or compare the remainder with k - 1.",
        "For every micro-batch: forward, loss / k, backward. When the window is complete: step, then zero_grad.",
    ),
    also_right=(
        loop(step=full, scale=one_kth, zero_before=on_the_first, zero_after=never),
        *(
            window_loop(backward, rest=False)
            for backward in (one_by_one, divide_gradients, by_autograd)
        ),
    ),
)


# ---------------------------------------------------------------- train_accumulated_to_the_end

ALL_WINDOWS = (
    Case(micro_batches=6, accumulation_steps=4),
    Case(micro_batches=8, accumulation_steps=4),
    Case(micro_batches=2, accumulation_steps=1),
    Case(micro_batches=5, accumulation_steps=3, tied=True),
    Case(micro_batches=2, accumulation_steps=4, frozen=True),
)


def one_more_step(scale):
    """The full windows, and after the loop one more step, whether something is left or not."""

    def train(model, optimizer, loss_function, micro_batches, accumulation_steps):
        loop(step=full, scale=scale)(
            model, optimizer, loss_function, micro_batches, accumulation_steps
        )
        optimizer.step()
        optimizer.zero_grad()

    return train


def step_on_what_is_left(model, optimizer, loss_function, micro_batches, accumulation_steps):
    loop(step=full, scale=own_size)(
        model, optimizer, loss_function, micro_batches, accumulation_steps
    )
    if len(micro_batches) % accumulation_steps:
        optimizer.step()
        optimizer.zero_grad()


train_accumulated_to_the_end = Exercise(
    name="train_accumulated_to_the_end",
    points=3,
    probe=probe_loop(ALL_WINDOWS),
    oracle=oracle_loop(ALL_WINDOWS),
    truth="the large batch's",
    mistakes=(
        Mistake(
            "last window dropped",
            loop(step=full, scale=one_kth),
            loop(step=full, scale=own_size),
            loop(step=full, scale=what_is_left),
            window_loop(one_by_one, rest=False),
            why="What is left after the last complete window has gradients but gets no step: these reviews are read and never learned from.",
            hint="After which indices does your loop step when there are 6 micro-batches and k is 4, and which ones were not asked about?",
        ),
        Mistake(
            "last window divided by k",
            loop(step=full_or_last, scale=one_kth),
            why="The shorter window has fewer micro-batches than k; divided by k its mean comes out too small, by (micro-batches in it) / k.",
            hint="How many micro-batches share the last step, and what is the mean over that many?",
        ),
        Mistake(
            "last window not divided",
            loop(step=full_or_last, scale=tail_whole),
            why="The last window's losses are added up without being divided by their number.",
            hint="The last window is a small large batch of its own: over how many micro-batches is its mean?",
        ),
        Mistake(
            "divided by what is left",
            loop(step=full_or_last, scale=what_is_left),
            why="The divisor shrinks while the window goes on, so its micro-batches get different weights; all of one window must have the same.",
            hint="At which index does the window begin that your micro-batch is in, and how long is that window?",
        ),
        Mistake(
            "every window divided by the last one's size",
            loop(step=full_or_last, scale=last_size_everywhere),
            why="The size of the last window is used for all of them; the complete windows still have k micro-batches.",
            hint="Which windows are shorter than k, and which are not?",
        ),
        Mistake(
            "a step too many at the end",
            one_more_step(own_size),
            one_more_step(one_kth),
            why="After the loop a step is made even if no micro-batch is left; momentum, weight decay and schedules would move once more on nothing.",
            hint="When the number of micro-batches is a multiple of k, what is there left to step on?",
        ),
        *loop_mistakes(full_or_last, own_size, on_the_first_or_last, one_late_or_last, rest=True),
    ),
    hints=(
        "For 6 micro-batches and k = 4: how many steps does the large batch make, and over how many micro-batches is each one's mean?",
        "A window is also complete when the micro-batches have run out: index + 1 == len(micro_batches).",
        "Window by window is easiest: take micro_batches[start : start + k]; its own len() is the divisor, and one step follows it.",
    ),
    also_right=(
        loop(step=full_or_last, scale=own_size),
        step_on_what_is_left,
        *(
            window_loop(backward, rest=True)
            for backward in (one_by_one, divide_gradients, by_autograd)
        ),
    ),
)


# ---------------------------------------------------------------- repaired_loop


@dataclass(frozen=True)
class Epochs(Case):
    """The micro-batches of one epoch, seen in several epochs."""

    epochs: int = 1

    def __str__(self):
        return f"{super().__str__()}, {self.epochs} epochs"


SOME_EPOCHS = (
    Epochs(micro_batches=8, accumulation_steps=4, epochs=2),
    Epochs(micro_batches=6, accumulation_steps=4, epochs=2),
    Epochs(micro_batches=3, accumulation_steps=1, epochs=2),
    Epochs(micro_batches=5, accumulation_steps=2, epochs=3, tied=True),
)


def oracle_epochs(seed):
    """The large batches of one epoch after the other, in one run."""
    shown = {}
    for case in SOME_EPOCHS:
        model, micro_batches = draw(case, seed, samples=SAMPLES)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        groups = windows(micro_batches, case.accumulation_steps) * case.epochs
        for window in groups:
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            mse_loss(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
        shown |= training(case, recorder, [len(window) for window in groups])
        shown[f"the most micro-batches whose activations are held at once ({case})"] = 1
    return shown


def in_epochs(train):
    """A loop over one epoch, repeated."""

    def repeated(model, optimizer, loss_function, micro_batches, accumulation_steps, epochs):
        for _ in range(epochs):
            train(model, optimizer, loss_function, micro_batches, accumulation_steps)

    return repeated


def emptied_after(train):
    """A loop after which the gradients are emptied, whatever is left in them."""

    def then_empty(model, optimizer, *rest):
        train(model, optimizer, *rest)
        optimizer.zero_grad()

    return then_empty


def without_targets(model, optimizer, loss_function, micro_batches, accumulation_steps, epochs):
    for inputs, _ in micro_batches:
        loss_function(model(inputs))


def over_the_border(model, optimizer, loss_function, micro_batches, accumulation_steps, epochs):
    loop(step=full_or_last, scale=own_size)(
        model, optimizer, loss_function, micro_batches * epochs, accumulation_steps
    )


def over_the_border_divided_by_k(
    model, optimizer, loss_function, micro_batches, accumulation_steps, epochs
):
    loop(step=full, scale=one_kth)(
        model, optimizer, loss_function, micro_batches * epochs, accumulation_steps
    )


repaired_loop = Exercise(
    name="repaired_loop",
    points=2,
    probe=probe_loop(SOME_EPOCHS, arguments=lambda case: (case.epochs,)),
    oracle=oracle_epochs,
    truth="the large batch's",
    mistakes=(
        Mistake(
            "the loss is not told the targets",
            without_targets,
            why="The published line calls the loss function with the outputs alone; there is nothing to compare them with.",
            hint="Which two things does a loss function compare?",
        ),
        Mistake(
            "steps on the first micro-batch",
            *(
                in_epochs(loop(step=first, scale=scale))
                for first in (on_the_first, on_the_first_or_last)
                for scale in (one_kth, own_size)
            ),
            **OFF_BY_ONE,
        ),
        Mistake(
            "steps one micro-batch late",
            *(
                in_epochs(loop(step=late, scale=scale))
                for late in (one_late, one_late_or_last)
                for scale in (one_kth, own_size)
            ),
            why="Leaving out index 0 does not cure `index % k == 0`: the first window now holds k + 1 micro-batches, and every later one is shifted.",
            hint="How many micro-batches have been seen when the loop stands at index k?",
        ),
        Mistake(
            "the rest leaks into the next epoch",
            in_epochs(loop(step=full, scale=one_kth)),
            in_epochs(loop(step=full, scale=own_size)),
            why="The off-by-one is cured, but what is left at the end of an epoch stays in `.grad` and is added to the first window of the next one.",
            hint="What does `.grad` hold when the second epoch begins?",
        ),
        Mistake(
            "the rest is thrown away",
            in_epochs(emptied_after(loop(step=full, scale=one_kth))),
            why="The gradients that are left at the end of an epoch are zeroed without a step: these micro-batches are never learned from.",
            hint="Instead of emptying what is left, what could the optimizer do with it first?",
        ),
        Mistake(
            "the rest is divided by k",
            in_epochs(loop(step=full_or_last, scale=one_kth)),
            why="The last window of an epoch gets its step, but its losses are divided by k although it holds fewer micro-batches.",
            hint="How many micro-batches share the last step of an epoch?",
        ),
        Mistake(
            "a window reaches over the end of the epoch",
            over_the_border,
            over_the_border_divided_by_k,
            why="The counting goes on from one epoch into the next, so that one step mixes the end of an epoch with the beginning of another.",
            hint="With which number should the counting of micro-batches begin in the second epoch?",
        ),
        Mistake(
            "loss not divided",
            *(in_epochs(loop(step=step, scale=whole)) for step in (full, full_or_last)),
            why="The published loop divided the loss; without it the gradient is the sum over the window, not the mean.",
            hint="Which of the published lines was right?",
        ),
        Mistake(
            "keeps the whole window",
            *(
                in_epochs(window_loop(backward, rest=True))
                for backward in (sum_of_losses, mean_of_a_list, glued)
            ),
            why="The gradient is right, but one backward for the window needs the activations of all its micro-batches at once: the memory of the large batch.",
            hint="When can the activations of a micro-batch go: which call frees them, and when do you make it?",
        ),
    ),
    hints=(
        "Which micro-batches stand behind the first step of the published loop, and what is left when an epoch ends?",
        "Three faults: the loss needs the targets, the condition must hold for the last micro-batch of a window, and the rest of an epoch needs its own step.",
        "(index + 1) % k == 0 or index + 1 == len(micro_batches); divide by the size of the window the micro-batch is in.",
    ),
    also_right=(
        in_epochs(loop(step=full_or_last, scale=own_size)),
        in_epochs(step_on_what_is_left),
        in_epochs(window_loop(divide_gradients, rest=True)),
    ),
)


# ---------------------------------------------------------------- token_weighted_backward

IGNORED = -100
VOCABULARY = 7


class TinyLanguageModel(nn.Module):
    """Token numbers [samples, length] in, a score for every possible token [samples, length, VOCABULARY] out."""

    def __init__(self, *, tied: bool, frozen: bool):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 5)
        self.middle = nn.Linear(5, 5)
        self.head = nn.Linear(5, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight
        self.embedding.requires_grad_(not frozen)

    def forward(self, input_ids):
        return self.head(torch.tanh(self.middle(self.embedding(input_ids))))


@dataclass(frozen=True)
class Window:
    """The longest text of each micro-batch in one window; two texts in each."""

    lengths: tuple[int, ...]
    tied: bool = False
    frozen: bool = False

    def __str__(self):
        kind = ", tied weights" * self.tied + ", a frozen layer" * self.frozen
        return f"texts of up to {', '.join(map(str, self.lengths))} tokens{kind}"


WINDOWS = (
    Window((10, 4, 6, 2)),
    Window((5,)),
    Window((3, 9), tied=True),
    Window((8, 3, 3), frozen=True),
)


def draw_window(case: Window, seed: int):
    """A fresh model and window: input_ids and labels, each [2, length]; padding and the start of some texts are not to be learned."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = TinyLanguageModel(tied=case.tied, frozen=case.frozen)
    micro_batches = []
    for length in case.lengths:
        input_ids = torch.randint(1, VOCABULARY, (2, length), generator=generator)
        labels = input_ids.clone()
        if (
            length > 2
        ):  # the second text is shorter: padding at its end, and its first tokens are a prompt
            labels[1, -1], input_ids[1, -1] = IGNORED, 0
        if length > 4:
            labels[1, :2] = IGNORED
        micro_batches.append({"input_ids": input_ids, "labels": labels})
    return model, micro_batches


def losses_of_targets(model, micro_batch, reduction):
    """The loss over the prediction targets of one micro-batch: position t predicts the label at t + 1."""
    scores, targets = model(micro_batch["input_ids"])[:, :-1], micro_batch["labels"][:, 1:]
    return cross_entropy(
        scores.flatten(0, 1), targets.flatten(), reduction=reduction, ignore_index=IGNORED
    )


def probe_tokens(answer, seed):
    shown = {}
    for case in WINDOWS:
        model, window = draw_window(case, seed)
        held_by_each = []
        for micro_batch in window:
            with Held(model) as one:
                losses_of_targets(model, micro_batch, "sum")
            held_by_each.append(one.peak)
        with Held(model) as held:
            answer(model, window)
        shown[f"the gradient ({case})"] = flat(model, gradients=True)
        shown[f"whether the activations of the whole window are held at once ({case})"] = (
            len(window) > 1 and held.peak > (max(held_by_each) + sum(held_by_each)) / 2
        )
    return shown


def oracle_tokens(seed):
    """All texts of the window padded to one length, in one batch: the mean over its prediction targets."""
    shown = {}
    for case in WINDOWS:
        model, window = draw_window(case, seed)
        longest = max(case.lengths)
        input_ids, labels = (
            torch.cat(
                [
                    nn.functional.pad(
                        micro_batch[key], (0, longest - micro_batch[key].shape[1]), value=fill
                    )
                    for micro_batch in window
                ]
            )
            for key, fill in (("input_ids", 0), ("labels", IGNORED))
        )
        losses_of_targets(model, {"input_ids": input_ids, "labels": labels}, "mean").backward()
        shown[f"the gradient ({case})"] = flat(model, gradients=True)
        shown[f"whether the activations of the whole window are held at once ({case})"] = False
    return shown


def token_loop(denominator, reduction="sum", loss=losses_of_targets):
    """backward on every micro-batch's loss, divided by denominator(window, micro_batch)."""

    def backward_window(model, window):
        for micro_batch in window:
            (loss(model, micro_batch, reduction) / denominator(window, micro_batch)).backward()

    return backward_window


def count(labels_of):
    """A denominator: how many of `labels_of(micro_batch)` are to be learned, in the whole window."""
    return lambda window, _: sum(
        int(labels_of(micro_batch).ne(IGNORED).sum()) for micro_batch in window
    )


def shifted(micro_batch):
    return micro_batch["labels"][:, 1:]


def not_shifted(micro_batch):
    return micro_batch["labels"]


def own_targets(window, micro_batch):
    return int(shifted(micro_batch).ne(IGNORED).sum())


def loss_without_shift(model, micro_batch, reduction):
    scores, targets = model(micro_batch["input_ids"]), micro_batch["labels"]
    return cross_entropy(
        scores.flatten(0, 1), targets.flatten(), reduction=reduction, ignore_index=IGNORED
    )


def one_token_loss_for_all(model, window):
    total = sum(losses_of_targets(model, micro_batch, "sum") for micro_batch in window)
    (total / count(shifted)(window, None)).backward()


def weighted_means(model, window):
    """Each micro-batch's mean, times its share of the window's targets."""
    counts = [own_targets(window, micro_batch) for micro_batch in window]
    for micro_batch, number in zip(window, counts, strict=True):
        (losses_of_targets(model, micro_batch, "mean") * number / sum(counts)).backward()


def divide_token_gradients(model, window):
    for micro_batch in window:
        losses_of_targets(model, micro_batch, "sum").backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= count(shifted)(window, None)


token_weighted_backward = Exercise(
    name="token_weighted_backward",
    points=3,
    probe=probe_tokens,
    oracle=oracle_tokens,
    truth="the large batch's",
    mistakes=(
        Mistake(
            "mean of means",
            token_loop(lambda window, _: len(window), "mean"),
            token_loop(lambda window, micro_batch: len(window) * own_targets(window, micro_batch)),
            why="Each micro-batch's mean gets the same weight, so a token in a short text counts for more than a token in a long one.",
            hint="Over how many targets in the whole window should one token's loss be divided?",
        ),
        Mistake(
            "divided by its own targets only",
            token_loop(lambda *_: 1, "mean"),
            why="Every micro-batch is divided by its own number of targets, and the means are added up: k means, where one mean over the window is wanted.",
            hint="Is your divisor the same for every micro-batch of the window?",
        ),
        Mistake(
            "labels counted, not targets",
            token_loop(count(not_shifted)),
            why="The first label of a text is never predicted, because no position comes before it; counting it makes the divisor too large.",
            hint="A text of 5 tokens: how many of them does the model predict from the ones before?",
        ),
        Mistake(
            "ignored positions counted",
            token_loop(
                lambda window, _: sum(shifted(micro_batch).numel() for micro_batch in window)
            ),
            token_loop(
                lambda window, _: sum(not_shifted(micro_batch).numel() for micro_batch in window)
            ),
            token_loop(
                lambda window, _: sum(
                    int(micro_batch["input_ids"].ne(0).sum()) for micro_batch in window
                )
            ),
            why="Positions labelled -100 (padding, prompts) add nothing to the loss, so they must not be in the divisor either.",
            hint="Which labels does cross_entropy skip, and does your count skip them too?",
        ),
        Mistake(
            "not divided",
            token_loop(lambda *_: 1),
            why="The losses of all targets are added up and never divided by their number.",
            hint="A mean is a sum divided by what?",
        ),
        Mistake(
            "divided twice",
            token_loop(count(shifted), "mean"),
            token_loop(
                lambda window, micro_batch: len(window) * count(shifted)(window, micro_batch)
            ),
            why="A mean is divided again, or the sum is divided by the targets and by the number of micro-batches as well.",
            hint="With reduction='sum', how many divisions are left to do?",
        ),
        Mistake(
            "labels not shifted",
            token_loop(count(not_shifted), loss=loss_without_shift),
            token_loop(count(shifted), loss=loss_without_shift),
            token_loop(lambda window, _: len(window), "mean", loss_without_shift),
            why="The score at a position is compared with the token at that position, which the model has just been shown; it should be compared with the next one.",
            hint="Which token should the scores at position t predict, and where does its label stand?",
        ),
        Mistake(
            "keeps the whole window",
            one_token_loss_for_all,
            why="The gradient is right, but one backward for the window needs the activations of all its micro-batches at once.",
            hint="The divisor needs only the labels: can you know it before the first forward pass?",
        ),
    ),
    hints=(
        "What would be the divisor if the window were one large batch?",
        "Count first, from the labels alone: labels[:, 1:].ne(-100).sum(), added up over the window.",
        "Then for every micro-batch: cross_entropy with reduction='sum' over logits[:, :-1] and labels[:, 1:], divided by that count, backward.",
    ),
    also_right=(weighted_means, divide_token_gradients, token_loop(count(shifted))),
)


# ---------------------------------------------------------------- train_clipped


@dataclass(frozen=True)
class Clipped(Case):
    """Complete windows, whose gradients may be at most `max_norm` long."""

    max_norm: float = 1.0

    def __str__(self):
        return f"{super().__str__()}, max_norm={self.max_norm:g}"


CLIPPED = (
    Clipped(micro_batches=8, accumulation_steps=4, max_norm=0.05),
    Clipped(micro_batches=6, accumulation_steps=3, max_norm=1000.0),
    Clipped(micro_batches=3, accumulation_steps=1, max_norm=0.1),
    Clipped(micro_batches=4, accumulation_steps=2, max_norm=0.1, tied=True),
)


def logged(losses, case):
    losses = [] if losses is None else [float(loss) for loss in losses]
    return {
        f"the number of losses returned ({case})": len(losses),
        f"the returned losses ({case})": torch.tensor(losses, dtype=torch.float64).numpy(),
    }


def clipped_large_batch(cases, seed):
    shown = {}
    for case in cases:
        model, micro_batches = draw(case, seed, samples=SAMPLES)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        groups, losses = windows(micro_batches, case.accumulation_steps), []
        for window in groups:
            inputs, targets = (torch.cat(parts) for parts in zip(*window, strict=True))
            loss = mse_loss(model(inputs), targets)
            loss.backward()
            clip_grad_norm_(model.parameters(), case.max_norm)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        shown |= training(case, recorder, [len(window) for window in groups])
        shown[f"the most micro-batches whose activations are held at once ({case})"] = 1
        shown |= logged(losses, case)
    return shown


def last_loss(losses, k):
    return losses[-1]


def last_divided(losses, k):
    return losses[-1] / k


def mean(losses, k):
    return sum(losses) / k


@dataclass(frozen=True)
class Clipping:
    """A clipped loop: which clipping, at which moments, and what is reported of a window's losses (None: nothing)."""

    each: bool = False  # after every backward
    alone: bool = False  # after every backward, on that micro-batch's gradient alone
    once: bool = True  # when the window is complete
    late: bool = False  # after the step
    undivided: bool = False  # on the sum, which is divided afterwards
    clip: object = clip_grad_norm_
    report: object = mean
    every: bool = False  # report after every micro-batch
    never_reset: bool = False

    def __call__(
        self, model, optimizer, loss_function, micro_batches, accumulation_steps, max_norm
    ):
        k, reported, losses = accumulation_steps, [], []
        weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for number, (inputs, targets) in enumerate(micro_batches, 1):
            before = [None if weight.grad is None else weight.grad.clone() for weight in weights]
            if self.alone:
                optimizer.zero_grad()
            loss = loss_function(model(inputs), targets)
            (loss if self.undivided else loss / k).backward()
            losses.append(loss.item())
            if self.each or self.alone:
                self.clip(weights, max_norm)
            if self.alone:
                for weight, earlier in zip(weights, before, strict=True):
                    weight.grad += 0 if earlier is None else earlier
            if self.every:
                reported.append(self.report(losses, k))
            if number % k == 0:
                if self.once:
                    self.clip(weights, max_norm)
                if self.undivided:
                    for weight in weights:
                        weight.grad /= k
                optimizer.step()
                if self.late:
                    self.clip(weights, max_norm)
                optimizer.zero_grad()
                if self.report and not self.every:
                    reported.append(self.report(losses, k))
                if not self.never_reset:
                    losses = []
        return reported if self.report else None


RIGHT_CLIPPING = Clipping()

train_clipped = Exercise(
    name="train_clipped",
    points=3,
    probe=probe_loop(CLIPPED, logged, lambda case: (case.max_norm,)),
    oracle=lambda seed: clipped_large_batch(CLIPPED, seed),
    truth="the large batch's",
    mistakes=(
        Mistake(
            "clipped on every micro-batch",
            *(
                Clipping(each=each, alone=not each, once=once)
                for each in (True, False)
                for once in (True, False)
            ),
            why="Clipping before the window is complete shortens some micro-batches more than others: the length may come out right, the direction does not.",
            hint="Of which gradient does the large batch clip the length, and when is that gradient complete?",
        ),
        Mistake(
            "not clipped before the step",
            Clipping(once=False),
            Clipping(once=False, late=True),
            why="The optimizer moves with the whole gradient: clipping is missing, or comes when the step is already made.",
            hint="Which call uses the gradient, and what must have happened to it by then?",
        ),
        Mistake(
            "the sum is clipped, then divided",
            Clipping(undivided=True),
            why="The length is limited while the gradient is still a sum over the window, and then divided by k: the step is too short.",
            hint="What is the length of the gradient right before the optimizer uses it?",
        ),
        Mistake(
            "every entry clipped",
            Clipping(clip=clip_grad_value_),
            why="clip_grad_value_ limits each entry by itself, which bends the gradient; clip_grad_norm_ limits its length and keeps the direction.",
            hint="What should stay the same when a gradient is made shorter?",
        ),
        Mistake(
            "the last micro-batch's loss reported",
            Clipping(report=last_loss),
            Clipping(report=last_divided),
            why="One micro-batch stands for the window; the loss of the step is the mean over all its micro-batches, and what you see is noisier.",
            hint="Which losses belong to one optimizer step?",
        ),
        Mistake(
            "the losses are summed, not averaged",
            Clipping(report=lambda losses, k: sum(losses)),
            Clipping(report=lambda losses, k: sum(losses), never_reset=True),
            why="The sum of k losses looks like a loss k times too large, and changes when k does.",
            hint="What would the large batch report, a sum or a mean?",
        ),
        Mistake(
            "the mean is divided once more",
            Clipping(report=lambda losses, k: sum(losses) / k**2),
            why="The mean of the losses that were already divided by k is too small by k.",
            hint="Is what you add up the loss, or the loss that was already divided?",
        ),
        Mistake(
            "the running loss is never reset",
            Clipping(never_reset=True),
            Clipping(never_reset=True, report=lambda losses, k: sum(losses) / len(losses)),
            why="The losses of earlier windows are still in the number that is reported for this one.",
            hint="When does the next window's loss begin from zero?",
        ),
        Mistake(
            "a loss for every micro-batch",
            Clipping(every=True, report=last_loss),
            Clipping(every=True, report=last_divided),
            why="One number per micro-batch is returned; the large batch has one per optimizer step.",
            hint="How many steps are made, and how many numbers do you return?",
        ),
        Mistake(
            "nothing returned",
            Clipping(report=None),
            why="The training is right, but the losses are not returned.",
            hint="What should the caller be given when the loop is done?",
        ),
    ),
    hints=(
        "What does the large batch clip, and what does it report?",
        "Between the last backward of the window and the step: torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).",
        "Add up loss.item() / k beside backward; when the window is complete, append the sum to your list and start it from zero again.",
    ),
    also_right=(
        RIGHT_CLIPPING,
        replace(RIGHT_CLIPPING, report=lambda losses, k: torch.tensor(losses).mean()),
    ),
)

EXERCISES = (
    train_accumulated,
    train_accumulated_to_the_end,
    repaired_loop,
    token_weighted_backward,
    train_clipped,
)
