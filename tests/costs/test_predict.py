"""Predictions from two and three layers against traces of all layers, published runs and a real run."""

import copy
import functools
import math
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import (
    AutoModelForCausalLM,
    BartConfig,
    BertConfig,
    BertForSequenceClassification,
    CLIPConfig,
    CLIPModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    MambaConfig,
    Qwen3MoeConfig,
    Wav2Vec2Config,
)

from trainlean import setup as setups
from trainlean.costs import scratch, tracing
from trainlean.costs.depth import LeavingOut, Stack, _stack, aligned
from trainlean.costs.like_a_gpu import like_a_gpu
from trainlean.costs.meter import Meter
from trainlean.costs.predict import predict_largest_batch, predict_run
from trainlean.costs.runs import CATEGORIES, MiB
from trainlean.costs.scaling import scaling_of
from trainlean.costs.tracing import Tracer
from trainlean.costs.training import AUTOCAST, OPTIMIZERS
from trainlean.costs.values import Values, fake
from trainlean.models import bert_large_config
from trainlean.setup import TrainingSetup

pytestmark = pytest.mark.usefixtures("one_thread")


def small_config(layers):
    shape = dict(
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=128,
        vocab_size=500,
        num_hidden_layers=layers,
    )
    return BertConfig(attn_implementation="eager", **shape)


ROWS = [
    dict(micro_batch=4),
    dict(micro_batch=1, accumulation_steps=4),
    dict(micro_batch=1, accumulation_steps=4, checkpointing=True),
]


@pytest.mark.parametrize(("row", "optimizer"), [*zip(ROWS, ("sgd", "adamw", "adamw"))])
def test_two_layers_tell_what_five_need(row, optimizer):
    config = small_config(5)
    few = predict_run(config, sequence_length=32, optimizer=optimizer, **row)
    full = predict_run(config, sequence_length=32, optimizer=optimizer, **row, layers=None)
    assert few.peak_bytes == pytest.approx(full.peak_bytes, rel=0.005)
    assert few.peak == pytest.approx(full.peak, rel=0.005, abs=0.005 * full.peak_bytes)
    assert few.flops == full.flops


# Megabytes of full traces by torch's MemTracker, and the V100's, less the 1343 of its CUDA context.
@pytest.mark.parametrize(
    ("row", "tracked", "published"), [*zip(ROWS, (11968, 7158, 5272), (14949, 8681, 6775))]
)
def test_bert_large(row, tracked, published):
    run = predict_run(bert_large_config(), **row)
    assert run.peak_bytes / MiB == pytest.approx(tracked, rel=0.005)
    assert 0.8 < (run.peak_bytes / MiB + 1343) / published < 1
    assert (run.origin, run.samples, run.optimizer_steps) == ("predicted", 4, 1)


@pytest.mark.parametrize("row", ROWS, ids=["4", "1x4", "1x4 checkpointed"])
def test_a_prediction_is_what_the_run_then_needs(row):
    config = small_config(6)
    predicted = predict_run(config, sequence_length=32, **row)
    torch.manual_seed(0)
    config.use_cache = False
    model = BertForSequenceClassification(config)
    if row.get("checkpointing"):
        (
            getattr(model, "activation_checkpointing_enable", None)
            or model.gradient_checkpointing_enable
        )()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    steps = row.get("accumulation_steps", 1)
    with Meter() as meter:
        for _ in range(2):
            for _ in range(steps):
                ids = torch.randint(500, (row["micro_batch"], 32))
                labels = torch.randint(2, (row["micro_batch"],))
                (
                    model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
                    / steps
                ).backward()
            optimizer.step()
            optimizer.zero_grad()
    # The random states that checkpoints keep, too, which the meter's categories leave out.
    assert predicted.peak_bytes == pytest.approx(meter.allocator_peak, rel=0.005)
    assert predicted.flops * 2 == meter.flops


