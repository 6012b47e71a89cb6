"""What the lesson 3_local_sgd/1b_averages_and_bytes asks besides its exercises."""

from exercises_tests.asking.own_runs import averager_run
from exercises_tests.asking.sizes import Parameters
from trainlean.exercises.ordering import Puzzle
from trainlean.exercises.questions import question
from trainlean.exercises.recall import by_exercise

BECAUSE = question(
    "first average of torch, period 4",
    "Why did the averager meet so early?",
    (
        "Its counter begins at 0, and 0 is a multiple of every period.",
        "It asks whether an average is due before it counts the step.",
    ),
    (
        "The ranks begin with different weights, which must be averaged at once.",
        "They begin equal. Where they do not, a broadcast is the cure.",
    ),
    (
        "In the first step the optimizer averages gradients, as DDP does.",
        "No gradient is sent here: `PostLocalSGDOptimizer` averages parameters, behind its optimizer's step.",
    ),
)


LINES = {
    "train_with_averager": Puzzle(
        (
            "first average one step late",
            "the last, shorter period left out",
            "rank 0's weights in place of the last average",
        ),
        exchange=((9, 10),),
        moves=((4, 7, 2),),
    ),
}

OWN_RUNS = {
    "train_with_averager": lambda loop: averager_run(loop, 10, 2),
}


def payload(draw):
    millions, frozen = draw.choice((10, 20, 50)), draw.choice((0, 50))
    k, devices, h = draw.choice((1, 2, 4)), draw.choice((2, 4)), draw.choice((4, 8))
    steps = draw.randint(9, 30)
    half = f", {frozen} % of them frozen" if frozen else ""
    return by_exercise(
        "communication",
        Parameters(millions * 10**6, frozen / 100),
        steps * k * devices,
        devices,
        k,
        h,
        ask=f"{millions} million weights in `float32`{half}; {steps * k * devices} micro-batches for {devices} devices, {k} accumulation step{'s' * (k > 1)}, Local SGD with H = {h}. How many MB does one rank hand over in all?",
        says="The bytes of what is trained, once for each average; the last, shorter period has one, too.",
        mistakes=(
            "every step, whatever H",
            "last average forgotten",
            "micro-batches in place of optimizer steps",
            "frozen weights counted",
            "devices not counted",
        ),
        shown=lambda found: f"{found[1] / 1e6:,.0f} MB",
    )


RECALL = {"payload": payload}
