"""The exercises of the lesson 5_decoders/1_pytorch."""

import torch
from torch.nn.functional import cross_entropy

from trainlean.exercises.exercise import Exercise

from . import mistakes, oracles, probes
from .mistakes import (
    ADD,
    BACKWARD,
    END,
    FOUND,
    INNER,
    MASTERS,
    PARTS,
    RESULT,
    STEP,
)

# ---------------------------------------------------------------- other right ways


class _Chunks(torch.autograd.Function):
    """The gradients are computed in the forward pass, as torch's own loss does it."""

    @staticmethod
    def forward(ctx, hidden, head, targets, chunk):
        total, of_hidden, of_head = 0.0, torch.zeros_like(hidden), torch.zeros_like(head)
        count = targets.ne(-100).sum()
        for start in range(0, len(hidden), chunk):
            part = slice(start, start + chunk)
            with torch.enable_grad():
                some, whole = hidden[part].detach(), head.detach()
                some.requires_grad_(), whole.requires_grad_()
                loss = cross_entropy(some @ whole.T, targets[part], reduction="sum") / count
                loss.backward()
            total += loss.item()
            of_hidden[part] = some.grad
            of_head += whole.grad
        ctx.save_for_backward(of_hidden, of_head)
        return hidden.new_tensor(total)

    @staticmethod
    def backward(ctx, gradient):
        of_hidden, of_head = ctx.saved_tensors
        return of_hidden * gradient, of_head * gradient, None, None


def by_a_function(hidden, head, targets, chunk):
    return _Chunks.apply(hidden, head, targets, chunk)


def by_torch(hidden, head, targets, chunk):
    options = torch.nn.LinearCrossEntropyOptions(
        chunking_method=None, batch_chunk_size=min(chunk, len(hidden))
    )
    return torch.nn.functional.linear_cross_entropy(hidden, head, targets, options=options)


# ---------------------------------------------------------------- the exercises

EXERCISES = (
    Exercise(
        name="chunked_loss",
        points=3,
        probe=probes.chunked_loss,
        oracle=oracles.chunked_loss,
        truth="the right one",
        mistakes=mistakes.chunked_loss,
        hints=(
            "What does autograd keep of a chunk when you compute its loss plainly, and how did you prevent that for a layer?",
            "Add up the *sums* of the chunks' losses, each from a checkpointed function of hidden states, head and targets, and divide once.",
            'A function with `cross_entropy(h @ head.T, t, reduction="sum")`; checkpoint(..., use_reentrant=False) for each pair of hidden.split(chunk), targets.split(chunk); the total divided by targets.ne(-100).sum().',
        ),
        also_right=(
            {
                f"    total = 0\n    for some_hidden, some_targets in {PARTS}:\n{ADD}": f"""    total = sum(
        checkpoint(lambda h, t: sum_of(h, head, t), h, t, use_reentrant=False)
        for h, t in {PARTS}
    )
"""
            },
            {
                ', reduction="sum"': ', reduction="sum") / targets.ne(-100).sum(',
                END: "return total",
            },
            {"use_reentrant=False": "use_reentrant=True"},  # the head is among what it is handed
            by_a_function,
            by_torch,
        ),
    ),
    Exercise(
        name="choose_chunk",
        points=2,
        probe=probes.choose_chunk,
        oracle=oracles.choose_chunk,
        mistakes=mistakes.choose_chunk,
        hints=(
            "How many bytes does one token need at the peak: how many copies, of how many numbers, of how many bytes?",
            "What is left of the budget beside the rest, divided by the bytes of one token, rounded down; then look at the two ends.",
            "max(0, min(tokens, (budget - rest) // (3 * 4 * vocabulary)))",
        ),
        also_right=(
            {FOUND: "min(max(budget - rest, 0) // each, tokens)"},
            {
                f"return {FOUND}": "return max([0, *(n for n in range(1, tokens + 1) if rest + n * each <= budget)])"
            },
        ),
    ),
    Exercise(
        name="attention_keeps",
        points=2,
        probe=probes.attention_keeps,
        oracle=oracles.attention_keeps,
        truth="what autograd keeps",
        mistakes=mistakes.attention_keeps,
        hints=(
            "Which factors does each product of matrices keep, and which numbers did the text name for the fused attention?",
            "Call `kept` for a length of 1 and of 2, with one head of size 1, and count in numbers of 4 bytes.",
            "eager: queries, keys, values and the softmax [batch, heads, length, length]. sdpa: queries, keys, values, output, and one number for each query of each head.",
        ),
        also_right=(
            {
                RESULT: 'return {"sdpa": 4 * batch * heads * length * (4 * head_size + 1), "eager": 4 * batch * heads * length * (3 * head_size + length)}'
            },
        ),
    ),
    Exercise(
        name="train_with_masters",
        points=3,
        probe=probes.train_with_masters,
        oracle=oracles.train_with_masters,
        truth="the right one",
        mistakes=mistakes.train_with_masters,
        hints=(
            "Two sums must not be rounded to bf16: which two, and in which tensors are they kept?",
            "After each backward(): add `weight.grad.float()` to the master's gradient and set `weight.grad = None`. After each step: copy the masters into the weights.",
            "masters = [w.detach().float() ...]; optimizer = make_optimizer(masters); master.grad adds up; step and zero_grad when a window is complete; then weight.copy_(master) under no_grad.",
        ),
        also_right=(
            {
                BACKWARD: "loss_function(model(inputs), targets).backward()",
                INNER: INNER.replace(
                    "weight.grad.float()", "weight.grad.float() / accumulation_steps"
                ),
            },
            {
                MASTERS: "masters = [torch.nn.Parameter(weight.detach().clone().float()) for weight in weights]",
                INNER: """        for weight, master in zip(weights, masters):
            if master.grad is None:
                master.grad = torch.zeros_like(master)
            master.grad += weight.grad
            weight.grad = None
""",
                STEP: "            optimizer.step()\n            optimizer.zero_grad(set_to_none=False)\n",
            },
        ),
    ),
)
