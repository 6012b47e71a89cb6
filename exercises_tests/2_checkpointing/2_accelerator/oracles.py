"""What must be seen in the lesson 2_checkpointing/2_accelerator: plain training, and by hand what is run again."""

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from exercises_tests.probing.toys import Recorder, training, windows

from .probes import (
    AFTERWARDS,
    BLOCKS,
    INPUT_GRADIENT,
    LAYERS,
    LEARNING_RATE,
    MICRO_BATCH,
    PREPARED,
    SEEDED,
    STACKS,
    STATE_AFTER,
    WHOLE_WINDOWS,
    WITH_A_REST,
    WITHIN,
    Block,
    changes,
    draw_classifier,
    draw_lost,
    draw_stack,
    draw_twice,
    gradients_by_part,
    listed,
    looked_at,
    one_after_the_other,
    one_thread,
    state_of,
)


@one_thread()
def train_checkpointed(seed):
    """A plain PyTorch loop without Accelerate and without checkpointing; each layer would be run again once, the last one first."""
    shown = {}
    for case in (*WHOLE_WINDOWS, WITH_A_REST):
        model, samples, _ = draw_classifier(case, seed)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        recorder = Recorder(model, optimizer)
        for window in windows(
            list(DataLoader(samples, batch_size=MICRO_BATCH)), case.accumulation_steps
        ):
            for batch in window:
                loss = cross_entropy(model(input_ids=batch["input_ids"]).logits, batch["labels"])
                (loss / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
        shown |= looked_at(
            case,
            training(case, recorder),
            ", ".join(str(number) for number in range(LAYERS, 0, -1)),
        )
        shown[f"{PREPARED} ({case})"] = 3
        shown[f"{SEEDED} ({case})"] = 0
        shown[f"{WITHIN} ({case})"] = 0
    return shown


@one_thread()
def run_checkpointed(seed):
    """The blocks one after the other, with everything kept; by hand, the last block is run again first."""
    shown = {}
    for name, kind in STACKS.items():
        where = f"a model{name}"
        model, tokens, padding, labels = draw_stack(one_after_the_other, seed, **kind)
        torch.default_generator.manual_seed(seed)
        output = model(tokens, padding)
        shown[f"the output ({where})"] = output
        cross_entropy(output, labels).backward()
        order = [
            2 if kind.get("tied") and number == 3 else number for number in range(BLOCKS, 0, -1)
        ]
        shown[f"the order in which blocks are run again in the backward pass ({where})"] = (
            ", ".join(map(str, order))
        )
        shown |= gradients_by_part(model, where)
        if kind.get("frozen"):
            shown[f"{INPUT_GRADIENT} ({where})"] = False
        model.eval()
        shown[f"the output in eval mode ({where})"] = model(tokens, padding)
        shown[f"whether blocks are run again when they are called plainly afterwards ({where})"] = (
            False
        )
    return shown


def untrained_parameters(seed):
    """By hand from how the models were made: what was set to None, and the whole first block where the reentrant variant lost it."""
    shown = {}
    first = [f"blocks.0.{name}" for name, _ in Block().named_parameters()]
    nothing = state_of(Block())
    for where, (reentrant, _, loses) in AFTERWARDS.items():
        names = [*(draw_lost(seed) if loses else []), *(first if reentrant else [])]
        shown |= listed(where, names) | changes(nothing, nothing, where)
    return shown


MAY_RUN_TWICE = {"plain", "dropout", "batch norm in eval mode", "a buffer that the first run fills"}


def runs_twice_alike(seed):
    """As the blocks were made."""
    return {name: kind in MAY_RUN_TWICE for kind, name, _, _ in draw_twice(seed)} | {
        STATE_AFTER: True
    }
