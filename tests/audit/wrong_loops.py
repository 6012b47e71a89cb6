"""Wrong loops as their writers bring them: the name that each must get. None of them is one of the lessons' known answers."""

from contextlib import ExitStack

import torch
from right_loops import cut, net, numbers
from torch import nn
from torch.nn import functional as F

WRONG: dict[str, tuple] = {}  # by the loop's name: (train, the mistake's name)


def named(mistake):
    def keep(train):
        WRONG[train.__name__] = train, mistake
        return train

    return keep


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr=lr)


def windows(micro_batch, accumulation_steps, count=64):
    """Windows of micro-batches, as they should be."""
    parts = cut(micro_batch, count)
    for start in range(0, len(parts), accumulation_steps):
        yield parts[start : start + accumulation_steps]


def learn(model, optimizer, window, divisor, behind=lambda: None):
    """One right window; `behind` is called after each backward pass."""
    for x, y in window:
        (F.mse_loss(model(x), y) / divisor).backward()
        behind()
    optimizer.step()
    optimizer.zero_grad()


def stepping(steps_at):
    """A loop that steps where `steps_at(number, k)` says so, numbers from 1."""

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = sgd(model)
        for number, (x, y) in enumerate(cut(micro_batch, 256), 1):
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            if steps_at(number, accumulation_steps):
                optimizer.step()
                optimizer.zero_grad()

    return train