def test_nothing_of_the_models_size_is_allocated():
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        predict_run(bert_large_config(), micro_batch=4)
    allocated = [
        event.nbytes()
        for event in profiler.profiler.kineto_results.events()
        if event.name() == "[memory]"
    ]
    assert max(allocated, default=0) < MiB


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(micro_batch=0), "micro_batch is a whole number"),
        (dict(micro_batch=1, accumulation_steps=1.5), "accumulation_steps is a whole number"),
        (
            dict(micro_batch=1, optimizer="adam"),
            "optimizer is one of sgd, momentum, adamw, adafactor, adam8bit",
        ),
        (dict(micro_batch=1, precision="fp8"), "precision is one of fp32, fp16, bf16"),
        (dict(micro_batch=1, attention="flash"), "attention is one of eager, sdpa"),
        (dict(micro_batch=1, device="tpu"), "device is one of cpu, gpu, gpu of 2022"),
        (dict(micro_batch=1, checkpointing="some"), "checkpointing is True, False"),
        (dict(micro_batch=1, layers=(3, 3)), "two numbers of layers"),
        (dict(micro_batch=1, colour=3), "no setting 'colour'; its settings are micro_batch, acc"),
        (dict(accumulation_steps=3), "micro_batch is missing"),
        (dict(setup=4), "setup is a TrainingSetup"),
        (dict(micro_batch=1, local_steps=4), "No prediction is made for local_steps=4"),
        (dict(micro_batch=1, devices=2), "No prediction is made for devices=2"),
        (dict(micro_batch=1, sequence_length=513), "512 positions"),
    ],
)
def test_a_setting_that_cannot_be_gets_a_sentence(settings, message):
    with pytest.raises(ValueError, match=message):
        predict_run(small_config(4), **settings)


def test_a_setup_and_its_settings_by_name_are_the_same():
    setup = TrainingSetup(2, 3, checkpointing="every layer", sequence_length=32)
    by_name = dict(micro_batch=2, accumulation_steps=3, checkpointing=True, sequence_length=32)
    one, other = predict_run(small_config(3), setup), predict_run(small_config(3), **by_name)
    assert one.to_dict() | {"created": ""} == other.to_dict() | {"created": ""}
    assert one.setup == replace(setup, model="bert")
    larger = predict_run(small_config(3), setup, micro_batch=4)
    assert larger.settings["micro_batch"] == 4 and larger.peak_bytes > one.peak_bytes


def test_predictions_know_the_optimizers_and_precisions_of_a_setup():
    assert tuple(OPTIMIZERS) == setups.OPTIMIZERS and tuple(AUTOCAST) == setups.PRECISIONS


def test_a_shallow_model_is_traced_whole():
    assert (
        predict_run(small_config(3), micro_batch=2).peak
        == predict_run(small_config(3), micro_batch=2, layers=None).peak
    )


def small(depth=8, **settings):
    return predict_run(small_config(depth), **dict(micro_batch=4, sequence_length=32) | settings)


@pytest.mark.parametrize(("every", "layers"), [(3, 8), (2, 9)])
def test_checkpointing_every_n_layers_is_extrapolated_in_whole_groups(every, layers):
    settings = dict(micro_batch=4, sequence_length=32, checkpointing=every)
    few, full = (
        predict_run(small_config(layers), **settings),
        predict_run(small_config(layers), **settings, layers=None),
    )
    assert few.peak_bytes == pytest.approx(full.peak_bytes, rel=0.01) and few.flops == full.flops
    assert small(layers).peak["activations"] > few.peak["activations"]
    assert few.settings["checkpointing"] == f"every {every} layers"


@pytest.mark.parametrize(
    "settings",
    [
        dict(device="gpu"),
        dict(device="gpu of 2022", optimizer="adafactor", precision="fp16"),
    ],
)
def test_on_a_gpu_too_two_layers_tell_what_five_need(settings):
    few, full = small(5, **settings), small(5, **settings, layers=None)
    assert few.peak_bytes == pytest.approx(full.peak_bytes, rel=0.01)


def test_what_a_gpu_keeps():
    # Of an element of the scores the CPU keeps 4 bytes of softmax, 4 of mask and 4 of their product; CUDA has masks of 1 byte.
    heads, tokens, width, layers, batch = 4, 32, 64, 8, 4
    scores, hidden = layers * batch * heads * tokens**2, batch * tokens * width
    cpu, gpu, old = (
        small(device=device, optimizer="sgd") for device in ("cpu", "gpu", "gpu of 2022")
    )
    masks = scores + (2 * layers + 1) * hidden
    assert cpu.peak["activations"] - gpu.peak["activations"] == pytest.approx(3 * masks, rel=0.05)
    assert old.peak["activations"] - gpu.peak["activations"] == pytest.approx(4 * scores, rel=0.05)
    assert old.peak["gradients"] == pytest.approx(old.peak["weights"], rel=0.01)


