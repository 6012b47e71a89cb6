"""The models: their shapes, their seeds, and the published table that BERT-large is held against."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, BertForSequenceClassification

from trainlean.models import (
    bert_large_config,
    model_config,
    small_bert,
    small_bert_config,
    small_decoder,
)
from trainlean.reviews import load_tokenizer
from trainlean.workspace import COURSE


def test_bert_large_has_the_published_number_of_parameters():
    with torch.device("meta"):
        model = BertForSequenceClassification(bert_large_config())
    assert sum(parameter.numel() for parameter in model.parameters()) == 335_143_938
    assert model.config.num_labels == 2 and model.config._attn_implementation == "eager"


def test_small_bert_has_the_shape_that_the_course_names():
    config = small_bert().config
    shape = (
        config.hidden_size,
        config.num_hidden_layers,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings,
    )
    assert shape == (128, 4, 4, 512, 128)
    assert config._attn_implementation == "eager"
    assert (
        config.vocab_size == len(load_tokenizer())
        and config.pad_token_id == load_tokenizer().pad_token_id
    )


def test_decoders_have_the_published_shapes():
    """Llama 3.2 1B has 1,235,814,400 parameters, its head tied; Qwen2.5 7B 7,615,616,512: as their makers say."""
    sizes = {}
    for name in ("llama-1b", "qwen-7b"):
        config = model_config(name)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        sizes[name] = sum(parameter.numel() for parameter in model.parameters())
    assert sizes == {"llama-1b": 1_235_814_400, "qwen-7b": 7_615_616_512}


def test_the_small_decoder_has_the_course_s_vocabulary_and_its_seed_s_weights():
    before = torch.get_rng_state()
    one, again, other = small_decoder(seed=1), small_decoder(seed=1), small_decoder(seed=2)
    assert torch.equal(torch.get_rng_state(), before) and one.training
    assert one.config.vocab_size == len(load_tokenizer()) and not one.config.use_cache
    weights = [model.model.layers[0].mlp.up_proj.weight for model in (one, again, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    assert one.config._attn_implementation == "sdpa"
    assert small_decoder(attn_implementation="eager").config._attn_implementation == "eager"


def test_the_seed_alone_decides_the_weights():
    torch.manual_seed(7)
    first = small_bert(seed=1).state_dict()
    torch.manual_seed(8)
    again, other = small_bert(seed=1).state_dict(), small_bert(seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


def test_the_global_random_state_is_left_as_it_was():
    before = torch.get_rng_state()
    small_bert(seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_changes_reach_the_configuration():
    model = small_bert(dropout=0.1, num_labels=3, num_hidden_layers=2, attn_implementation="sdpa")
    assert model.config.num_hidden_layers == 2 and model.classifier.out_features == 3
    assert model.config._attn_implementation == "sdpa"
    assert model.dropout.p == 0.1 and small_bert().dropout.p == 0.0
    assert bert_large_config(num_hidden_layers=2).hidden_size == 1024


def test_a_misspelt_value_is_named():
    with pytest.raises(ValueError, match="no 'hiden_size'.*hidden_size"):
        small_bert_config(hiden_size=64)


def test_the_published_runs_hold_the_whole_table():
    table = json.loads(
        (COURSE / "data" / "measurements" / "bert_large_v100.json").read_text(encoding="utf-8")
    )
    runs = table["runs"]
    assert len(runs) == 10 and len({run["name"] for run in runs}) == 10
    assert [run["memory_mb"] for run in runs[:3]] == [14949, 8681, 6775]
    for run in runs:
        if run["seconds"]:  # the table's two columns must agree: 512 samples in that time
            assert run["samples_per_second"] == pytest.approx(512 / run["seconds"], abs=0.012)


def test_a_value_of_another_kind_is_a_sentence():
    with pytest.raises(
        ValueError, match="^BertConfig: Field 'num_hidden_layers' expected int, got "
    ):
        small_bert(num_hidden_layers="four")
