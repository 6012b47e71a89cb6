# %% cured_blocks: right
import functools

from torch.utils.checkpoint import checkpoint


def cured_blocks(blocks, hidden):
    run = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=True)
    return functools.reduce(lambda value, block: run(block, value), blocks, hidden)


# %% cured_blocks: right
def cured_blocks(blocks, hidden):
    if not hidden.requires_grad:
        hidden = hidden.clone().requires_grad_(True)
    for block in blocks:
        hidden = checkpoint(block, hidden, use_reentrant=True)
    return hidden


# %% cured_blocks: right
class Again(torch.autograd.Function):
    """Checkpointing by hand: weights are inputs, too, and the random state is put back."""

    @staticmethod
    def forward(ctx, block, hidden, *weights):
        ctx.block, ctx.state = block, torch.get_rng_state()
        ctx.save_for_backward(hidden)
        with torch.no_grad():
            return block(hidden)

    @staticmethod
    def backward(ctx, gradient):
        now = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        hidden = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.block(hidden)
        torch.set_rng_state(now)
        weights = list(ctx.block.parameters())
        wanted = [hidden, *(w for w in weights if w.requires_grad)]
        found = dict(zip(map(id, wanted), torch.autograd.grad(out, wanted, gradient)))
        return None, found[id(hidden)], *(found.get(id(w)) for w in weights)


def cured_blocks(blocks, hidden):
    for block in blocks:
        hidden = Again.apply(block, hidden, *block.parameters())
    return hidden


# %% cured_blocks: wrong, random state not kept
def cured_blocks(blocks, hidden):
    for block in blocks:
        hidden = checkpoint(block, hidden, preserve_rng_state=False, use_reentrant=False)
    return hidden


# %% cured_blocks: wrong, still reentrant
# The default of torch 2.13 is the reentrant variant.
def cured_blocks(blocks, hidden):
    for block in blocks:
        hidden = checkpoint(block, hidden)
    return hidden


# %% cured_blocks: wrong
# Every other block only.
def cured_blocks(blocks, hidden):
    for number, block in enumerate(blocks):
        if number % 2:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        else:
            hidden = block(hidden)
    return hidden


# %% cured_blocks: wrong, one checkpoint around all blocks
# one checkpoint around all
def cured_blocks(blocks, hidden):
    return checkpoint(lambda x: nn.Sequential(*blocks)(x), hidden, use_reentrant=False)


# %% cured_blocks: wrong, cut off from what stands before
# detached: what stands before the blocks gets no gradient
def cured_blocks(blocks, hidden):
    hidden = hidden.detach().requires_grad_()
    for block in blocks:
        hidden = checkpoint(block, hidden)
    return hidden


# %% cured_blocks: wrong, the last block not checkpointed
def cured_blocks(blocks, hidden):
    from torch.utils.checkpoint import checkpoint_sequential

    return checkpoint_sequential(list(blocks), len(blocks), hidden, use_reentrant=False)


# %% cured_blocks: wrong, frozen blocks without autograd
def cured_blocks(blocks, hidden):
    # a block that trains nothing needs no graph, it is thought
    for block in blocks:
        if any(p.requires_grad for p in block.parameters()):
            hidden = checkpoint(block, hidden, use_reentrant=False)
        else:
            with torch.no_grad():
                hidden = block(hidden)
    return hidden


# %% cured_blocks: right
import torch
from torch.utils.checkpoint import checkpoint


def cured_blocks(blocks, hidden):
    if not hidden.requires_grad:
        hidden = hidden.detach().requires_grad_()
    for block in blocks:
        hidden = checkpoint(block, hidden, use_reentrant=True)
    return hidden


# %% cured_blocks: wrong, a block that stands in the list twice met once
from torch.utils.checkpoint import checkpoint


def cured_blocks(blocks, hidden):
    for block in dict.fromkeys(blocks):
        hidden = checkpoint(block, hidden, use_reentrant=False)
    return hidden


# %% cured_blocks: wrong, more segments than blocks
from torch.utils.checkpoint import checkpoint_sequential


def cured_blocks(blocks, hidden):
    model = nn.Sequential(*blocks)
    return checkpoint_sequential(model, segments=len(blocks), input=hidden, use_reentrant=False)


# %% cured_blocks: wrong, dropout switched off
def cured_blocks(blocks, hidden):
    for block in blocks:
        block.eval()
    for block in blocks:
        hidden = checkpoint(block, hidden, use_reentrant=False)
    return hidden


# %% cured_blocks: wrong, random numbers from a seed of one's own
def cured_blocks(blocks, hidden):
    torch.manual_seed(0)
    for i in range(len(blocks)):
        hidden = checkpoint(blocks[i], hidden, use_reentrant=False)
    return hidden


# %% cured_blocks: wrong, the first block not checkpointed
def cured_blocks(blocks, hidden):
    for block in blocks:
        if hidden.requires_grad:
            hidden = checkpoint(block, hidden, use_reentrant=True)
        else:
            hidden = block(hidden)
    return hidden


# %% cured_blocks: wrong, more segments than blocks
from torch.utils.checkpoint import checkpoint_sequential


def cured_blocks(blocks, hidden):
    return checkpoint_sequential(list(blocks), len(blocks) + 1, hidden, use_reentrant=False)


# %% cured_blocks: wrong, more segments than blocks
from torch.utils.checkpoint import checkpoint_sequential


def cured_blocks(blocks, hidden):
    return checkpoint_sequential(list(blocks), 4, hidden, use_reentrant=False)


# %% cured_blocks: wrong, dropout switched off
from torch.utils.checkpoint import checkpoint


def cured_blocks(blocks, hidden):
    for block in blocks:
        for module in block.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0
        hidden = checkpoint(block, hidden, use_reentrant=False)
    return hidden