def test_half_precision_keeps_whole_weights():
    whole, half = small(device="gpu"), small(device="gpu", precision="bf16")
    assert (
        half.peak["weights"] == whole.peak["weights"]
        and half.peak["optimizer state"] == whole.peak["optimizer state"]
    )
    assert half.peak_bytes < whole.peak_bytes and half.flops == whole.flops


def test_fused_attention_keeps_no_scores():
    eager, fused = (
        small(device="gpu", micro_batch=16),
        small(device="gpu", micro_batch=16, attention="sdpa"),
    )
    scores = 8 * 16 * 4 * 32**2  # layers x batch x heads x tokens squared, each 4 + 1 + 4 bytes
    assert eager.peak["activations"] - fused.peak["activations"] == pytest.approx(
        9 * scores, rel=0.1
    )


def test_heads_that_share_keys_are_followed_on_a_card():
    """In half precision by the flash kernel, else step by step, scores and all: no other kernel has them."""
    heads, length = 8, 128
    config = LlamaConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=heads, num_key_value_heads=2,
        intermediate_size=64, vocab_size=50,
    )  # fmt: skip

    def kept(**settings):
        about = dict(task="causal-lm", micro_batch=2, sequence_length=length, device="gpu")
        run = predict_run(config, **about, **settings)
        return run.peak["activations"], run.flops

    scores = 4 * 2 * heads * length**2  # layers x batch x heads x tokens squared
    eager, whole = kept(attention="eager"), kept(attention="sdpa")
    assert whole[0] == pytest.approx(eager[0], rel=0.1)
    eager, half = (kept(attention=name, precision="bf16") for name in ("eager", "sdpa"))
    assert eager[0] - half[0] > 4 * scores
    assert half[1] == pytest.approx(eager[1], rel=0.1)


def test_selective_checkpointing_lies_between():
    plain, selective, every = (small(checkpointing=value) for value in (False, "selective", True))
    assert plain.peak_bytes > selective.peak_bytes > every.peak_bytes
    assert plain.flops < selective.flops < every.flops


