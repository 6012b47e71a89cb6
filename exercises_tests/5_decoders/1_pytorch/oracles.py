"""What must be seen in the lesson 5_decoders/1_pytorch: whole logits, what autograd really keeps, sums in float64."""

import math

import numpy as np
import torch
from torch.nn.functional import log_softmax, scaled_dot_product_attention

from exercises_tests.probing.scores import of_chunks

from .probes import (
    IGNORED,
    LEARNING_RATE,
    LOSS_CASES,
    MASTER_CASES,
    bytes_of_scores,
    draw_budgets,
    draw_loss,
    draw_masters,
    draw_shapes,
    loss_in_float32,
    masters_shown,
    name_budget,
    name_loss,
    name_masters,
    name_shape,
    vector,
)


def chunked_loss(seed):
    """By the logits of all tokens at once, in float64."""
    shown = {}
    for case in LOSS_CASES:
        hidden, head, targets = draw_loss(case, seed)
        name, chunk = name_loss(case), case[1]
        wide = [tensor.detach().double().requires_grad_() for tensor in (hidden, head)]
        counted = targets != IGNORED
        scores = log_softmax(wide[0] @ wide[1].T, dim=1)[counted]
        loss = -scores.gather(1, targets[counted, None]).mean()
        loss.backward()
        shown[f"the loss ({name})"] = loss.detach().numpy()
        shown[f"whether the loss has a gradient ({name})"] = True
        for what, tensor, truth in zip(
            ("the hidden states", "the head"), (hidden, head), wide, strict=True
        ):
            if tensor.requires_grad:
                shown[f"the gradient of {what} ({name})"] = truth.grad.float().numpy()
        shown |= of_chunks(name, chunk, widest=chunk, kept=0, most=chunk)
        shown[f"whether the arguments are as they were ({name})"] = True
        shown[f"whether what is frozen still asks for no gradient ({name})"] = True
    return shown


def choose_chunk(seed):
    """By trying every number of tokens, with bytes that were measured."""
    shown = {}
    for tokens, vocabulary, rest, budget in draw_budgets(seed):
        case = name_budget(tokens, vocabulary, rest, budget)
        fits = [
            chunk
            for chunk in range(1, tokens + 1)
            if rest + bytes_of_scores(vocabulary, chunk) <= budget
        ]
        shown[f"whether the number of tokens is whole ({case})"] = True
        shown[f"the number of tokens in a chunk ({case})"] = max(fits, default=0)
    return shown


def attention_keeps(seed):
    """By asking autograd."""
    shown = {}
    for shape in draw_shapes(seed):
        shown[f"whether attention is run ({name_shape(*shape)})"] = False
        for kind, attention in (("eager", _eager), ("sdpa", _fused)):
            shown[f"the bytes that {kind} keeps ({name_shape(*shape)})"] = _kept(attention, shape)
    return shown


def _eager(q, k, v):
    length, head_size = q.shape[-2:]
    future = torch.full((length, length), -math.inf).triu(1)
    return (q @ k.transpose(-1, -2) / math.sqrt(head_size) + future).softmax(-1) @ v


def _fused(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def _kept(attention, shape):
    inputs = [torch.ones(shape, requires_grad=True) for _ in range(3)]
    sizes = {}

    def note(tensor):
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        attention(*inputs)
    return sum(sizes.values())


def train_with_masters(seed):
    """Each micro-batch's gradient alone, all of a window added up in float64, and SGD by hand."""
    shown = {}
    for case in MASTER_CASES:
        model, micro_batches = draw_masters(case, seed)
        trained = [one for one in model.parameters() if one.requires_grad]
        masters, steps = vector(trained), case[1]
        gradients, of_masters, of_models = [], [], []
        for start in range(0, len(micro_batches), steps):
            parts = [
                vector(torch.autograd.grad(loss_in_float32(model(inputs), targets), trained))
                for inputs, targets in micro_batches[start : start + steps]
            ]
            gradients.append(np.mean(parts, axis=0))
            masters = masters - LEARNING_RATE * gradients[-1]
            of_masters.append(masters)
            _write(masters, trained)
            of_models.append(vector(model.parameters()))
        name = name_masters(case)
        shown[f"the number of optimizers made ({name})"] = 1
        shown[f"whether the optimizer's tensors can be read twice ({name})"] = True
        shown[f"the number of steps in the optimizer's state ({name})"] = len(gradients)
        shown |= masters_shown(name, gradients, of_masters, of_models, "float32")
        shown[f"the type of the model's weights ({name})"] = "bfloat16"
        shown[f"what every .grad of the model is at the end ({name})"] = "None"
        shown[f"whether a backward pass afterwards leaves gradients in the model ({name})"] = True
        shown[f"whether the list of micro-batches is as it was ({name})"] = True
    return shown


def _write(values, weights):
    at = 0
    with torch.no_grad():
        for weight in weights:
            part = values[at : at + weight.numel()]
            weight.copy_(torch.from_numpy(part).float().view_as(weight))
            at += weight.numel()
