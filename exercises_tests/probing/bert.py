"""A tiny BERT and its samples, for the probes that hand over a classifier of transformers."""

import copy
import functools

import torch


def tiny_bert(seed: int, layers: int, **kind):
    """A classifier of so many layers, the same for the same seed; `kind` as `_built` takes it.

    A copy, because building one takes longer than training it.
    """
    return copy.deepcopy(_built(seed, layers, **kind))


@functools.lru_cache(maxsize=8)
def _built(seed, layers, *, dropout=0.0, weights=0.5, tied=False, frozen=False):
    """`weights` is their spread; `tied` layers share a weight, of a `frozen` model embeddings and second layer stay fixed."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=weights,
        use_cache=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = BertForSequenceClassification(config)
    inside = model.bert.encoder.layer
    if tied:
        inside[-1].intermediate.dense.weight = inside[0].intermediate.dense.weight
    if frozen:
        model.bert.embeddings.requires_grad_(False)
        inside[1].requires_grad_(False)
    return model


def draw_samples(count: int, seed: int) -> list[dict]:
    """Texts of six tokens with their labels."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "input_ids": torch.randint(20, (6,), generator=generator),
            "labels": torch.randint(2, (), generator=generator),
        }
        for _ in range(count)
    ]
