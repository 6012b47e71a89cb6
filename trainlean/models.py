"""The models of the course, made from their configuration files in data/models/."""

import json

import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import (
    AutoConfig,
    BertConfig,
    BertForSequenceClassification,
    LlamaForCausalLM,
)

from trainlean.model_list import CONFIGURATIONS
from trainlean.workspace import COURSE


def model_config(name: str, **changes):
    """The transformers configuration of a model of CONFIGURATIONS; attention is eager unless `attn_implementation` says otherwise.

    `changes` are the configuration's values by name. ValueError: no such model, or a value that its configuration does not know or is of another kind.
    """
    if name not in CONFIGURATIONS:
        raise ValueError(f"The model is one of {', '.join(CONFIGURATIONS)}, not {name!r}.")
    path = COURSE / "data" / "models" / f"{CONFIGURATIONS[name]}.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    kind = type(AutoConfig.for_model(values["model_type"]))
    known = {*dir(kind()), "attn_implementation"}
    if unknown := sorted(set(changes) - known):  # it would keep a misspelt name and change nothing
        raise ValueError(
            f"{kind.__name__} has no {unknown[0]!r}; its values are called {', '.join(sorted(values))}."
        )
    try:
        return kind(**{"attn_implementation": "eager"} | values | changes)
    except StrictDataclassFieldValidationError as wrong:
        raise ValueError(f"{kind.__name__}: {str(wrong.__cause__).rstrip('.')}.") from wrong


def small_bert_config(**changes) -> BertConfig:
    """The configuration of the small BERT: hidden size 128, 4 layers, 4 heads, 128 positions, the course's vocabulary.

    `changes` are `BertConfig` values by name; attention is eager (so that memory follows the formulas) unless
    `attn_implementation` says otherwise. A name that `BertConfig` does not know is a ValueError.
    """
    return model_config("small", **changes)


def bert_large_config(**changes) -> BertConfig:
    """The configuration of bert-large-uncased: with the 2-label head, 335,143,938 parameters.

    `changes` as for `small_bert_config`; attention is eager, as it was for the published measurements.
    """
    return model_config("bert-large", **changes)


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


def small_decoder(*, seed: int = 0, **config) -> LlamaForCausalLM:
    """A small Llama-like decoder with random weights drawn from `seed`, in training mode: hidden size 64, 4 layers, the course's vocabulary.

    Its vocabulary is as many times its hidden size as that of Llama 3.2 1B is. `config` holds changes of the configuration
    by name; attention is torch's fused one ("sdpa") unless `attn_implementation` says otherwise. The global random state is
    left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        kind = model_config("small-decoder", **{"attn_implementation": "sdpa"} | config)
        return LlamaForCausalLM(kind).train()
