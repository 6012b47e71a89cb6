"""The exercises of the lesson 3_local_sgd/2_accelerator."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import H_TIMES_K, UNGUARDED, by_hand


def counted_in_a_loop(
    micro_batches, accumulation_steps, local_steps, parameters, model_bytes, guarded
):
    """The counter of LocalSGD, micro-batch by micro-batch."""
    averages = calls = 0
    for index in range(micro_batches):
        if not guarded or (index + 1) % accumulation_steps == 0 or index + 1 == micro_batches:
            calls += 1
            if calls == local_steps:
                averages, calls = averages + 1, 0
    averages += 1
    return [averages, parameters * averages, model_bytes * averages]


EXERCISES = (
    Exercise(
        name="train_locally",
        points=3,
        devices=probes.RANKS,
        probe=probes.train_locally,
        oracle=oracles.train_locally,
        truth="that of two models averaged by hand",
        mistakes=mistakes.train_locally,
        hints=(
            "What does `local_sgd.step()` count, and in which blocks must it be called so that it counts optimizer steps?",
            "Switch checkpointing on, prepare all three, put `with LocalSGD(accelerator=..., model=..., local_sgd_steps=...) as local_sgd:` around the whole loop.",
            "The accumulation loop as you know it, and as the last line of the block: if accelerator.sync_gradients: local_sgd.step().",
        ),
        also_right=(by_hand(), {**UNGUARDED, **H_TIMES_K}),
    ),
    Exercise(
        name="local_sgd_traffic",
        points=2,
        probe=probes.local_sgd_traffic,
        oracle=oracles.local_sgd_traffic,
        truth="what accelerate's LocalSGD makes",
        mistakes=mistakes.local_sgd_traffic,
        hints=(
            "How often is `local_sgd.step()` called in one pass, with the guard and without it?",
            "averages = calls // H + 1; calls are the optimizer steps (rounded up) or the micro-batches.",
            "calls = -(-micro_batches // accumulation_steps) if guarded else micro_batches; each average sends every parameter once.",
        ),
        also_right=(counted_in_a_loop,),
    ),
)
