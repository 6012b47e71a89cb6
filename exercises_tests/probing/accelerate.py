"""Accelerate, and so the Trainer, for probes: its process-wide state fresh, on the CPU, on one rank or on threads as ranks."""

import contextlib
import os
from unittest import mock

import torch

ON_THE_CPU = "true"  # whatever an answer says; where a test asks what it says, "false"


@contextlib.contextmanager
def fresh_accelerate():
    """Accelerate as if nothing had used it yet, and on the CPU; afterwards its process-wide state is what it was.

    Makes the short trainings of probes short, too: on one thread.
    """
    from accelerate.state import AcceleratorState, GradientState, PartialState

    states = AcceleratorState, GradientState, PartialState
    kept = [dict(state._shared_state) for state in states]
    on_cpu, threads = os.environ.get("ACCELERATE_USE_CPU"), torch.get_num_threads()
    os.environ["ACCELERATE_USE_CPU"] = ON_THE_CPU
    torch.set_num_threads(1)
    for state in states:
        state._shared_state.clear()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        for state, before in zip(states, kept, strict=True):
            state._shared_state.clear()
            state._shared_state.update(
                before
            )  # in place: objects made before hold this very dictionary
        os.environ.pop("ACCELERATE_USE_CPU")
        if on_cpu is not None:
            os.environ["ACCELERATE_USE_CPU"] = on_cpu


@contextlib.contextmanager
def accelerate_on_ranks(world_size: int = 2):
    """Accelerate (and so the Trainer) for `exercises_tests.probing.rank_threads.as_ranks`: each thread is a rank with a state of its own, on the CPU."""
    from accelerate.state import (
        AcceleratorState,
        GradientState,
        PartialState,
        ThreadLocalSharedDict,
    )

    launched = {
        "RANK": "0",
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            mock.patch.dict(os.environ, launched)
        )  # as a launcher sets them; the rank itself is asked of torch
        stack.enter_context(fresh_accelerate())
        # Accelerate empties the environment of the whole process while it compares defaults; the other threads would see that.
        stack.enter_context(
            mock.patch("accelerate.utils.environment.clear_environment", contextlib.nullcontext)
        )
        for state in (AcceleratorState, GradientState, PartialState):
            stack.enter_context(mock.patch.object(state, "_shared_state", ThreadLocalSharedDict()))
        yield