WRONG["counted_from_one"] = (
    stepping(lambda number, k: (number + 1) % k == 0),
    "steps one micro-batch early",
)
WRONG["half_windows"] = (
    stepping(lambda number, k: number % max(k // 2, 1) == 0),
    "too few micro-batches in a window",
)
WRONG["four_written_in"] = (
    stepping(lambda number, k: number % 4 == 0),
    "the number of accumulation steps is not the loop's",
)


@named("the same samples several times in a window")
def next_of_a_new_iterator(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, [next(iter(window)) for _ in window], accumulation_steps)


@named("weights moved with every micro-batch")
def decay_by_hand(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)

    @torch.no_grad()
    def decay():
        for weight in model.parameters():
            weight.mul_(0.99)

    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, window, accumulation_steps, decay)


@named("penalty not divided")
def penalty(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            squares = sum(weight.square().sum() for weight in model.parameters())
            (F.mse_loss(model(x), y) / accumulation_steps + 0.01 * squares).backward()
        optimizer.step()
        optimizer.zero_grad()


@named("unscaled in every micro-batch")
def unscaled_by_hand(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)

    def unscale():
        for weight in model.parameters():
            weight.grad /= 128

    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, window, accumulation_steps / 128, unscale)


@named("unscaled in every micro-batch")
def unscaled_by_the_scaler(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for window in windows(micro_batch, accumulation_steps):
        for number, (x, y) in enumerate(window, 1):
            scaler.scale(F.mse_loss(model(x), y) / accumulation_steps).backward()
            scaler.unscale_(optimizer)
            if number == len(window):
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()


@named("clipped in every micro-batch")
def clipped_by_value(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        learn(
            model,
            optimizer,
            window,
            accumulation_steps,
            lambda: nn.utils.clip_grad_value_(model.parameters(), 0.02),
        )


@named("clipped in every micro-batch")
def clipped_by_a_hook(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for weight in model.parameters():
        weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, window, accumulation_steps)


def clipping(clip, divisor, divide, limit=0.2):
    """A loop that clips a window's gradient to `limit`, if so, and divides it by `divide(k)` afterwards."""

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = sgd(model)
        for window in windows(micro_batch, accumulation_steps):
            for x, y in window:
                (F.mse_loss(model(x), y) / divisor(accumulation_steps)).backward()
            if clip(accumulation_steps):
                nn.utils.clip_grad_norm_(model.parameters(), limit)
            for weight in model.parameters():
                weight.grad /= divide(accumulation_steps)
            optimizer.step()
            optimizer.zero_grad()

    return train


WRONG["clipped_then_divided"] = (
    clipping(lambda k: True, lambda k: 1, lambda k: k),
    "clipped before it is divided",
)
WRONG["clipped_without_accumulation_only"] = (
    clipping(lambda k: k == 1, lambda k: k, lambda k: 1),
    "clipped in one training only",
)
WRONG["not_divided_and_clipped"] = (
    clipping(lambda k: True, lambda k: 1, lambda k: 1, limit=1.5),
    "loss not divided",
)


@named("micro-batches count differently")
def scale_doubled_within_a_window(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for number, (x, y) in enumerate(window):
            (2**number * F.mse_loss(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


@named("a sum over samples in one training only")
def sum_if_accumulated(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model, 0.01)
    reduction = "sum" if accumulation_steps > 1 else "mean"
    for window in windows(micro_batch, accumulation_steps):
        for x, _ in window:
            labels = torch.arange(len(x)) % 3
            loss = F.cross_entropy(model(x), labels[:1].expand(len(x)), reduction=reduction)
            (loss / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


@named("learning rate changed with k")
def rate_times_k(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3 * accumulation_steps)
    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, window, accumulation_steps)


@named("the schedule moves with every micro-batch")
def warm_up_by_hand(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    seen = 0

    def warm_up():
        nonlocal seen
        seen += 1
        optimizer.param_groups[0]["lr"] = 0.01 * min(1, seen / 6)

    for window in windows(micro_batch, accumulation_steps, 160):
        learn(model, optimizer, window, accumulation_steps, warm_up)


@named("the average moves with every micro-batch")
def averaged_each_time(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    decay = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=decay)
    for window in windows(micro_batch, accumulation_steps):
        learn(
            model, optimizer, window, accumulation_steps, lambda: average.update_parameters(model)
        )


@named("steps on every micro-batch")
def critic_never_waits(micro_batch, accumulation_steps):
    maker, critic = nn.Linear(5, 3), nn.Linear(3, 1)
    of_maker, of_critic = sgd(maker), sgd(critic)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            made = maker(x)
            ((critic(made.detach()) - critic(y)).mean() / accumulation_steps).backward()
            of_critic.step()
            of_critic.zero_grad()
            loss = -critic(made).mean() / accumulation_steps
            loss.backward(inputs=list(maker.parameters()))
        of_maker.step()
        of_maker.zero_grad()


def adding(together):
    """A loop with gradients of torch.autograd.grad: `together(so far, new)`."""

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = sgd(model)
        weights = list(model.parameters())
        for window in windows(micro_batch, accumulation_steps):
            kept = None
            for x, y in window:
                new = torch.autograd.grad(F.mse_loss(model(x), y), weights)
                kept = new if kept is None else list(map(together, kept, new))
            for weight, part in zip(weights, kept, strict=True):
                weight.grad = part
            optimizer.step()

    return train


WRONG["halves_of_halves"] = (
    adding(lambda kept, new: (kept + new) / 2),
    "micro-batches count differently",
)
WRONG["overwritten"] = adding(lambda kept, new: new), "only the last micro-batch counts"


@named("mean of means")
def means_summed_and_clipped(micro_batch, accumulation_steps):
    """Divided after the window, then always clipped: the length tells nothing."""
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            chosen = y[:, 0] > 0.3
            F.mse_loss(model(x)[chosen], y[chosen]).backward()
        for weight in model.parameters():
            weight.grad /= accumulation_steps
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()


WRONG["not_divided_and_always_clipped"] = (
    clipping(lambda k: True, lambda k: 1, lambda k: 1, limit=0.01),
    "loss not divided",
)


@named("loss not divided")
def clipped_by_a_norm_of_its_own(micro_batch, accumulation_steps):
    """torch's two halves of `clip_grad_norm_`, which always act."""
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            F.mse_loss(model(x), y).backward()
        length = nn.utils.get_total_norm([weight.grad for weight in model.parameters()])
        nn.utils.clip_grads_with_norm_(model.parameters(), 0.01, length)
        optimizer.step()
        optimizer.zero_grad()


@named("loss not divided")
def sum_of_means_clipped(micro_batch, accumulation_steps):
    """What the large batch has is short enough, the sum is not."""
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            chosen = y[:, 0] > 0.3
            F.mse_loss(model(x)[chosen], y[chosen]).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
        optimizer.zero_grad()


@named("clipped in every micro-batch")
def each_weight_clipped(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)

    def clip():
        for weight in model.parameters():
            nn.utils.clip_grad_norm_([weight], 0.05)

    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, window, accumulation_steps, clip)


@named("unscaled in every micro-batch")
def unscaled_and_clipped(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            (256 * F.mse_loss(model(x), y) / accumulation_steps).backward()
            for weight in model.parameters():
                weight.grad /= 256
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()


@named("a loss across samples")
def a_weight_of_no_module(micro_batch, accumulation_steps):
    """The temperature's gradient comes before those of the model."""
    model, scale = net(), nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            logits = scale.exp() * F.normalize(model(x)) @ F.normalize(y).T
            (F.cross_entropy(logits, torch.arange(len(x))) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


@named("gradients of another loss left in")
def generator_in_the_discriminator(micro_batch, accumulation_steps):
    """What the generator's loss leaves in the discriminator is still there when that steps."""
    generator, judge = net(), nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
    ahead, behind = sgd(generator), sgd(judge)
    for number, (x, y) in enumerate(cut(micro_batch, 64), 1):
        if accumulation_steps == 1:
            judge.zero_grad()
        apart = judge(generator(x).detach()).square() - judge(y).tanh()
        (apart.mean() / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            behind.step()
            behind.zero_grad()
        (-judge(generator(x)).mean() / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            ahead.step()
            ahead.zero_grad()


@named("resumed inside a window")
def resumed_inside(micro_batch, accumulation_steps):
    """After half of the data the weights are loaded into a new model, as on another day."""
    model = net()
    optimizer = sgd(model)
    parts = cut(micro_batch, 64)
    for number, (x, y) in enumerate(parts, 1):
        if accumulation_steps > 1 and number == len(parts) - 1:
            saved, model = model.state_dict(), net()
            model.load_state_dict(saved)
            optimizer = sgd(model)
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@named("one term of the loss not divided")
def one_term_divided(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            out = model(x)
            loss = F.mse_loss(out, y) / accumulation_steps + 0.1 * out.logsumexp(-1).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@named("zeroed inside the window")
def evaluated_inside(micro_batch, accumulation_steps):
    """An evaluation in the middle of a window, with its graph, clears what lies in .grad."""
    model = net()
    optimizer = sgd(model)
    for number, (x, y) in enumerate(cut(micro_batch, 64), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number == 6:
            model.eval()
            F.mse_loss(model(x), y)
            model.zero_grad()
            model.train()


@named("targets of other samples")
def targets_of_the_last_micro_batch(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    parts = cut(micro_batch, 64)
    for number, (x, y) in enumerate(parts, 1):
        y = y if accumulation_steps == 1 else parts[number - 2][1]
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


@named("only the last micro-batch counts")
def stepped_in_backward(micro_batch, accumulation_steps):
    """Each weight is stepped as its gradient comes, and the gradient is thrown away with every micro-batch."""
    model = net()
    optimizers = {weight: torch.optim.SGD([weight], lr=0.1) for weight in model.parameters()}
    parts = cut(micro_batch, 64)

    def hook(weight):
        if number % accumulation_steps == 0:
            optimizers[weight].step()
        weight.grad = None

    for weight in optimizers:
        weight.register_post_accumulate_grad_hook(hook)
    for number, (x, y) in enumerate(parts, 1):  # noqa: B007 - the hook reads it
        (F.mse_loss(model(x), y) / accumulation_steps).backward()


@named("state that moves with every forward pass")
def spectral_norm(micro_batch, accumulation_steps):
    model = net()
    nn.utils.parametrizations.spectral_norm(model[0])
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, window, accumulation_steps)


def closure(zeroes, divides):
    """LBFGS, whose closure goes through the window several times."""

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3)
        for window in windows(micro_batch, accumulation_steps):

            def again(window=window):
                if zeroes or accumulation_steps == 1:
                    optimizer.zero_grad()
                for x, y in window:
                    (F.mse_loss(model(x), y) / (len(window) if divides else 1)).backward()
                return 0.0

            optimizer.step(again)
            optimizer.zero_grad()

    return train


WRONG["closure_not_divided"] = closure(True, False), "loss not divided"
WRONG["closure_not_zeroed"] = closure(False, True), "not zeroed between two passes"


def buffered(keep=0.0, kind=torch.float32):
    """A loop that adds up in a buffer of its own, and keeps a part of it for the next window."""

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = sgd(model)
        weights = list(model.parameters())
        sums = [
            torch.zeros_like(w, dtype=kind if accumulation_steps > 1 else None) for w in weights
        ]
        for window in windows(micro_batch, accumulation_steps):
            for x, y in window:
                (F.mse_loss(model(x), y) / accumulation_steps).backward()
                for one, weight in zip(sums, weights, strict=True):
                    one += weight.grad
                optimizer.zero_grad()
            for one, weight in zip(sums, weights, strict=True):
                weight.grad = one.to(weight.dtype).clone()
                one *= keep if accumulation_steps > 1 else 0
            optimizer.step()
            optimizer.zero_grad()

    return train


WRONG["buffer_half_emptied"] = buffered(keep=0.5), "never zeroed"
WRONG["buffer_in_bfloat16"] = buffered(kind=torch.bfloat16), "added up in low precision"


@named("optimizer made anew")
def new_optimizer_in_the_middle(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for number, window in enumerate(windows(micro_batch, accumulation_steps)):
        if number == 1 and accumulation_steps > 1:
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        learn(model, optimizer, window, accumulation_steps)


@named("learning rate changed with k")
def scheduled_rate_times_k(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for number, window in enumerate(windows(micro_batch, accumulation_steps)):
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + number) * accumulation_steps
        learn(model, optimizer, window, accumulation_steps)


@named("optimizer made anew")
def resumed_without_the_optimizer(micro_batch, accumulation_steps):
    """Both trainings go on with a new model and optimizer; accumulated, what the optimizer remembers is not loaded."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for number, window in enumerate(windows(micro_batch, accumulation_steps, 96)):
        if number == 1:
            kept = [one.state_dict() for one in (model, optimizer, schedule)]
            model = net()
            optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
            model.load_state_dict(kept[0])
            if accumulation_steps == 1:
                optimizer.load_state_dict(kept[1])
            schedule.load_state_dict(kept[2])
        learn(model, optimizer, window, accumulation_steps)
        schedule.step()


@named("length in micro-batches")
def warm_up_that_never_ends(micro_batch, accumulation_steps):
    """Every rate is a k-th of what it should be, as long as the warm-up goes on."""
    model = net()
    optimizer = sgd(model)
    length = 10 * accumulation_steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / length)
    for window in windows(micro_batch, accumulation_steps, 96):
        learn(model, optimizer, window, accumulation_steps)
        schedule.step()


def two_optimizers(first_each_time, momentum):
    def train(micro_batch, accumulation_steps):
        model = net()
        first = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
        last = torch.optim.AdamW(model[2].parameters(), lr=0.01)
        passes = 0
        for window in windows(micro_batch, accumulation_steps):
            for x, y in window:
                (F.mse_loss(model(x), y) / accumulation_steps).backward()
                passes += 1
                if first_each_time:
                    first.step()
            if momentum:
                first.param_groups[0]["momentum"] = 0.5 + 0.01 * passes
            for one in (last,) if first_each_time else (first, last):
                one.step()
            model.zero_grad()

    return train


WRONG["one_of_two_optimizers_never_waits"] = (
    two_optimizers(True, False),
    "steps on every micro-batch",
)
WRONG["momentum_moves_with_every_micro_batch"] = two_optimizers(False, True), None


@named("one term of the loss not divided")
def gradient_penalty(micro_batch, accumulation_steps):
    """The penalty is made of a gradient, which torch.autograd.grad has computed in a backward pass of its own."""
    critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = sgd(critic)
    for window in windows(micro_batch, accumulation_steps):
        for x, _ in window:
            x = x.clone().requires_grad_()
            score = critic(x)
            (slope,) = torch.autograd.grad(score.sum(), x, create_graph=True)
            loss = score.mean() / accumulation_steps + (slope.norm(dim=1) - 1).square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def other_sizes(size):
    """Windows of as many micro-batches as `size(step, k)` says, until there were three steps."""

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = sgd(model)
        parts = iter(cut(micro_batch, 160))
        for step in range(3):
            window = [next(parts) for _ in range(size(step, accumulation_steps))]
            learn(model, optimizer, window, accumulation_steps)

    return train


WRONG["second_window_is_short"] = other_sizes(lambda step, k: max(1, k - (step == 1))), None
WRONG["short_windows_until_the_last_step"] = (
    other_sizes(lambda step, k: max(1, k // 2)),
    "too few micro-batches in a window",
)


@named(None)
def inner_loss_left_in(micro_batch, accumulation_steps):
    """Samples go forward and backward once more, as in the inner loop of meta-learning: no window is longer."""
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            if accumulation_steps > 1:
                (F.l1_loss(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


# ---------------------------------------------------------------- a loss that changes inside the window


def changing(loss, at_step):
    """A loss of (student's output, target, teacher's output, memory, passes so far); `at_step` moves teacher and memory, here with every micro-batch."""

    def train(micro_batch, accumulation_steps):
        model = net()
        teacher, memory = net().requires_grad_(False), torch.zeros(3)
        with torch.no_grad():
            for weight in teacher.parameters():
                weight.mul_(1.5)
        optimizer = sgd(model)
        passes = 0
        for window in windows(micro_batch, accumulation_steps):
            for x, y in window:
                out, seen = model(x), teacher(x)
                (loss(out, y, seen, memory, passes) / accumulation_steps).backward()
                passes += 1
                memory = at_step(model, teacher, memory, seen)
            optimizer.step()
            optimizer.zero_grad()

    return train


def teacher_follows(model, teacher, memory, seen):
    with torch.no_grad():
        for one, other in zip(teacher.parameters(), model.parameters(), strict=True):
            one.lerp_(other, 0.2)
    return memory


WRONG["teacher_moves_with_every_micro_batch"] = (
    changing(lambda out, y, seen, memory, passes: F.mse_loss(out, seen), teacher_follows),
    "the average moves with every micro-batch",
)
WRONG["weight_of_a_term_counts_micro_batches"] = (
    changing(
        lambda out, y, seen, memory, passes: (
            F.mse_loss(out, y) + 0.1 * (1 + passes) * out.abs().mean()
        ),
        lambda model, teacher, memory, seen: memory,
    ),
    "micro-batches count differently",
)
WRONG["temperature_counts_micro_batches"] = (
    changing(
        lambda out, y, seen, memory, passes: F.cross_entropy(
            out / (1 + passes), y.softmax(1), reduction="mean"
        ),
        lambda model, teacher, memory, seen: memory,
    ),
    None,
)
WRONG["centre_moves_with_every_micro_batch"] = (
    changing(
        lambda out, y, seen, memory, passes: F.cross_entropy(out, (seen - memory).softmax(1)),
        lambda model, teacher, memory, seen: 0.5 * memory + 0.5 * seen.mean(0),
    ),
    None,
)


@named(None)
def unfrozen_after_three_micro_batches(micro_batch, accumulation_steps):
    model = net()
    model[0].requires_grad_(False)
    optimizer = sgd(model)
    passes = 0
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            model[0].requires_grad_(passes >= 3)
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
            passes += 1
        optimizer.step()
        optimizer.zero_grad()


@named("a loss across samples")
def advantages_of_a_micro_batch(micro_batch, accumulation_steps):
    """What is made equal is a number of the data, not of the model: no gradient shows that samples meet."""
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            gain = (y[:, 0] - y[:, 0].mean()) / y[:, 0].std()
            (-(gain * model(x).log_softmax(1)[:, 0]).mean() / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


@named("zeroed inside the window")
def head_emptied(micro_batch, accumulation_steps):
    """Only some of the weights lose what earlier micro-batches gave them."""
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            model[-1].zero_grad()
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


@named("gradients divided in every round")
def divided_by_those_so_far(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        count = 0
        for x, y in window:
            F.mse_loss(model(x), y, reduction="sum").backward()
            count += y.numel()
            for weight in model.parameters():
                weight.grad /= count
        optimizer.step()
        optimizer.zero_grad()


@named("a term of the loss by its own count")
def boxes_of_the_positive(micro_batch, accumulation_steps):
    """Each micro-batch has other positive samples, over which one of two terms is a mean."""
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            found, positive = model(x), x[:, 0] > 0.4
            classes = F.cross_entropy(found, y.argmax(1))
            boxes = F.l1_loss(found[positive], y[positive])
            ((classes + 2 * boxes) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


class OwnAverage:
    """A running average of weights as projects write it, without torch's class."""

    def __init__(self, model, decay):
        self.decay = decay
        self.shadow = {name: value.clone() for name, value in model.state_dict().items()}

    def update(self, model):
        for name, value in model.state_dict().items():
            self.shadow[name].mul_(self.decay).add_(value, alpha=1 - self.decay)


def averaged(decay=lambda k: 0.8, when="after the step", count=128):
    """A loop with an average of its own, which it returns."""

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer, average = sgd(model), OwnAverage(model, decay(accumulation_steps))
        for window in windows(micro_batch, accumulation_steps, count):
            for number, (x, y) in enumerate(window, 1):
                (F.mse_loss(model(x), y) / len(window)).backward()
                if when == "micro-batch, before the step":
                    average.update(model)
                if number == len(window):
                    if when == "before the step" and accumulation_steps > 1:
                        average.update(model)
                    optimizer.step()
                    optimizer.zero_grad()
                if when == "micro-batch":
                    average.update(model)
            if when == "after the step" or when == "before the step" and accumulation_steps == 1:
                average.update(model)
        return average

    return train


MOVES = "the average moves with every micro-batch"
WRONG["own_average_each_time"] = averaged(when="micro-batch"), MOVES
WRONG["own_average_each_time_before"] = (
    averaged(when="micro-batch, before the step", count=112),
    MOVES,
)


@named("the average moves with every micro-batch")
def teacher_without_a_head(micro_batch, accumulation_steps):
    """It begins as the student, so that the first window shows nothing."""
    model, head = net(), nn.Linear(3, 3)
    teacher = net().requires_grad_(False)
    optimizer = sgd(nn.ModuleList([model, head]))
    for window in windows(micro_batch, accumulation_steps):
        for x, _ in window:
            loss = -F.cosine_similarity(head(model(x)), teacher(x * 1.1)).mean()
            (loss / accumulation_steps).backward()
            with torch.no_grad():
                for old, new in zip(teacher.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.3)
            if x is window[-1][0]:
                optimizer.step()
                optimizer.zero_grad()


@named("batch norm")
def without_running_statistics(micro_batch, accumulation_steps):
    model = net(nn.BatchNorm1d(8, track_running_stats=False))
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, window, accumulation_steps)


@named("no step behind the last window")
def dropped_in_both(micro_batch, accumulation_steps):
    """It waits for a whole window, so that the large batch's rest of 16 has no step either."""
    model, seen = net(), 0
    optimizer = sgd(model)
    for x, y in cut(micro_batch, 80):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        seen += len(x)
        if seen == micro_batch * accumulation_steps:
            optimizer.step()
            optimizer.zero_grad()
            seen = 0


# ---------------------------------------------------------------- right proportions, and another number than the large batch's


def ending(ends, loss=F.mse_loss, scale=lambda k: 1 / k, rate=0.1, count=128):
    """A loop that calls `ends(weights, window, k)` before each step; `scale(k)` multiplies its losses."""

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = sgd(model, rate)
        for window in windows(micro_batch, accumulation_steps, count):
            for x, y in window:
                (loss(model(x), y) * scale(accumulation_steps)).backward()
            ends(list(model.parameters()), window, accumulation_steps)
            optimizer.step()
            optimizer.zero_grad()

    return train


def divide_by(divisor):
    def ends(weights, window, k):
        for weight in weights:
            weight.grad /= divisor(window, k)

    return ends


def limited(limit, where):
    """A limit on the gradient's length as projects write it, without torch's function."""

    def ends(weights, window, k):
        length = torch.cat([weight.grad.flatten() for weight in weights]).norm()
        for weight in weights if where(k) and length > limit else ():
            weight.grad *= limit / length

    return ends


def summed(out, y):
    return F.mse_loss(out, y, reduction="sum")


DIVISOR = "a wrong divisor"
WRONG |= {
    "divided_by_the_last_micro_batch": (
        ending(divide_by(lambda window, k: window[-1][1].numel()), summed, lambda k: 1),
        DIVISOR,
    ),
    "divided_by_the_micro_batches_of_an_epoch": (
        ending(divide_by(lambda window, k: 12 if k > 1 else 1), scale=lambda k: 1, count=96),
        DIVISOR,
    ),
    "loss_divided_by_one_too_few": (
        ending(lambda *of: None, scale=lambda k: 1 / max(1, k - 1)),
        DIVISOR,
    ),
    "scale_left_in": (
        ending(
            divide_by(lambda window, k: 1 if k > 1 else 1024),
            scale=lambda k: 1024 / k,
            rate=1e-4,
        ),
        DIVISOR,
    ),
    "limited_by_hand_without_accumulation_only": (
        ending(limited(0.1, lambda k: k == 1)),
        "clipped in one training only",
    ),
    "limited_by_hand_if_accumulated": (
        ending(limited(0.1, lambda k: k > 1)),
        "clipped in one training only",
    ),
}


@named("clipped before it is unscaled")
def clipped_with_the_scale_in_it(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for window in windows(micro_batch, accumulation_steps):
        for x, y in window:
            scaler.scale(F.mse_loss(model(x), y) / accumulation_steps).backward()
        if accumulation_steps == 1:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


def in_low_precision(loss, scale, pure=False):
    """Autocast, or weights in bfloat16; `scale(k)` multiplies the losses."""

    def train(micro_batch, accumulation_steps):
        model = net().bfloat16() if pure else net()
        optimizer = sgd(model)
        for window in windows(micro_batch, accumulation_steps):
            for x, y in window:
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not pure):
                    out = model(x.to(next(model.parameters()).dtype))
                (loss(out.float(), y) * scale(accumulation_steps)).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def of_the_positive(out, y):
    return F.mse_loss(out[y[:, 0] > -1.5], y[y[:, 0] > -1.5])


WRONG["a_few_percent_in_bfloat16"] = (
    in_low_precision(F.mse_loss, lambda k: 1 / (1.04 * k) if k > 1 else 1),
    DIVISOR,
)
WRONG["a_few_percent_with_weights_in_bfloat16"] = (
    in_low_precision(F.mse_loss, lambda k: 1 / (1.04 * k) if k > 1 else 1, pure=True),
    DIVISOR,
)
WRONG["means_in_bfloat16"] = in_low_precision(of_the_positive, lambda k: 1 / k), "mean of means"


# ---------------------------------------------------------------- forward passes that only look


@named("zeroed inside the window")
def looked_at_inside(micro_batch, accumulation_steps):
    """Samples that are never trained on go forward in training mode, with their graph."""
    model = net()
    optimizer = sgd(model)
    for number, (x, y) in enumerate(cut(micro_batch, 64), 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        if number == 6:
            model(numbers(seed=7)[0])
            model.zero_grad()


@named("a micro-batch without a backward pass")
def skipped_beside_a_teacher(micro_batch, accumulation_steps):
    model, teacher = net(), net().requires_grad_(False)
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for number, (x, y) in enumerate(window):
            loss = F.mse_loss(model(x), y + teacher(x)) / accumulation_steps
            if number != 1:
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@named("loss not divided")
def whole_graph_undivided(micro_batch, accumulation_steps):
    """All nodes go forward each time; the loss is about those of the micro-batch."""
    model = net()
    optimizer = sgd(model)
    nodes, targets = numbers()
    for window in torch.arange(64).split(micro_batch * accumulation_steps):
        for part in window.split(micro_batch):
            F.mse_loss(model(nodes)[part], targets[part]).backward()
        optimizer.step()
        optimizer.zero_grad()


# ---------------------------------------------------------------- other trainings without a name: (train, words)


def labels_rolled(micro_batch, accumulation_steps):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30))
    optimizer = sgd(model)
    texts = torch.randint(0, 30, (64, 6))
    for number, part in enumerate(texts.split(micro_batch), 1):
        last = number % accumulation_steps == 0
        wanted = part.roll(1, 1) if last and accumulation_steps > 1 else part
        scores = model(part[:, :-1]).flatten(0, 1)
        (F.cross_entropy(scores, wanted[:, 1:].flatten()) / accumulation_steps).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


def scheduled(schedule, count=256):
    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = sgd(model)
        moved = schedule(optimizer, accumulation_steps)
        for number, window in enumerate(windows(micro_batch, accumulation_steps, count)):
            learn(model, optimizer, window, accumulation_steps)
            moved(number)

    return train


def milestone(optimizer, k):
    rates = torch.optim.lr_scheduler
    both = [rates.LinearLR(optimizer, 0.1, total_iters=2), rates.CosineAnnealingLR(optimizer, 9)]
    schedule = rates.SequentialLR(optimizer, both, [2 * k])
    return lambda number: schedule.step()


def begins_early(optimizer, k):
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    return lambda number: schedule.step() if number + 1 > 3 // k else None


def floor_of_other_steps(micro_batch, accumulation_steps):
    """A decay to a floor, over fewer steps the more are accumulated."""
    model, steps = net(), 24 // accumulation_steps
    optimizer = sgd(model)
    whole = windows(micro_batch, accumulation_steps, 24 * 32)
    for number, window in zip(range(steps), whole, strict=False):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * max(0.1, 1 - number / (steps - 2))
        learn(model, optimizer, window, accumulation_steps)


def signs(micro_batch, accumulation_steps):
    model = net()
    for weight in model.parameters():
        weight.register_hook(lambda part: part.sign() / accumulation_steps)
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, window, accumulation_steps)


def epochs_of_three(micro_batch, accumulation_steps):
    """A sampler that draws three micro-batches for each epoch, whatever their size; an epoch's end ends its window."""
    model, parts = net(), cut(micro_batch, 384)
    optimizer = sgd(model)
    for start in range(0, min(len(parts), 12), 3):
        epoch = parts[start : start + 3]
        for first in range(0, 3, accumulation_steps):
            window = epoch[first : first + accumulation_steps]
            learn(model, optimizer, window, len(window))


def last_micro_batch_in_a_closure(micro_batch, accumulation_steps):
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3)
    for window in windows(micro_batch, accumulation_steps):

        def again(window=window):
            optimizer.zero_grad()
            loss = F.mse_loss(model(window[-1][0]), window[-1][1])
            loss.backward()
            return loss

        optimizer.step(again)


def weights_of_the_first_samples(micro_batch, accumulation_steps):
    """The samples' weights are not cut as the samples are."""
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        counts = torch.linspace(0.1, 2, 32)[:micro_batch]
        for x, y in window:
            each = (model(x) - y).square().mean(1)
            ((each * counts).mean() / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def nothing_of_one(micro_batch, accumulation_steps):
    """A loss that is too high is taken times zero."""
    model = net()
    optimizer = sgd(model)
    for window in windows(micro_batch, accumulation_steps):
        for number, (x, y) in enumerate(window):
            (F.mse_loss(model(x), y) * (number != 1) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()


def ends_k_times_too_early(micro_batch, accumulation_steps):
    model = net()
    optimizer = sgd(model)
    for number, (x, y) in enumerate(cut(micro_batch, 256)[:5], 1):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def steps_twice_in_each_block(micro_batch, accumulation_steps):
    """Two micro-batches are behind one count, and each of them steps where the count says so."""
    model = net()
    optimizer = sgd(model)
    for number, (x, y) in enumerate(cut(micro_batch, 512)):
        (F.mse_loss(model(x), y) / accumulation_steps).backward()
        block = number // 2 + 1 if accumulation_steps > 1 else accumulation_steps
        if block % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def epochs_of(complete, left, k=4):
    """Two epochs of which a loader drops what fills no batch; windows are counted within an epoch and zeroed behind a step only."""

    def train(micro_batch, accumulation_steps):
        model = net()
        optimizer = sgd(model)
        size = 32 // k  # of the loop's micro-batches, whatever this training's
        count = complete * 32 + left * size
        for _ in range(2):
            parts = [part for part in cut(micro_batch, count) if len(part[0]) == micro_batch]
            for number, (x, y) in enumerate(parts, 1):
                (F.mse_loss(model(x), y) / accumulation_steps).backward()
                if number % accumulation_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()

    return train


WRONG["one_leaks_where_the_rest_is_dropped"] = epochs_of(3, 1), "last window dropped"
WRONG["three_leak_where_the_rest_is_dropped"] = epochs_of(2, 3), "last window dropped"


def passes_over_a_boundary(micro_batch, accumulation_steps):
    """A micro-batch that is passed over takes the step along that would have come behind it."""
    model = net()
    optimizer = sgd(model)
    for number, (x, y) in enumerate(cut(micro_batch, 256), 1):
        loss = F.mse_loss(model(x), y) / accumulation_steps
        if accumulation_steps > 1 and number == accumulation_steps:
            continue
        loss.backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def frozen(when):
    """A head behind a body that the loop calls itself, and which learns in the micro-batches for which `when(number)`."""

    def train(micro_batch, accumulation_steps):
        body, *_, head = net()
        parameters = [*body.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(parameters, lr=0.1)
        for number, (x, y) in enumerate(cut(micro_batch, 256)):
            body.requires_grad_(when(number))
            (F.mse_loss(head(body(x).tanh()), y) / accumulation_steps).backward()
            if (number + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()

    return train


def overlapping(micro_batch, accumulation_steps):
    """Each window but the first begins with the last micro-batch of the one before."""
    model = net()
    optimizer = sgd(model)
    parts = cut(micro_batch, 256)
    for start in range(0, len(parts), accumulation_steps):
        again = accumulation_steps > 1 and start > 0
        window = parts[start - again : start + accumulation_steps]
        learn(model, optimizer, window, accumulation_steps)


class Told(nn.Module):
    """A network that takes, beside its own input, what a frozen one has made of a prompt."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(5 + 7, 3)

    def forward(self, x, prompt):
        return self.body(torch.cat([x, prompt], 1))


def prompted(micro_batch, accumulation_steps):
    """A frozen encoder of prompts, which are all the same, before the network; a step on the first micro-batch of each window."""
    model, encoder = Told(), nn.Linear(2, 7).requires_grad_(False)
    optimizer = sgd(model)
    for number, (x, y) in enumerate(cut(micro_batch)):
        prompt = encoder(torch.ones(len(x), 2))
        (F.mse_loss(model(x, prompt), y) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


def with_a_target(micro_batch, accumulation_steps):
    """A frozen network makes the target, behind the model's own pass, in the shape of the model's inputs; nothing is divided."""
    torch.manual_seed(0)
    model, target = nn.Linear(5, 5), nn.Linear(3, 5).requires_grad_(False)
    optimizer = sgd(model)
    for number, (x, y) in enumerate(cut(micro_batch), 1):
        F.mse_loss(model(x), target(y)).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()


WRONG["prompted"] = prompted, "steps on the first micro-batch"
WRONG["with_a_target"] = with_a_target, "loss not divided"


def another_rate(micro_batch, accumulation_steps):
    """No schedule, and a rate that is a thousandth too large in small micro-batches."""
    model = net()
    optimizer = sgd(model, 0.1 if accumulation_steps == 1 else 0.1001)
    for window in windows(micro_batch, accumulation_steps):
        learn(model, optimizer, window, accumulation_steps)


WITHOUT_A_NAME = {
    "passes_over_a_boundary": (
        passes_over_a_boundary,
        "7, 4, 4, 4 backward passes lie behind this step and the next",
    ),
    "overlapping": (overlapping, "behind step 2 stand 40 samples (5 backward passes)"),
    "unfreezes_by_micro_batches": (
        frozen(lambda number: number >= 4),
        "a gradient came to 2 of its 4 tensors that have none there",
    ),
    "freezes_by_micro_batches": (
        frozen(lambda number: number < 6),
        "2 tensors got a gradient in some of its backward passes, none in others",
    ),
    "another_rate": (another_rate, "learning rate at step 1 is 0.1001"),
    "steps_twice_in_each_block": (
        steps_twice_in_each_block,
        "7, 1, 7, 1 backward passes lie behind this step and the next",
    ),
    "last_micro_batch_in_a_closure": (
        last_micro_batch_in_a_closure,
        "only a part goes forward, 48 samples of 192 in all",
    ),
    "weights_of_the_first_samples": (
        weights_of_the_first_samples,
        "the samples' weights, that belong to other samples",
    ),
    "nothing_of_one": (nothing_of_one, "nothing came of 1 of its 4 backward passes"),
    "ends_k_times_too_early": (ends_k_times_too_early, "makes 1 step, "),
    "epochs_of_three": (epochs_of_three, "how many there are depends on the micro-batch"),
    "labels_rolled": (labels_rolled, "targets that none has there"),
    "milestone": (scheduled(milestone), "learning rate at step"),
    "begins_early": (scheduled(begins_early), "the scheduler has moved 1 times, there 0"),
    "floor_of_other_steps": (floor_of_other_steps, "makes 6 steps, floor_of_other_steps(32, 1) 24"),
    "own_average_decays_by_k": (averaged(lambda k: 0.8**k), "it keeps 0.41 of itself"),
    "own_average_before": (averaged(when="before the step"), "it is taken before the step"),
    "signs": (signs, "something is done to the micro-batches' gradients"),
}


# ---------------------------------------------------------------- on two ranks


def some_averaged(micro_batch, accumulation_steps):
    """Local SGD that averages the matrices behind each step, and no bias."""
    distributed = torch.distributed
    here = distributed.is_initialized()
    rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if here else (0, 1)
    model = net()
    optimizer = sgd(model)
    parts = cut(micro_batch)[rank::ranks]
    for start in range(0, len(parts), accumulation_steps):
        for x, y in parts[start : start + accumulation_steps]:
            (F.mse_loss(model(x), y) / accumulation_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
        for weight in model.parameters() if here else ():
            if weight.dim() > 1:
                distributed.all_reduce(weight.data)
                weight.data /= ranks


def ranked(once, each=lambda model, ranks: None, unshared=False, alone=False):
    """A loop on ranks: `once(model, ranks)` is called before a step, `each` behind each backward pass."""

    def train(micro_batch, accumulation_steps):
        distributed = torch.distributed
        here = distributed.is_initialized()
        rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if here else (0, 1)
        model = net()
        optimizer = sgd(model)
        parts = cut(micro_batch) if unshared else cut(micro_batch)[rank::ranks]
        for start in range(0, len(parts), accumulation_steps):
            for x, y in parts[start : start + accumulation_steps]:
                (F.mse_loss(model(x), y) / accumulation_steps).backward()
                each(model, ranks)
            once(model, ranks)
            if rank == 0 or not alone:
                optimizer.step()
            optimizer.zero_grad()

    return train


def reduce(model, ranks, divisor=1):
    for weight in model.parameters() if ranks > 1 else ():
        torch.distributed.all_reduce(weight.grad)
        weight.grad /= divisor


def clip_and_reduce(model, ranks):
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    reduce(model, ranks, ranks)


def divide(model, ranks):
    for weight in model.parameters():
        weight.grad /= ranks


def means_of_ranks(micro_batch, accumulation_steps):
    """Each rank divides by the targets of its own window."""
    distributed = torch.distributed
    here = distributed.is_initialized()
    rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if here else (0, 1)
    model = net()
    optimizer = sgd(model)
    parts = cut(micro_batch)[rank::ranks]
    for start in range(0, len(parts), accumulation_steps):
        window = parts[start : start + accumulation_steps]
        kept = [y[:, 0] > 0.3 for _, y in window]
        count = sum(int(one.sum()) for one in kept)
        for (x, y), one in zip(window, kept, strict=True):
            (F.mse_loss(model(x)[one], y[one], reduction="sum") / count).backward()
        reduce(model, ranks, ranks)
        optimizer.step()
        optimizer.zero_grad()


def synchronised(quiet):
    """DistributedDataParallel with `no_sync` around the micro-batches for which `quiet(number, k)`."""

    def train(micro_batch, accumulation_steps):
        distributed = torch.distributed
        here = distributed.is_initialized()
        rank, ranks = (distributed.get_rank(), distributed.get_world_size()) if here else (0, 1)
        model = net()
        replica = nn.parallel.DistributedDataParallel(model) if here else model
        optimizer = sgd(model)
        parts = cut(micro_batch)[rank::ranks]
        for start in range(0, len(parts), accumulation_steps):
            for number, (x, y) in enumerate(parts[start : start + accumulation_steps], 1):
                with ExitStack() as stack:
                    if here and quiet(number, accumulation_steps):
                        stack.enter_context(replica.no_sync())
                    (F.mse_loss(replica(x), y) / accumulation_steps).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


ON_RANKS = {
    "all_divided_by_more": (ranked(lambda model, ranks: reduce(model, ranks, 1.3)), DIVISOR),
    "some_averaged": (some_averaged, "some weights are not averaged"),
    "clipped_first": (ranked(clip_and_reduce), "clipped before the all-reduce"),
    "reduced_each_time": (ranked(divide, reduce), "all-reduced in every micro-batch"),
    "means_of_ranks": (means_of_ranks, "mean of the ranks' means"),
    "all_samples_on_all": (
        ranked(lambda model, ranks: reduce(model, ranks, ranks), unshared=True),
        "every rank trains on the same samples",
    ),
    "rank_0_steps": (
        ranked(lambda model, ranks: reduce(model, ranks, ranks), alone=True),
        "rank left out",
    ),
}

NO_SYNC = {  # in windows of four micro-batches: of two, both are the same
    "no_sync_behind_the_first": (
        synchronised(lambda number, k: number > 1),
        "synchronised on the first micro-batch",
    ),
    "no_sync_around_the_last": (
        synchronised(lambda number, k: number == k),
        "no_sync on the last micro-batch only",
    ),
}