def test_states_of_the_optimizers():
    state = {name: small(2, optimizer=name).peak["optimizer state"] for name in OPTIMIZERS}
    weights = small(2, optimizer="sgd").peak["weights"]
    assert state["sgd"] == 0 and state["adamw"] == pytest.approx(2 * weights, rel=0.03)
    assert state["adafactor"] < 0.1 * weights
    model = BertForSequenceClassification(small_config(2))
    formula = sum(
        8 * p.numel() if p.numel() < 4096 else 2 * p.numel() + 8 * -(-p.numel() // 2048)
        for p in model.parameters()
    )
    assert state["adam8bit"] == formula


class Loss(NamedTuple):
    loss: torch.Tensor


class TwoLayers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(32, 64), torch.nn.Linear(64, 1)

    def forward(self, inputs):
        return Loss(self.second(F.gelu(self.first(inputs))).mean())


def test_a_ddp_model_that_another_thread_left_does_not_cut_the_compiled_graph(
    monkeypatch, tmp_path
):
    def predicted():
        return predict_run(small_config(1), micro_batch=2, sequence_length=32, compiled=True).peak

    expected = predicted()
    monkeypatch.setenv("TRAINLEAN_PREDICTIONS", str(tmp_path))  # not what was kept of the first
    left = SimpleNamespace(bucket_bytes_cap=1000)
    monkeypatch.setattr(torch.nn.parallel.DistributedDataParallel, "_active_ddp_module", left)
    assert predicted() == expected


def test_what_a_compiled_training_keeps_and_writes():
    from trainlean.costs.compiled import compiled_peaks  # imports the compiler

    with FakeTensorMode():
        forward, backward = compiled_peaks(TwoLayers(), {"inputs": torch.zeros(100, 32)})
    wide, narrow, row = 100 * 64 * 4, 100 * 4, 64 * 4
    empty = dict.fromkeys(CATEGORIES, 0)
    # Kept are what goes into the GELU, since it is computed again, and what comes out, since a product reads it.
    assert forward == empty | {"activations": 2 * wide, "temporary": narrow + 4}
    # The fullest moment is that of the last layer's gradient: what is kept, and the gradients of its input and its output.
    assert backward == empty | {
        "activations": 2 * wide,
        "temporary": wide + narrow,
        "gradients": row,
    }


def test_compiling_is_predicted_where_it_is_known():
    with pytest.raises(ValueError, match="without checkpointing"):
        predict_run(small_config(2), micro_batch=1, compiled=True, checkpointing=True)
    once, twice = (
        predict_run(
            small_config(1), micro_batch=2, sequence_length=32, compiled=True, accumulation_steps=k
        )
        for k in (1, 2)
    )
    assert twice.peak["gradients"] >= once.peak["weights"] > once.peak["gradients"]


def test_the_largest_batch_fits_and_the_next_does_not():
    config, settings = small_config(2), dict(sequence_length=32)
    budget = predict_run(config, micro_batch=3, **settings).peak_bytes
    assert predict_largest_batch(config, budget, **settings) == 3
    assert predict_largest_batch(config, budget - 1, **settings) == 2
    assert predict_largest_batch(config, 1000, **settings) == 0
    with pytest.raises(ValueError, match="budget is a number of bytes"):
        predict_largest_batch(config, math.inf, **settings)


# Any model

SHAPE = dict(
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=64,
    vocab_size=100,
)
TINY = dict(micro_batch=2, sequence_length=24)


def llama(**changes):
    return LlamaConfig(**SHAPE | dict(num_hidden_layers=2) | changes)


def with_dense_layers():
    return Qwen3MoeConfig(
        **SHAPE,
        num_hidden_layers=6,
        mlp_only_layers=[0, 1],
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        head_dim=8,
    )


def test_layers_that_differ_are_traced_as_what_they_are():
    settings = dict(TINY, task="causal-lm", attention="sdpa", optimizer="sgd")
    few = predict_run(with_dense_layers(), **settings)
    full = predict_run(with_dense_layers(), **settings, layers=None)
    assert few.peak == full.peak and few.flops == full.flops
    config = with_dense_layers()
    config.num_experts_per_tok = 3
    weights = (
        3 * config.hidden_size * config.moe_intermediate_size
    )  # of an expert, met by every token
    more = predict_run(config, **settings).flops - few.flops
    assert more == 3 * 2 * TINY["micro_batch"] * TINY["sequence_length"] * weights * 4


def test_only_layers_that_repeat_are_left_out():
    kinds = [*"abcccccz"]
    stack = _stack("layers", kinds)
    assert (stack.first, stack.period, stack.count) == (2, 1, 5)
    assert [kinds[i] for i in stack.kept(2)] == [*"abccz"]
    stack = _stack("layers", [*"abababababx"])
    assert stack.period == 2 and len(stack.kept(3)) == 7
    assert _stack("layers", [*"abcdefgh"]) is None
    assert _stack("layers", []) is None


class NumberedLayer(torch.nn.Module):
    def __init__(self, number):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(float(number)))


class SixLayers(torch.nn.Module):
    def __init__(self, order=range(6), looks=False):
        super().__init__()
        made = {number: NumberedLayer(number) for number in order}
        self.layers = torch.nn.ModuleList(made[number] for number in range(6))
        self.last = self.layers[5].weight.item() if looks else None


@pytest.mark.parametrize(
    ("make", "made"),
    [
        (SixLayers, [0, 1]),
        (lambda: SixLayers(order=range(5, -1, -1)), range(6)),  # their order tells nothing
        (lambda: SixLayers(looks=True), range(6)),
    ],
)
def test_layers_that_are_left_out_need_not_be_made(make, made):
    leave_out = LeavingOut([Stack("layers", 6, 0, 1, 6, NumberedLayer)], [2])
    module = leave_out.made(make)
    assert [weight.item() for weight in module.parameters()] == [*made]
    leave_out(module)
    assert [weight.item() for weight in module.parameters()] == [0, 1]
    assert len([*make().parameters()]) == 6, "afterwards layers are made as ever"


