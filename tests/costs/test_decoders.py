"""Decoders: a prediction meets the meter, and the meter shows the logits at the peak."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from trainlean.costs.meter import Meter
from trainlean.costs.predict import predict_run
from trainlean.costs.training import enable_checkpointing
from trainlean.models import model_config, small_decoder


def in_chunks(model, batch):
    """The loss of 5_decoders/1_pytorch, of 32 tokens at a time."""
    hidden = model.model(input_ids=batch["input_ids"]).last_hidden_state[:, :-1].flatten(0, 1)
    targets = batch["labels"][:, 1:].flatten()

    def sum_of(hidden, targets):
        return cross_entropy(hidden @ model.lm_head.weight.T, targets, reduction="sum")

    parts = zip(hidden.split(32), targets.split(32), strict=True)
    return sum(checkpoint(sum_of, *part, use_reentrant=False) for part in parts) / len(targets)


def trained(attention="sdpa", checkpointing=0, precision="fp32", lora=None, loss=None):
    model = small_decoder(attn_implementation=attention)
    if lora:
        from peft import LoraConfig, TaskType, get_peft_model

        model = get_peft_model(
            model, LoraConfig(task_type=TaskType.CAUSAL_LM, r=lora, lora_alpha=lora)
        )
    enable_checkpointing(model, checkpointing)
    ids = torch.arange(2 * 64).view(2, 64)
    parameters = [one for one in model.parameters() if one.requires_grad]
    with Meter() as meter:
        optimizer = torch.optim.AdamW(parameters, fused=True)
        for _ in range(2):
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                batch = {"input_ids": ids, "labels": ids}
                found = loss(model, batch) if loss else model(**batch).loss
            found.backward()
            del found
            optimizer.step()
            optimizer.zero_grad()
    return meter


@pytest.mark.parametrize(
    "settings",
    [
        {"attention": "eager", "checkpointing": 1},
        {"precision": "bf16", "lora": 4},
        {"loss": in_chunks},
    ],
    ids=["eager and checkpointed", "bf16 with an adapter", "loss in chunks"],
)
def test_a_prediction_meets_the_meter(settings):
    setup = {"attention": "sdpa"} | settings
    predicted = predict_run(
        model_config("small-decoder"), micro_batch=2, sequence_length=64, **setup
    )
    assert predicted.peak_bytes == pytest.approx(trained(**setup).peak_bytes, rel=0.005)


def test_the_largest_tensors_at_the_peak_are_the_logits():
    meter = trained()
    logits = 2 * 64 * 4000 * 4
    assert [size for _, size in meter.largest[:3]] == [logits] * 3
    assert meter.largest[3][1] < logits
    assert sum(size for _, size in meter.largest) == meter.peak_bytes


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_only_eager_attention_copies_keys_that_heads_share(attention):
    """What 5_decoders/1_pytorch says of a layer of Llama: sdpa keeps keys and values as they are, where no mask is given."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from transformers.models.llama.modeling_llama import eager_attention_forward

    heads, shared, length, head_size = 8, 2, 32, 16
    layer = SimpleNamespace(num_key_value_groups=heads // shared, is_causal=True, training=True)
    future = torch.full((length, length), -torch.inf).triu(1)
    forward, mask = {
        "eager": (eager_attention_forward, future),
        "sdpa": (ALL_ATTENTION_FUNCTIONS["sdpa"], None),
    }[attention]
    q, k, v = (
        torch.randn(1, number, length, head_size, requires_grad=True) * 1
        for number in (heads, shared, shared)
    )
    kept = {}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        forward(layer, q, k, v, mask, scaling=head_size**-0.5)
    one, of_shared = (4 * number * length * head_size for number in (heads, shared))
    expected = {
        "eager": 3 * one + 4 * heads * length**2,
        "sdpa": 2 * one + 2 * of_shared + 4 * heads * length,
    }
    assert sum(kept.values()) == expected[attention]
