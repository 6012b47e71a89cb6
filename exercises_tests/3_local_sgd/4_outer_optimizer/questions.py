"""What the lesson 3_local_sgd/4_outer_optimizer asks besides its exercises."""

import torch

from exercises_tests.asking.own_runs import diloco_run
from trainlean.costs.links import Link
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise, computed

OPTIONAL = True

BECAUSE = (
    question(
        "weight after that outer step",
        "Both ranks wanted a larger weight. Why did it become smaller?",
        (
            "An optimizer subtracts its gradient, and the mean change was given as one.",
            "A gradient points to where the loss grows. The mean change points to where the ranks have come, so it must be handed over with the other sign.",
        ),
        (
            "The ranks disagree, so their mean leads nowhere.",
            "Both have moved in the same direction, one further than the other; so does their mean.",
        ),
        (
            "The outer learning rate was too large.",
            "A smaller one makes the step shorter. It goes in the wrong direction all the same.",
        ),
    )
    | question(
        "DiLoCo (outer learning rate 1, no momentum) against Local SGD",
        "Why is this exactly Local SGD?",
        (
            "Start minus (start minus mean) is the mean.",
            "The outer step takes away from the start what the average is behind it, and lands on the average.",
        ),
        (
            "The period is so short that the ranks hardly differ.",
            "They differ after each period; the two methods agree for any H.",
        ),
        (
            "AdamW makes the length of a gradient irrelevant.",
            "AdamW is the inner optimizer, the same in both. The outer one is plain SGD, which takes its gradient as it is.",
        ),
    )
    | question(
        "ranks from which 8 bits save nothing",
        "What eats up the saving when there are more ranks?",
        (
            "Each rank passes on the codes of all the others.",
            "What an all-gather sends grows with the ranks; a ring all-reduce sends less than two payloads, however many there are.",
        ),
        (
            "With more ranks the codes need more bits.",
            "Nobody adds codes up here, so each stays in its 8 bits.",
        ),
        (
            "Each rank sends its scale, too.",
            "That is one number for each rank, beside all the codes of a model.",
        ),
    )
)


LINES = {
    "train_diloco": Puzzle(
        ("the wrong sign", "no outer step at the end", "the start is no copy"),
        exchange=((10, 11), (10, 12), (11, 12), (14, 15)),
        moves=((4, 6, 2), (4, 15, 2)),
    ),
}

OWN_RUNS = {
    "train_diloco": lambda loop: diloco_run(loop, 10, 2),
}


def local_steps(draw):
    gigabytes, ranks = draw.choice((1, 2, 4)), draw.choice((4, 8))
    compute, percent = draw.choice((0.5, 1.0, 2.0)), draw.choice((10, 20, 40))
    link = Link(0.001, draw.choice((50, 100, 200)) * 1e6)
    return by_exercise(
        "choose_local_steps",
        compute,
        gigabytes * 1e9,
        ranks,
        link,
        percent / 100,
        ask=f"{ranks} ranks average {gigabytes} GB in a ring, over a link of {link.bandwidth / 1e6:.0f} MB/s with 1 ms latency. A step computes {compute:g} s. Which is the smallest H with which averages take at most {percent} % of all the time?",
        says="The average's seconds, spread over H steps, are then at most that share of computing and averages together.",
        mistakes=(
            "share of the computing",
            "shares exchanged",
            "payload through the link once",
            "as much as a driver would send",
        ),
    )


def received(draw):
    change, error = draw.randint(21, 49) / 100, draw.randint(21, 45) / 100
    scale = draw.choice((1, 2))
    return by_exercise(
        "quantise",
        torch.tensor([scale * change, 127.0 * scale]),
        torch.tensor([scale * error, 0.0]),
        ask=f"With error feedback, in 8 bits: a number is to change by {scale * change:.2f}, and an error of {scale * error:.2f} is left from earlier rounds. The largest number that is to be sent is {127 * scale}. Which error is kept for the next round?",
        says="Change and error together are rounded to a whole number of scales; what is missing then is kept.",
        mistakes=(
            "earlier errors not sent",
            "the error forgets the earlier one",
            "errors added up",
            "the error with the wrong sign",
            "rounded towards zero",
        ),
        shown=lambda found: f"{found[2][0].item() + 0:.2f}",
    )


def outer_step(draw):
    start, rate = draw.randint(2, 9), draw.choice((0.5, 0.7))
    ends = [start + draw.choice((1, 2, 3)), start + draw.choice((4, 5, 6))]
    mean = sum(ends) / len(ends)

    def after(gradient):
        weight = torch.tensor([float(start)])
        weight.grad = torch.tensor([float(gradient)])
        torch.optim.SGD([weight], lr=rate).step()
        return f"{weight.item():.4g}"

    return computed(
        f"DiLoCo with two ranks: a weight begins the round at {start} and ends it at {ends[0]} and {ends[1]}. The outer optimizer is SGD with learning rate {rate}. Where does the next round begin?",
        (
            after(start - mean),
            "From the start, a part of the way to the mean of the ends.",
        ),
        [
            (after(mean - start), "That is the wrong sign: the outer gradient is start minus end."),
            (f"{mean:.4g}", "That is Local SGD, which goes all of the way to the mean."),
            (
                after(sum(start - end for end in ends)),
                "The outer gradient is the mean over the ranks, not the sum.",
            ),
        ],
    )


RECALL = {"outer step": outer_step, "local steps": local_steps, "received": received}