def test_a_model_that_another_thread_makes_meanwhile_has_its_layers():
    """In JupyterLab a cell predicts while the explorer's button measures."""
    whole = []

    def make():
        whole.append(pool.submit(SixLayers).result())
        return SixLayers()

    with ThreadPoolExecutor(1) as pool:
        module = LeavingOut([Stack("layers", 6, 0, 1, 6, NumberedLayer)], [2]).made(make)
    assert [len([*model.parameters()]) for model in (whole[0], module)] == [6, 2]


@pytest.mark.parametrize(
    ("few", "many", "places"),
    [
        ("xaay", "xaaay", [0, 1, 3, 4]),
        ("ababcdcd", "abababcdcdcd", [0, 1, 4, 5, 6, 7, 10, 11]),
        ("xabab", "xababab", [0, 1, 2, 5, 6]),
        ("abc", "abc", [0, 1, 2]),
        ("abcd", "abxd", None),
        ("abc", "ab", None),
    ],
)
def test_what_repeats_is_found_in_a_deeper_trace(few, many, places):
    found = aligned(*(np.array([ord(letter) for letter in trace]) for trace in (few, many)))
    assert places == (None if found is None else found.tolist())


@pytest.mark.parametrize("settings", [{}, {"checkpointing": True, "optimizer": "adafactor"}])
def test_gradients_set_to_zero_are_extrapolated_too(settings, monkeypatch):
    """What the gpu of 2022 did: loops over all weights, one after the other, in one step."""
    about = dict(micro_batch=2, sequence_length=128, device="gpu of 2022", **settings)
    whole = predict_run(bert_large_config(num_hidden_layers=5), layers=None, **about)
    traced = []
    trace = Tracer.trace
    monkeypatch.setattr(Tracer, "trace", lambda self: traced.append(self.prune) or trace(self))
    few = predict_run(bert_large_config(num_hidden_layers=5), **about)
    assert all(traced), "all layers were traced"
    assert (few.peak, few.flops) == (whole.peak, whole.flops)


def test_padding_costs_a_decoder_its_mask():
    plain, padded = (
        predict_run(llama(), **TINY, task="causal-lm", attention="sdpa", padded=value)
        for value in (False, True)
    )
    assert padded.peak_bytes > plain.peak_bytes and padded.settings["padded"] is True


def test_the_task_is_a_name_a_class_or_what_the_configuration_says():
    runs = [
        predict_run(llama(), **TINY, task=task).to_dict() | {"created": ""}
        for task in ("causal-lm", "causal_lm", AutoModelForCausalLM, LlamaForCausalLM)
    ]
    runs.append(
        predict_run(llama(architectures=["LlamaForCausalLM"]), **TINY).to_dict() | {"created": ""}
    )
    assert all(run == runs[0] for run in runs)


def two_layers_and_batch():
    torch.manual_seed(0)
    return TwoLayers(), {"inputs": torch.randn(8, 32)}


