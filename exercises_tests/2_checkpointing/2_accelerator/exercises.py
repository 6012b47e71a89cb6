"""The exercises of the lesson 2_checkpointing/2_accelerator."""

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import CALL, LIST, PREPARE, SAME_OUTPUT, SWITCH, TWICE

EXERCISES = (
    Exercise(
        name="train_checkpointed",
        points=2,
        probe=probes.train_checkpointed,
        oracle=oracles.train_checkpointed,
        truth="the right one",
        mistakes=mistakes.train_checkpointed,
        hints=(
            "Which single line turns checkpointing on, and does it belong inside the loop or before it?",
            "Before `prepare`: on two devices the prepared model is wrapped, and the wrapper has no such method.",
            "model.train() and model.activation_checkpointing_enable() as the first lines; then the accumulation loop as it was.",
        ),
        also_right=(
            {SWITCH: "    model.activation_checkpointing_enable()\n"},
            {
                SWITCH: '    getattr(model, "gradient_checkpointing_enable", model.activation_checkpointing_enable)()\n'
            },
            {SWITCH: "", PREPARE: PREPARE + SWITCH},
            {
                SWITCH: """    for layer in model.bert.encoder.layer:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
"""
            },
            # transformers lets the embeddings require gradients
            {"switch_on(model)": 'switch_on(model, {"use_reentrant": True})'},
        ),
    ),
    Exercise(
        name="run_checkpointed",
        points=3,
        probe=probes.run_checkpointed,
        oracle=oracles.run_checkpointed,
        truth="the right one",
        mistakes=mistakes.run_checkpointed,
        hints=(
            "What is the one difference between `block(hidden, padding)` and the checkpointed call?",
            "`checkpoint(function, *arguments, use_reentrant=False)` calls function(*arguments) now, and again in the backward pass.",
            "for block in blocks: hidden = checkpoint(block, hidden, padding, use_reentrant=False)",
        ),
        also_right=(
            {"padding, use": "padding=padding, use"},
            {CALL: f"{CALL} if block.training else block(hidden, padding)"},
            {"use_reentrant=False": "use_reentrant=False, early_stop=False"},
            {"block, hidden, padding": "lambda value, block=block: block(value, padding), hidden"},
        ),
    ),
    Exercise(
        name="runs_twice_alike",
        points=2,
        probe=probes.runs_twice_alike,
        oracle=oracles.runs_twice_alike,
        truth="the right one",
        mistakes=mistakes.runs_twice_alike,
        hints=(
            "What would the backward pass find if the block ran again, and can you try it out here?",
            "Before the second run set torch's random state back (torch.get_rng_state, torch.set_rng_state); compare outputs, and buffers after the first run with buffers after the second.",
            "state = torch.get_rng_state(); first = block(*inputs); buffers = [b.clone() for b in block.buffers()]; torch.set_rng_state(state); second = block(*inputs); ...",
        ),
        also_right=(
            {SAME_OUTPUT: "torch.allclose(first, second)"},
            {
                TWICE: """    from copy import deepcopy

    trial, runs = deepcopy(block), []
    for _ in range(2):
        with torch.random.fork_rng(devices=[]):
            output = trial(*inputs).detach()
        runs.append([output, *(buffer.clone() for buffer in trial.buffers())])
    return all(
        one.shape == other.shape and torch.allclose(one, other) for one, other in zip(*runs)
    )
"""
            },
        ),
    ),
    Exercise(
        name="untrained_parameters",
        points=1,
        probe=probes.untrained_parameters,
        oracle=oracles.untrained_parameters,
        truth="the right one",
        mistakes=mistakes.untrained_parameters,
        hints=(
            "Which two things must be true of a parameter that was forgotten?",
            "`model.named_parameters()` gives pairs of name and parameter; a parameter has `requires_grad` and `grad`.",
            "[name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]",
        ),
        also_right=(
            {"model.named_parameters()": "reversed(list(model.named_parameters()))"},
            {LIST: f"tuple({LIST})"},
        ),
    ),
)
