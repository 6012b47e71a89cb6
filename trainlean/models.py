"""The models of the course: a small BERT that trains on a laptop, and the configuration of BERT-large, to be predicted."""

import json

import torch
from transformers import BertConfig, BertForSequenceClassification

from trainlean.workspace import COURSE


def small_bert_config(**changes) -> BertConfig:
    """The configuration of the small BERT: hidden size 128, 4 layers, 4 heads, 128 positions, the course's vocabulary.

    `changes` are `BertConfig` values by name; attention is eager (so that memory follows the formulas) unless
    `attn_implementation` says otherwise. A name that `BertConfig` does not know is a ValueError.
    """
    return _config("bert-small", changes)


def bert_large_config(**changes) -> BertConfig:
    """The configuration of bert-large-uncased: with the 2-label head, 335,143,938 parameters.

    `changes` as for `small_bert_config`; attention is eager, as it was for the published measurements.
    """
    return _config("bert-large", changes)


def small_bert(
    *, seed: int = 0, num_labels: int = 2, dropout: float = 0.0, **config
) -> BertForSequenceClassification:
    """A small BERT classifier with random weights drawn from `seed`, in training mode.

    Without dropout unless asked for, so that two ways of training can be compared weight by weight. `config` holds
    changes for `small_bert_config`. The global random state is left as it was.
    """
    probabilities = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    # Weights are drawn on the CPU, from the one generator that is seeded and put back here; a GPU's is never touched.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return BertForSequenceClassification(
            small_bert_config(num_labels=num_labels, **probabilities | config)
        )


def _config(name: str, changes: dict) -> BertConfig:
    values = json.loads((COURSE / "data" / "models" / f"{name}.json").read_text(encoding="utf-8"))
    known = {*dir(BertConfig()), "attn_implementation"}
    unknown = sorted(set(changes) - known)
    if unknown:  # BertConfig would keep a misspelt name and change nothing
        raise ValueError(
            f"BertConfig has no {unknown[0]!r}; its values are called {', '.join(sorted(values))}."
        )
    return BertConfig(**{"attn_implementation": "eager"} | values | changes)