def test_a_module_is_predicted_with_its_batch():
    module, batch = two_layers_and_batch()
    run = predict_run(module, batch=batch, micro_batch=20, optimizer="sgd")
    with Meter() as meter:
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        inputs = torch.randn(20, 32)
        module(inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert run.peak_bytes == meter.peak_bytes and run.settings["model"] == "TwoLayers"
    made = predict_run(TwoLayers, batch=batch, micro_batch=20, optimizer="sgd")
    own_loss = predict_run(
        lambda: torch.nn.Linear(4, 2),
        batch=lambda size, length: torch.randn(size, 4),
        loss=lambda model, batch: model(batch).square().mean(),
        micro_batch=3,
    )
    assert made.peak == run.peak and own_loss.peak["weights"] == 40


class Asking(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, inputs):
        out = self.layer(inputs)
        return out[out > 0].sum()


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (Asking(), dict(batch=torch.ones(2, 4)), "depends on numbers that only a real training"),
        (Asking(), {}, "predicted with a sample batch"),
        (Asking(), dict(batch=torch.ones(2, 4), task="causal-lm"), "chosen for a configuration"),
        (torch.nn.Linear(4, 4), dict(batch=torch.ones(2, 4)), "gives no loss"),
        (torch.nn.Linear(4, 4), dict(batch=torch.ones(2, 3)), "could not be trained on this batch"),
        (Asking(), dict(batch=[torch.ones(2, 4), torch.ones(3)]), "these have 2, 3 samples"),
        (Asking(), dict(batch=torch.ones(2, 4), sequence_length=8), "leave out sequence_length"),
        ("bert-large", {}, "a transformers configuration, a torch.nn.Module or a function"),
        (llama(), dict(task="masked-lm"), "LlamaConfig has no AutoModelForMaskedLM; it has"),
        (llama(), dict(task="poetry"), "The task is one of sequence-classification"),
        (llama(), dict(task="sequence-classification"), "padding token"),
        (CLIPConfig(), dict(task="CLIPModel"), "CLIPModel takes no labels, so no batch is known"),
        (small_config(2), dict(task="AutoModel"), "BertModel takes no labels, so no batch"),
        (
            LlavaConfig(),
            dict(task="LlavaForConditionalGeneration"),
            "takes input_ids and pixel_values, which no batch is known for",
        ),
        (MambaConfig(), dict(task="causal-lm", attention="sdpa"), r'yet. Set attention="eager"\.'),
        (BartConfig(encoder_layerdrop=0.1), dict(task="seq2seq-lm"), "set encoder_layerdrop=0.0"),
    ],
)
def test_what_cannot_be_predicted_gets_a_sentence(model, settings, message):
    with pytest.raises(ValueError, match=message):
        predict_run(model, micro_batch=2, **settings)


def test_a_model_without_labels_is_predicted_with_a_batch_and_a_loss():
    tower = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    config = CLIPConfig(
        text_config=tower | dict(vocab_size=50, bos_token_id=0, eos_token_id=1),
        vision_config=tower | dict(image_size=32, patch_size=16),
        projection_dim=16,
    )

    def batch(size, _):
        ids = torch.randint(2, 50, (size, 8))
        return {"input_ids": ids, "pixel_values": torch.rand(size, 3, 32, 32)}

    def loss(model, batch):
        return model(**batch, return_loss=True).loss

    about = dict(batch=batch, loss=loss, micro_batch=4)
    run = predict_run(config, task="CLIPModel", **about)
    as_module = predict_run(
        lambda: CLIPModel._from_config(config, attn_implementation="eager"), **about
    )
    assert run.peak == as_module.peak


def test_sound_that_is_hidden_at_random_is_refused_with_its_switch():
    config = Wav2Vec2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        layerdrop=0.0, conv_dim=(16,) * 7, num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2, mask_time_prob=0.3,
    )  # fmt: skip
    with pytest.raises(ValueError, match="such as by apply_spec_augment=False"):
        predict_run(config, task="ctc", micro_batch=2)


def test_what_the_batch_alone_decides_is_known():
    real = torch.tensor([[1, 0, 2], [0, 0, 3]])
    with FakeTensorMode() as mode, Values():
        tokens = fake(mode, real)
        weights = torch.empty(2, 3)
        assert int((tokens != 0).sum()) == 3
        assert weights[tokens != 0].shape == (3,) and tokens.nonzero().shape == (3, 2)
        tokens += 1
        assert tokens.tolist() == [[2, 1, 3], [1, 1, 4]]
        with pytest.raises(DataDependentOutputException):
            bool((tokens * weights).sum() > 0)


def test_adapters_leave_the_rest_frozen():
    plain, adapted = (
        predict_run(llama(), **TINY, task="causal-lm", lora=rank) for rank in (None, 4)
    )
    assert adapted.peak["optimizer state"] < plain.peak["optimizer state"] / 5
    assert adapted.peak["weights"] > plain.peak["weights"] and adapted.setup.lora == 4


def test_adapters_beside_weights_of_two_bytes_are_predicted_each_time():
    """Whether the adapter's conversion was refused depended on what the trace remembered of an earlier one."""
    pytest.importorskip("peft")
    config = llama(dtype="bfloat16")
    first, again = (predict_run(config, **TINY, task="causal-lm", lora=4) for _ in range(2))
    assert first.peak == again.peak
    assert (
        first.peak["weights"]
        < predict_run(llama(), **TINY, task="causal-lm", lora=4).peak["weights"]
    )


