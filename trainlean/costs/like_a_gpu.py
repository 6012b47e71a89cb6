"""What CUDA keeps and a CPU does not, for fake tensors on the CPU."""

from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor

from trainlean.costs.instead import instead
from trainlean.costs.operations import tensors_in

aten = torch.ops.aten
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell")


@contextmanager
def like_a_gpu(old):
    """Let the functions that differ keep what they keep on CUDA; those of torch 1.10 when `old`."""
    kept = {
        name: _in_float32(getattr(F, name)) for name in ("layer_norm", "softmax", "cross_entropy")
    }
    if old:
        kept["softmax"] = _softmax_that_keeps_its_input
    kept |= dict(dropout=_dropout, scaled_dot_product_attention=_attention)
    refused: dict = {name: _refusing(getattr(torch._VF, name)) for name in RECURRENT}
    with instead(F, **kept), instead(torch._VF, **refused):
        yield


def _refusing(function):
    """The function for tensors that are real."""

    def refuse(*args, **kwargs):
        if any(isinstance(tensor, FakeTensor) for tensor in tensors_in((args, kwargs))):
            raise ValueError(
                "No prediction for a card: recurrent layers run in kernels of their own there, and what these keep for the backward pass no trace sees. "
                "Predict for the CPU, or measure on the card with `Meter`."
            )
        return function(*args, **kwargs)

    return refuse


def _autocast(tensor, dtype):
    return tensor.to(dtype) if torch.is_autocast_enabled("cpu") else tensor


def _in_float32(function):
    return lambda input, *args, **kwargs: function(_autocast(input, torch.float32), *args, **kwargs)


def _dropout(input, p=0.5, training=True, inplace=False):
    return (
        torch.native_dropout(input, p, True)[0] if training and p else input
    )  # its mask has one byte an element


def _attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    query, key, value = (
        _autocast(tensor, torch.get_autocast_dtype("cpu")) for tensor in (query, key, value)
    )
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        # Heads that share keys: torch has them in the flash kernel, which takes half precision alone, and step by step.
        if attn_mask is None and query.dtype in (torch.float16, torch.bfloat16):
            return aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        return aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True
        )[0]
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, True, dropout_p, is_causal, scale=scale
    )[0]


class _KeepingSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, input, dim):
        output = torch.softmax(input, dim)
        ctx.save_for_backward(input, output)
        ctx.dim = dim
        return output

    @staticmethod
    def backward(ctx, gradient):
        input, output = ctx.saved_tensors
        return torch._softmax_backward_data(gradient, output, ctx.dim, input.dtype), None


def _softmax_that_keeps_its_input(input, dim=-1, **_):
    return _KeepingSoftmax.apply(_autocast(input, torch.float32), dim)
