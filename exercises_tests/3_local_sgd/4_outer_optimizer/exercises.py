"""The exercises of the lesson 3_local_sgd/4_outer_optimizer."""

import torch
from torch import distributed as dist
from torch import nn

from trainlean.costs.links import local_sgd_step_seconds
from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import BY_A_HOOK, GRADIENT, HEAD, MEAN, OUTER, ROUND

# ---------------------------------------------------------------- other right ways


def in_one_flat_tensor(model, inner, outer, loss_of, micro_batches, local_steps):
    """The mean of the ends in one message; the difference is taken afterwards."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    begin = nn.utils.parameters_to_vector(weights).detach()
    since = 0
    for number, batch in enumerate(micro_batches, 1):
        model.zero_grad()
        loss_of(model, batch).backward()
        inner.step()
        since += 1
        if since < local_steps and number < len(micro_batches):
            continue
        mean = nn.utils.parameters_to_vector(weights).detach() / dist.get_world_size()
        dist.all_reduce(mean)
        nn.utils.vector_to_parameters(begin.clone(), weights)
        way_back, taken = begin - mean, 0
        for weight in weights:
            piece = way_back[taken : taken + weight.numel()]
            weight.grad = piece.view_as(weight).clone()
            taken += weight.numel()
        outer.step()
        begin, since = nn.utils.parameters_to_vector(weights).detach().clone(), 0


def with_all_gathered(model, inner, outer, loss_of, micro_batches, local_steps):
    """Every rank gathers where the others have come, and computes the mean itself."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    for step, batch in enumerate(micro_batches, 1):
        loss_of(model, batch).backward()
        inner.step()
        inner.zero_grad()
        if step % local_steps and step < len(micro_batches):
            continue
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                ends = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
                dist.all_gather(ends, parameter.detach())
                parameter.grad = start[name] - torch.stack(ends).mean(0)
        model.load_state_dict(start)
        outer.step()
        outer.zero_grad()
        start = {name: value.clone() for name, value in model.state_dict().items()}


def by_counting_up(compute, payload, world_size, link, share):
    """The ring by hand, and one step more until it fits."""
    messages = 2 * (world_size - 1)
    average = messages * link.latency + messages / world_size * payload / link.bandwidth
    steps = 1
    while average > share * (steps * compute + average):
        steps += 1
    return steps


def by_halving(compute, payload, world_size, link, share):
    """The course's own time of a step, and a search that halves."""

    def communicates(steps):
        whole = local_sgd_step_seconds(compute, payload, world_size, link, steps)
        return (whole - compute) / whole

    low, high = 0, 1
    while communicates(high) > share:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if communicates(middle) > share else (low, middle)
    return high


def with_a_factor(change, error):
    """Multiplied by 127 and divided by the largest value; numbers near 0 by zero are taken care of at the end."""
    together = (change + error).detach()
    largest = together.abs().amax()
    codes = torch.nan_to_num(together * 127 / largest).round().clamp(-127, 127).to(torch.int8)
    scale = largest / 127
    return codes, scale, together - scale * codes.to(together.dtype)


# ---------------------------------------------------------------- the exercises

EXERCISES = (
    Exercise(
        name="train_diloco",
        points=4,
        devices=2,
        probe=probes.train_diloco,
        oracle=oracles.train_diloco,
        mistakes=mistakes.train_diloco,
        hints=(
            "Which weights must the model hold when `outer.step()` is called, and what must stand in `.grad`?",
            "Keep copies of the trained parameters before the first step. At an outer step: .grad = copy - parameter, averaged over the ranks; then the copy goes back into the parameter; then outer.step(), outer.zero_grad(), and new copies.",
            "start = [p.detach().clone() for p in trained]; where a round ends: for p, before in zip(trained, start): p.grad = before - p.detach(); dist.all_reduce(p.grad); p.grad /= dist.get_world_size(); p.data.copy_(before); then outer.step(); outer.zero_grad(); start anew.",
        ),
        also_right=(
            in_one_flat_tensor,
            with_all_gathered,
            {
                MEAN: "",
                GRADIENT: "parameter.grad = (before - parameter.detach()) / dist.get_world_size()",
                ROUND: f"{ROUND}                dist.all_reduce(parameter.grad)\n",
            },
            {
                MEAN: "",
                HEAD: f"{BY_A_HOOK}{HEAD}",
                OUTER: f"            hook = outer.register_step_pre_hook(average)\n{OUTER}            hook.remove()\n",
            },
        ),
    ),
    Exercise(
        name="choose_local_steps",
        points=2,
        probe=probes.choose_local_steps,
        oracle=oracles.choose_local_steps,
        mistakes=mistakes.choose_local_steps,
        hints=(
            "In H steps, how many seconds are computing and how many are the average?",
            "A round takes H * compute + average, with average = all_reduce_seconds(payload, world_size, link). Find the smallest H with average / that <= share.",
            "average <= share * (H * compute + average) means H >= average * (1 - share) / (share * compute); round up, and take at least 1.",
        ),
        also_right=(by_counting_up, by_halving),
    ),
    Exercise(
        name="quantise",
        points=3,
        probe=probes.quantise,
        oracle=oracles.quantise,
        mistakes=mistakes.quantise,
        hints=(
            "What do the receivers get of a number, and what is the difference to what you wanted to send?",
            "wanted = change + error; scale = largest absolute value of wanted / 127; codes = wanted / scale, rounded, as int8; the new error is wanted - codes * scale. What is 0 divided by a scale of 0?",
            "wanted = change + error; scale = wanted.abs().max().item() / 127; where it is 0 take 1.0; codes = (wanted / scale).round().to(torch.int8); return codes, scale, wanted - codes * scale.",
        ),
        also_right=(
            with_a_factor,
            {".item() / 127": " / 127", "codes * scale": "codes.to(wanted.dtype) * scale"},
        ),
    ),
)
