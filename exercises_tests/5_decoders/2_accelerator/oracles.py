"""What must be seen in the lesson 5_decoders/2_accelerator: one large batch of all ranks, and real states, counted."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from exercises_tests.probing.toys import flat

from .probes import (
    IGNORED,
    RANKS,
    RECIPES,
    SHARES,
    STACKS,
    draw_linears,
    draw_shares,
    draw_sizes,
    draw_stack,
    learned,
    name_linears,
    name_shares,
)


def token_backward(seed):
    """The mean over every target of every rank, in one backward pass."""
    shown = {}
    for lengths in SHARES:
        model, shares = draw_shares(lengths, seed)
        scores, targets = [], []
        for batch in sum(shares, []):
            scores.append(model(batch["input_ids"])[:, :-1].flatten(0, 1))
            targets.append(batch["labels"][:, 1:].flatten())
        cross_entropy(torch.cat(scores), torch.cat(targets), ignore_index=IGNORED).backward()
        case = name_shares(lengths)
        for rank in range(RANKS):
            shown[f"the gradient on rank {rank} ({case})"] = flat(model, gradients=True)
            shown[f"how often rank {rank} sent its gradients ({case})"] = 1
            shown[
                f"whether rank {rank} sent anything more than twice beside its gradients ({case})"
            ] = False
            shown[f"whether the window of rank {rank} is as it was ({case})"] = True
    return shown


def adapter_state(seed):
    """Layers and adapters that are really made, and one step of AdamW."""
    shown = {}
    for linears, rank, weight_bytes in draw_linears(seed):
        # Two weights of 4 bits share a byte.
        kind, in_one = {
            4: (torch.float32, 1),
            2: (torch.bfloat16, 1),
            0.5: (torch.uint8, 2),
        }[weight_bytes]
        weights = [
            torch.ones(outputs, inputs // in_one, dtype=kind) for inputs, outputs, _ in linears
        ]
        adapters = [
            nn.Parameter(torch.ones(shape))
            for inputs, outputs, adapted in linears
            if adapted
            for shape in ((rank, inputs), (outputs, rank))
        ]
        averages = 0
        for adapter in adapters:
            adapter.grad = torch.ones_like(adapter)
        if adapters:
            optimizer = torch.optim.AdamW(adapters)
            optimizer.step()
            averages = sum(
                tensor.nbytes
                for state in optimizer.state.values()
                for name, tensor in state.items()
                if name != "step"
            )
        case = name_linears(linears, rank, weight_bytes)
        shown[f"the bytes of weights ({case})"] = sum(one.nbytes for one in weights + adapters)
        shown[f"the bytes of gradients ({case})"] = sum(one.grad.nbytes for one in adapters)
        shown[f"the bytes of optimizer state ({case})"] = averages
        shown[f"whether the list is as it was ({case})"] = True
    return shown


def make_it_learn(seed):
    """The model without checkpointing; each block would run once more in backward, just before its own backward pass."""
    shown = {}
    for case in STACKS:
        model, ids = draw_stack(case, seed)
        asked = {name for name, one in model.named_parameters() if one.requires_grad}
        shown[f"what is trained ({case})"] = ", ".join(sorted(asked))
        torch.default_generator.manual_seed(seed)
        logits = model.plain(ids)
        logits.square().mean().backward()
        shown[f"whether the output has a gradient ({case})"] = True
        shown |= learned(dict(model.named_parameters()), asked, case)
        for times, name in enumerate(("forward", "backward"), 1):
            shown[f"how often the blocks ran up to the end of {name} ({case})"] = torch.full(
                (len(model.blocks),), times
            ).numpy()
        again = range(len(model.blocks), 0, -1)
        shown[f"the order in which the blocks run again ({case})"] = ", ".join(map(str, again))
        shown[f"whether all weights are as they were ({case})"] = True
    return shown


def state_bytes(seed):
    """Models that are really made and stepped."""
    shown = {}
    for size in draw_sizes(seed):
        for recipe in RECIPES:
            model = nn.Parameter(
                torch.ones(size, dtype=torch.bfloat16 if recipe in ("bf16", "masters") else None)
            )
            stepped = nn.Parameter(model.detach().float()) if recipe == "masters" else model
            stepped.grad = torch.ones_like(stepped)
            optimizer = torch.optim.AdamW([stepped])
            optimizer.step()
            state = optimizer.state[stepped]
            there = [stepped, stepped.grad, state["exp_avg"], state["exp_avg_sq"]]
            there += [model] * (stepped is not model)
            shown[f"the bytes ({recipe}, {size} parameters)"] = sum(one.nbytes for one in there)
    return shown