def test_a_copied_head_stays_in_the_trace(monkeypatch):
    """peft copies a classifier's head; a copy of the trace's mode with it mixes two traces, and crashes when it is freed."""

    def with_another_head(model, _):
        head = copy.deepcopy(model.score)
        assert head.weight is not model.score.weight and isinstance(head.weight, torch.nn.Parameter)
        assert head.weight.fake_mode is model.score.weight.fake_mode
        model.score = head
        return model

    about = dict(TINY, task="sequence-classification", optimizer="sgd")
    plain = predict_run(llama(pad_token_id=0), **about)
    monkeypatch.setattr(tracing, "add_adapters", with_another_head)
    assert predict_run(llama(pad_token_id=0), **about).peak == plain.peak


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(24, 48, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


class Added(torch.nn.Module):
    """Under autocast a wide half-precision tensor, and a row in float32 that is added to it."""

    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Linear(8, 200, bias=False)
        self.row = torch.nn.Parameter(torch.zeros(200))

    def forward(self, x):
        return (self.wide(x) + self.row).argmax(-1) * x.mean() + (self.wide(x) + self.row).mean()


def overlapping():
    return torch.nn.Conv2d(1, 32, 16, stride=10)


def in_groups():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 4, stride=4), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3, groups=4)
    )


class Pairs(torch.nn.Bilinear):
    def forward(self, x):
        return super().forward(x, x)


class Squares(torch.nn.Linear):
    """The mean squared error is a number in the memory of all the squares."""

    def forward(self, x):
        out = super().forward(x)
        first = torch.nn.functional.mse_loss(out, torch.zeros_like(out))
        return first + torch.nn.functional.mse_loss(out, torch.ones_like(out))


@pytest.mark.parametrize(
    ("make", "sample", "precision"),
    [
        (lambda: Pairs(32, 32, 16), (20, 32), "fp32"),
        (lambda: Squares(8, 300), (40, 8), "fp32"),
        (overlapping, (1, 128, 64), "fp32"),
        (in_groups, (3, 64, 64), "bf16"),
        (Added, (300, 8), "bf16"),
        (Recurrent, (5, 24), "fp32"),
    ],
)
def test_what_kernels_take_beside_their_tensors_is_measured(make, sample, precision, one_thread):
    batch = torch.rand(4, *sample)

    def loss(model, x):
        return model(x).float().square().mean()

    run = predict_run(
        make, batch=batch, loss=loss, micro_batch=4, precision=precision, optimizer="sgd"
    )
    model = make()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Meter(model, optimizer) as meter:
            for _ in range(2):
                inputs = batch.clone()
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    value = loss(model, inputs)
                value.backward()
                del value, inputs
                optimizer.step()
                optimizer.zero_grad()
    # A processor that multiplies bf16 by itself may need no scratch for a convolution.
    beside = meter.allocator_peak > 1.01 * meter.peak_bytes
    assert beside or make is in_groups, "nothing beside the tensors"
    assert run.peak_bytes == pytest.approx(meter.allocator_peak, rel=0.001)


class Halves(torch.nn.Linear):
    def forward(self, x):
        left, right = x.chunk(2, 1)
        return (super().forward(left) * right.mean()).square().mean()


class Sampled(torch.nn.Linear):
    """torch.distributions looks whether its arguments are allowed."""

    def forward(self, x):
        return torch.distributions.Normal(super().forward(x), 1.0).rsample().mean()


@functools.cache
def counted(length):
    return torch.arange(length, dtype=torch.float32)


class Counting(torch.nn.Linear):
    def forward(self, x):
        return (super().forward(x) + counted(self.out_features)).square().mean()


class Packed(torch.nn.Linear):
    """Sequences that end where they end, through a recurrent layer and a loss that aligns them."""

    def __init__(self, width, tokens):
        super().__init__(16, tokens)
        self.recurrent = torch.nn.GRU(width // 8, 16, batch_first=True)

    def forward(self, x):
        lengths = torch.arange(len(x)) % 5 + 4
        packed = pack_padded_sequence(x.unflatten(1, (8, -1)), lengths, True, False)
        out, lengths = pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        scores = super().forward(out).log_softmax(-1).transpose(0, 1)
        tokens = torch.ones(len(x), 3, dtype=torch.int64)
        return F.ctc_loss(scores, tokens, lengths, torch.full((len(x),), 2), zero_infinity=True)


def two_bytes():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 64).bfloat16(), torch.nn.Linear(64, 1).bfloat16()
    )


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: Halves(32, 4), torch.float32),
        (lambda: Sampled(64, 4), torch.float32),
        (lambda: Counting(64, 4), torch.float32),
        (lambda: Packed(64, 12), torch.float32),
        (two_bytes, torch.bfloat16),
        (
            lambda: torch.nn.TransformerEncoder(
                torch.nn.TransformerEncoderLayer(64, 2, 64), 4, enable_nested_tensor=False
            ),
            None,
        ),
    ],
)
def test_modules_that_anybody_brings_are_predicted(make, dtype, one_thread):
    batch = torch.rand(50, 64, dtype=dtype)

    def step(model, optimizer):
        inputs = batch.clone()
        model(inputs).float().mean().backward()
        del inputs
        optimizer.step()
        optimizer.zero_grad()

    model = make()  # the model is trained before and after, as if nothing had been predicted
    optimizer = OPTIMIZERS["momentum"](model.parameters())
    step(model, optimizer)
    run = predict_run(
        make,
        batch=batch,
        loss=lambda model, x: model(x).float().mean(),
        micro_batch=50,
        optimizer="momentum",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Meter(model, optimizer) as meter:
            step(model, optimizer)
    assert run.peak_bytes == pytest.approx(meter.allocator_peak, rel=0.005)
    assert run.flops == meter.flops


def test_kernels_that_cannot_be_run_get_a_sentence(monkeypatch):
    about = dict(
        batch=torch.rand(2, 8, 5), loss=lambda model, x: model(x).sum(), micro_batch=2, padded=False
    )
    monkeypatch.setattr(scratch, "_measured", {})
    with torch.profiler.profile(), pytest.raises(ValueError, match="Predict outside of it"):
        predict_run(torch.nn.Conv1d(8, 8, 1), **about)
    with pytest.raises(ValueError, match="recurrent layers run in kernels of their own"):
        predict_run(Recurrent, **about | {"batch": torch.rand(2, 5, 24), "device": "gpu"})
    monkeypatch.setattr(scratch, "LARGEST", 100)
    with pytest.raises(ValueError, match="may have 0. Make the micro-batch smaller"):
        predict_run(torch.nn.Conv1d(8, 8, 1), **about)
    with like_a_gpu(old=False):  # a training in another thread
        assert torch.nn.GRU(4, 4)(torch.zeros(2, 1, 4))[0].shape == (2, 1, 4)


def test_a_table_of_a_few_traces_predicts_what_the_full_trace_does(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINLEAN_WORK", str(tmp_path))
    about = dict(task="causal-lm", attention="sdpa", optimizer="sgd")
    table = scaling_of(llama(), lengths=(8, 40), **about)
    kept = scaling_of(llama(), lengths=(8, 40), **about)  # from the disk
    for size, length in [(1, 9), (3, 24), (64, 40)]:
        full = predict_run(
            llama(), micro_batch=size, sequence_length=length, **about, layers=None
        ).to_dict()
        for one in (table, kept):
            run = one.run(size, length)
            assert (run.peak_bytes, run.flops) == (sum(full["peak"].values()), full["flops"])
    start = time.perf_counter()
    kept.run(5, 17)
    assert time.perf_counter() - start < 0.01
    with pytest.raises(ValueError, match="sequence_length is 8 to 40 here, not 41"):
        table.run(2, 41)
    with pytest.raises(ValueError, match="stacks that repeat here"):
        table.run(2, 40, [3, 3, 3])


def test_a_table_needs_lengths_that_differ():
    with pytest.raises(ValueError, match="at least 4 tokens apart"):
        scaling_of(llama(), lengths=(8, 9), task="causal-lm")
