"""The meter against two independent meters, hand formulas, and the three ways of writing the same loop."""

import contextlib
import gc
import json
import os
import sys
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from meter_against_allocator import allocators_peak
from torch.distributed._tools.mem_tracker import MemTracker
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from trainlean.costs.measuring import measure
from trainlean.costs.meter import Meter
from trainlean.costs.operations import KEY, watchers
from trainlean.costs.runs import CATEGORIES, load_runs

pytestmark = pytest.mark.usefixtures("one_thread")
LAYERS, VOCABULARY, LENGTH = 2, 200, 16
SETTINGS = [(16, 1, False), (4, 4, False), (4, 4, True)]
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def bert(**changes):
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
    )  # not needed by the two ranks

    torch.manual_seed(0)
    shape = dict(
        hidden_size=64, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=128
    )
    values = dict(vocab_size=VOCABULARY, attn_implementation="eager", use_cache=False)
    return BertForSequenceClassification(BertConfig(**shape | values | changes))


def enable_checkpointing(model):
    (
        getattr(model, "activation_checkpointing_enable", None)
        or model.gradient_checkpointing_enable
    )()


def batch(size):
    ids = torch.randint(VOCABULARY, (size, LENGTH))
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.randint(2, (size,)),
    }


def window(model, optimizer, micro_batch, steps, between=lambda: None):
    """One optimizer step's worth of training."""
    for _ in range(steps):
        (model(**batch(micro_batch)).loss / steps).backward()
        between()
    optimizer.step()
    optimizer.zero_grad()


def training(micro_batch, steps, checkpointing, optimizer, windows=2):
    def train():
        model = bert()
        if checkpointing:
            enable_checkpointing(model)
        chosen = OPTIMIZERS[optimizer](model.parameters())
        for _ in range(windows):
            window(model, chosen, micro_batch, steps)

    return train


def allocator_peak(train):
    """The peak of torch's CPU allocator in bytes, from the profiler's memory events."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def total(categories):
    return sum(categories.values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("micro_batch", "steps", "checkpointing"), SETTINGS)
def test_peak_is_the_allocators(micro_batch, steps, checkpointing, optimizer):
    train = training(micro_batch, steps, checkpointing, optimizer)
    with Meter() as meter:
        train()
    # Autograd keeps Python numbers as 8-byte scalars, and a checkpoint the generator's state (5056 bytes, one more
    # while it recomputes): neither is made by an operation, so no dispatch mode sees them.
    hidden = allocator_peak(train) - meter.peak_bytes
    states, scalars = divmod(hidden, torch.get_rng_state().nbytes)
    assert 0 <= scalars <= 8 * (LAYERS + 1)
    assert 0 <= states <= (LAYERS + 1 if checkpointing else 0)


def test_peak_is_the_allocators_to_the_byte_where_kernels_need_nothing_of_their_own():
    def train():
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Embedding(50, 16),
            torch.nn.Linear(16, 40),
            torch.nn.GELU(),
            torch.nn.Linear(40, 2),
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(3):
            out = model(torch.randint(50, (8, 5)))
            (out * out).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    with Meter() as meter:
        train()
    assert meter.peak_bytes == allocator_peak(train)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("micro_batch", "steps", "checkpointing"), SETTINGS)
def test_categories_are_memtrackers(micro_batch, steps, checkpointing, optimizer):
    def prepared():
        model = bert()
        if checkpointing:
            enable_checkpointing(model)
        chosen = OPTIMIZERS[optimizer](model.parameters())
        window(model, chosen, micro_batch, steps)  # the state is there when the meters start
        return model, chosen

    model, chosen = prepared()
    with Meter(model, chosen) as meter:
        window(model, chosen, micro_batch, steps)

    model, chosen = prepared()
    tracker = MemTracker()
    tracker.track_external(model, chosen)
    with tracker:
        window(model, chosen, micro_batch, steps, between=tracker.reset_mod_stats)
    snapshot = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
    theirs = {getattr(kind, "value", kind): size for kind, size in snapshot.items()}

    assert meter.peak_bytes == theirs["Total"]
    assert meter.peak["weights"] == theirs["Parameter"] + theirs["Buffer"]
    assert meter.peak["optimizer state"] == theirs["Optstate"]
    assert meter.peak["activations"] == theirs["Activation"]
    # They call a gradient temporary until it is in place; here it is a gradient from the moment it exists.
    assert meter.peak["gradients"] + meter.peak["temporary"] == theirs["Gradient"] + theirs["Temp"]
    assert meter.peak["gradients"] >= theirs["Gradient"]


def linear_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32, bias=False), torch.nn.Linear(32, 4, bias=False)
    )


def train_linear(micro_batches=2, make=OPTIMIZERS["momentum"]):
    net = linear_net()
    optimizer = make(net.parameters())
    for _ in range(micro_batches):
        net(torch.randn(8, 16)).sum().backward()
    optimizer.step()


def test_hand_formula_of_a_two_layer_net():
    with Meter() as meter:
        train_linear()
    weights = 4 * (16 * 32 + 32 * 4)
    activations = 4 * (8 * 16 + 8 * 32 + 8 * 4 + 1)  # input, hidden, output, loss
    assert meter.moments["forward"] == dict(zip(CATEGORIES, (weights, weights, 0, activations, 0)))
    assert meter.moments["optimizer step"] == dict(
        zip(CATEGORIES, (weights, weights, weights, 0, 0))
    )
    # 2 operations for every weight and sample forward; backward twice that, less the gradient of the input.
    assert meter.flops == 2 * 2 * 8 * (3 * (16 * 32 + 32 * 4) - 16 * 32)
    assert (meter.samples, meter.optimizer_steps) == (16, 1)


@pytest.mark.parametrize("separate", [True, False])
def test_data_made_before_the_meter_counts_by_the_batch_in_use(separate):
    net, data = linear_net(), torch.randn(100, 8, 16)
    if separate:
        data = [x.clone() for x in data]
    with Meter() as meter:
        for x in data[:20]:
            net(x).sum().backward()
    assert meter.moments["forward"]["activations"] == 4 * (8 * 16 + 8 * 32 + 8 * 4 + 1)
    assert meter.moments["forward"]["weights"] == 4 * (16 * 32 + 32 * 4)


def test_a_model_made_before_the_meter_counts_from_the_start():
    net, weights = linear_net(), 4 * (16 * 32 + 32 * 4)
    with Meter() as meter:
        torch.ones(10000)  # the peak, long before the meter knows of the model
        net(torch.randn(8, 16))
    assert (meter.peak["weights"], meter.peak_bytes) == (weights, weights + 40000)


def test_gradients_that_no_step_ever_uses_are_gradients():
    net, weights = linear_net(), 4 * (16 * 32 + 32 * 4)
    with Meter() as meter:
        net(torch.randn(8, 16)).sum().backward()
        net.zero_grad()
    assert meter.moments["backward"]["gradients"] == weights


def test_a_view_is_no_second_tensor_and_a_dead_one_leaves():
    with Meter() as meter:
        x = torch.ones(1000)
        views = [x.view(10, 100), x[5:], x.detach()]
        del x, views
        torch.ones(10)
    assert meter.peak_bytes == 4000


def test_samples_are_counted_where_a_batch_enters_a_training():
    net, head = linear_net(), torch.nn.Linear(4, 2)
    criterion = torch.nn.CrossEntropyLoss(weight=torch.ones(2))
    with Meter() as meter:
        for _ in range(3):
            criterion(head(net(torch.randn(8, 16))), torch.zeros(8, dtype=torch.int64)).backward()
        with torch.no_grad():
            net(torch.randn(100, 16))
    assert meter.samples == 24


def test_a_number_is_one_sample_and_a_criterion_alone_is_no_batch():
    class Scale(torch.nn.Linear):
        def forward(self, x):
            return x * self.weight.sum()

    with Meter() as meter:
        Scale(2, 2)(torch.tensor(3.0)).backward()
        torch.nn.MSELoss()(torch.ones(5), torch.zeros(5))
    assert meter.samples == 1


def test_a_batch_that_a_model_refuses_is_not_trained_on():
    net = linear_net()
    with Meter() as meter:
        with contextlib.suppress(RuntimeError):
            net(torch.randn(8, 3))
        net(torch.randn(8, 16))
    assert meter.samples == 8


def test_what_a_list_becomes_counts_and_what_lies_on_another_device_does_not():
    net = linear_net()
    with Meter(net) as meter:
        x = torch.tensor([1.0] * 10000)
        far = torch.empty(10**6, device="meta")
        torch.ones(1)
        del x, far
    assert meter.peak_bytes == 4 * (16 * 32 + 32 * 4 + 10000 + 1)


def test_clipping_is_temporary_and_no_forward_pass():
    big = torch.zeros(10000)

    def train(clip):
        net = linear_net()
        net(torch.randn(8, 16)).sum().backward()
        if clip:
            with torch.no_grad():
                big.square().sum()

    meters = []
    for clip in (False, True):
        with Meter() as meter:
            train(clip)
        meters.append(meter)
    assert meters[0].moments["forward"] == meters[1].moments["forward"]
    assert meters[1].moments["backward"]["temporary"] == 40000 + 4  # the squares and their sum


def test_empty_and_sparse_tensors_do_no_harm():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.empty = torch.nn.Parameter(torch.empty(0))
            self.words = torch.nn.Embedding(10, 4, sparse=True)

        def forward(self, ids):
            return self.words(ids).sum() + self.empty.sum()

    model = Odd()
    with Meter() as meter:
        torch.nn.init.zeros_(model.empty)
        model(torch.arange(3)).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert meter.peak["weights"] == 160


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_keeps_less_and_computes_more(reentrant):
    def train(wrap):
        torch.manual_seed(0)
        linear = torch.nn.Linear
        blocks = [
            torch.nn.Sequential(linear(32, 256), torch.nn.ReLU(), linear(256, 32)) for _ in range(4)
        ]
        x = torch.randn(64, 32).requires_grad_()
        for block in blocks:
            x = wrap(block, x)
        x.sum().backward()

    with Meter() as plain:
        train(lambda block, x: block(x))
    with Meter() as kept:
        train(lambda block, x: checkpoint(block, x, use_reentrant=reentrant))
    forward, last = (4 * 2 * 64 * 32 * 256 * products for products in (2, 1))
    # The variant without re-entrance stops before the last product of a block, whose result nobody needs.
    assert kept.flops - plain.flops == (forward if reentrant else forward - last)
    inner, outer = 4 * 64 * 256, 4 * 64 * 32  # bytes within a block, and between two
    assert (
        plain.moments["forward"]["activations"] == 5 * inner + 4 * outer
    )  # before and after the last block's ReLU
    assert kept.moments["forward"]["activations"] == 2 * inner + 4 * outer
    # What is recomputed is an activation, of one block at a time.
    assert (
        inner
        <= kept.moments["backward"]["activations"]
        < plain.moments["backward"]["activations"] / 2
    )
    assert plain.samples == 64


def test_a_checkpoint_that_stops_early_hides_no_later_batch():
    with Meter() as meter:
        training(4, 2, True, "sgd", windows=3)()
    assert (meter.samples, meter.optimizer_steps) == (24, 3)


def test_flops_are_torchs_own():
    train = training(4, 2, True, "sgd", windows=1)
    with Meter() as meter:
        train()
    with FlopCounterMode(display=False) as counter:
        train()
    assert meter.flops == counter.get_total_flops() > 0


def test_fused_attention_on_the_cpu_costs_what_eager_attention_costs():
    def train(attention):
        model = bert(attn_implementation=attention, attention_probs_dropout_prob=0.0)
        model(**batch(4)).loss.backward()

    with Meter() as eager:
        train("eager")
    with Meter() as fused:
        train("sdpa")
    # The fused backward pass computes the scores once more: one product of the four is done again.
    scores = LAYERS * 2 * 4 * LENGTH * LENGTH * 64
    assert fused.flops == eager.flops + scores


def test_same_figures_twice():
    train = training(4, 2, True, "adamw")
    meters = []
    for _ in range(2):
        with Meter() as meter:
            train()
        meters.append(meter)
    first, second = meters
    assert first.timeline == second.timeline
    assert (first.peak, first.flops) == (second.peak, second.flops)


def test_timeline_is_bounded_and_holds_the_peak():
    with Meter() as meter:
        training(2, 8, False, "sgd")()
    assert 250 < len(meter.timeline) <= 500
    assert max(total(categories) for _, categories in meter.timeline) == meter.peak_bytes
    assert {phase for phase, _ in meter.timeline} == {"forward", "backward", "optimizer step"}


def test_a_shortened_timeline_holds_the_fullest_moment_of_each_category_and_the_last(monkeypatch):
    usage = np.zeros((3000, len(CATEGORIES)), dtype=np.int64)
    usage[1500, 3], usage[1501, 0], usage[-1, 1] = 10, 100, 1  # neighbours: one stretch
    monkeypatch.setattr(Meter, "_usage", lambda self: usage)
    monkeypatch.setattr(Meter, "_phase_of_ticks", lambda self: np.full(len(usage), "forward"))
    timeline = [list(sizes.values()) for _, sizes in Meter().timeline]
    assert len(timeline) <= 500
    assert np.max(timeline, axis=0).tolist() == usage.max(axis=0).tolist()
    assert timeline[-1] == usage[-1].tolist()


def hooks():
    module, optimizer = torch.nn.modules.module, sys.modules["torch.optim.optimizer"]
    return [
        len(module._global_forward_pre_hooks),
        len(module._global_forward_hooks),
        len(module._global_forward_hooks_always_called),
        len(module._global_forward_hooks_with_kwargs),
        len(optimizer._global_optimizer_pre_hooks),
        len(optimizer._global_optimizer_post_hooks),
        len(watchers()),
        torch._C._dispatch_tls_is_dispatch_key_included(KEY),
    ]


@pytest.mark.parametrize("where", ["nowhere", "forward", "backward", "step"])
def test_nothing_stays_attached(where):
    before = hooks()
    net = linear_net()
    optimizer = OPTIMIZERS["sgd"](net.parameters())

    def fail(*_):
        raise ZeroDivisionError

    with contextlib.suppress(ZeroDivisionError), Meter() as meter:
        if where == "forward":
            net[1].register_forward_pre_hook(fail)
        out = net(torch.randn(8, 16))
        if where == "backward":
            out.register_hook(fail)
        out.sum().backward()
        if where == "step":
            optimizer.register_step_pre_hook(fail)
        optimizer.step()
    assert hooks() == before
    assert (meter.optimizer_steps == 1) == (where == "nowhere")
    assert meter.peak_bytes > 0
    ticks = meter._tick
    net[0](torch.randn(8, 16)).sum().backward()
    assert meter._tick == ticks


def test_a_meter_is_for_one_measurement():
    with Meter() as meter:
        pass
    with pytest.raises(RuntimeError, match="measures once"), meter:
        pass


def by_hand(data):
    model = bert()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    for i, inputs in enumerate(data):
        (model(**inputs).loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def by_accelerate(data):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = bert()
    model, optimizer, loader = accelerator.prepare(
        model,
        OPTIMIZERS["sgd"](model.parameters()),
        torch.utils.data.DataLoader(data, batch_size=None),
    )
    for inputs in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**inputs).loss)
            optimizer.step()
            optimizer.zero_grad()


def by_trainer(data, folder):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        folder, use_cpu=True, per_device_train_batch_size=4, gradient_accumulation_steps=4, num_train_epochs=1,
        optim="sgd", max_grad_norm=0, save_strategy="no", logging_strategy="no", disable_tqdm=True, report_to="none",
    )  # fmt: skip
    samples = [
        {key: value[i] for key, value in inputs.items()} for inputs in data for i in range(4)
    ]
    Trainer(bert(), arguments, train_dataset=samples).train()


def test_the_same_loop_three_ways_gives_the_same_counts(tmp_path, capfd):
    data = [batch(4) for _ in range(8)]
    meters = []
    for train in (by_hand, by_accelerate, lambda data: by_trainer(data, tmp_path)):
        with Meter() as meter:
            train(data)
        meters.append(meter)
    counts = [
        (m.optimizer_steps, m.samples, m.flops, m.peak["weights"], m.peak["gradients"])
        for m in meters
    ]
    assert counts[0] == counts[1] == counts[2]
    assert counts[0][:2] == (2, 32)


def two_ranks(rank, folder):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    net = torch.nn.parallel.DistributedDataParallel(linear_net())
    optimizer = OPTIMIZERS["sgd"](net.parameters())
    with Meter() as meter:
        for i in range(6):
            with contextlib.nullcontext() if i % 2 else net.no_sync():
                net(torch.randn(8, 16)).sum().backward()
            if i % 2:
                optimizer.step()
                optimizer.zero_grad()
    with Meter() as plain:
        dist.all_reduce(torch.ones(3))
        dist.broadcast(torch.ones(5), src=0)
        dist.barrier()
        dist.all_gather([torch.empty(4), torch.empty(4)], torch.ones(4))
        dist.all_gather_into_tensor(torch.empty(8), torch.ones(4))
        dist.reduce(torch.ones(7), dst=1)
        dist.all_reduce(torch.ones(9), group=dist.new_group([rank]))
        functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD).sum()
    from torch.distributed.fsdp import fully_shard

    shared = torch.nn.Sequential(*(torch.nn.Linear(24, 24, bias=False) for _ in range(3)))
    for layer in shared:
        fully_shard(layer)
    fully_shard(shared)
    optimizer = OPTIMIZERS["adamw"](shared.parameters())
    with Meter() as sharded:  # the first that DTensors are asked, so their shapes are found within
        for _ in range(2):
            shared(torch.randn(8, 24)).sum().backward()
        optimizer.step()
    full = sharded.moments["optimizer step"]

    def train():
        net = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(3)))
        for layer in net:
            fully_shard(layer)
        optimizer = OPTIMIZERS["adamw"](fully_shard(net).parameters())
        for _ in range(2):
            net(torch.randn(8, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    train()
    gc.freeze()  # each peak asks the collector first
    with Meter() as again:
        train()
    # The least of several: in some a thread of gloo's still holds what it has sent. Both ranks try as often.
    allocated = 10 * again.peak_bytes
    for _ in range(100):
        allocated = min(allocated, allocators_peak(train))
        more = torch.tensor(float(allocated > 1.001 * again.peak_bytes))
        dist.all_reduce(more)
        if not more:
            break
    peak = [again.peak_bytes, allocated]
    ddp = [
        meter.all_reduces,
        meter.collectives["all-reduce"],
        meter.samples,
        meter.peak["gradients"],
    ]
    by_hand = [plain.all_reduces, plain.bytes_sent, plain.collectives]
    (folder / f"{rank}.json").write_text(
        json.dumps([ddp, by_hand, peak, [full, sharded.collectives]])
    )
    # Not destroy_process_group(): it waits, holding Python's lock, for gloo's thread, which may want that lock to free a bucket.
    os._exit(0)


def counts(calls, payload, messages, sent):
    return {"calls": calls, "payload": payload, "messages": messages, "sent": sent}


def test_collectives_of_two_ranks_are_seen(tmp_path):
    ranks = torch.multiprocessing.spawn(two_ranks, (tmp_path,), nprocs=2, join=False)
    until = time.monotonic() + 120
    while not ranks.join(timeout=1):
        assert time.monotonic() < until, "the ranks did not end"
    seen = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for _, _, (counted, allocated), _ in seen:
        assert counted == pytest.approx(allocated, rel=0.001)
    weights = 4 * (16 * 32 + 32 * 4)
    for ddp, *_ in seen:
        assert ddp[:3] == [3, counts(3, 3 * weights, 6, 3 * weights), 48]
        # Gradients and the bucket they are sent in; the bucket before has ended, though gloo's thread may still hold it.
        assert ddp[3] == 2 * weights
    # One all-reduce is in a group of this rank alone: it hands over 36 bytes and sends none.
    same = {
        "all-reduce": counts(3, 12 + 36 + 8, 2 * 2, 12 + 8),
        "barrier": counts(1, 0, 1, 0),
        "all-gather": counts(2, 2 * 16, 2, 2 * 16),
        "reduce": counts(1, 28, 1, 28),
    }
    for rank, broadcast in enumerate([counts(1, 20, 1, 20), counts(1, 0, 0, 0)]):
        assert seen[rank][1] == [3, 116 + broadcast["payload"], same | {"broadcast": broadcast}]
    # fully_shard: half of everything on each rank, gathered for the forward and the backward pass of both micro-batches.
    whole = 4 * 3 * 24 * 24
    for *_, (full, collectives) in seen:
        kept = [full["weights"], full["gradients"], full["optimizer state"]]
        assert kept == [whole / 2, whole / 2, whole + 3 * 4]  # a step count of 4 bytes each
        assert collectives == {
            "all-gather": counts(12, 2 * whole, 12, 2 * whole),
            "reduce-scatter": counts(6, 2 * whole, 6, whole),
        }


# measure


def test_measure_counts_once_and_times_the_repeats(capfd):
    attached = []

    def train():
        attached.append(len(watchers()))
        train_linear()

    run = measure(
        train, name="tiny", repeats=2, progress=False, micro_batch=8, accumulation_steps=2
    )
    assert attached[0] > 0 and attached[1:] == [0, 0]
    assert (run.samples, run.optimizer_steps, len(run.seconds)) == (16, 1, 2)
    assert run.settings == {"micro_batch": 8, "accumulation_steps": 2}
    assert run.samples_per_second > 0 and run.machine["torch"] == torch.__version__
    assert load_runs(micro_batch=8) == [run]
    assert (
        measure(train, name="tiny", repeats=1, save=False, progress=False, samples=99).samples == 99
    )
    assert len(load_runs()) == 1
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "limit, asked, timed", [("1", 3, 1), ("0", 3, 1), ("9", 3, 3), ("0", 0, 0)]
)
def test_the_environment_limits_the_repeats(monkeypatch, limit, asked, timed):
    """At 0 the seconds under the meter stand for them, where any were asked for."""
    monkeypatch.setenv("TRAINLEAN_REPEATS", limit)
    run = measure(train_linear, name="tiny", repeats=asked, save=False, progress=False)
    assert len(run.seconds) == timed and run.samples == 16


def test_only_rank_0_adds_to_the_records(monkeypatch):
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    assert measure(train_linear, name="rank 1", repeats=0).optimizer_steps == 1
    assert load_runs() == []


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (3, "needs a function, not int"),
        (lambda batch: None, "without arguments"),
        (lambda: None, "no optimizer step"),
        (
            lambda: OPTIMIZERS["sgd"]([torch.ones(1, requires_grad=True)]).step(),
            "no model being trained",
        ),
    ],
)
def test_measure_says_in_a_sentence_what_is_wrong(train, message):
    with pytest.raises(ValueError, match=message) as error:
        measure(train, name="wrong", repeats=1)
    assert str(error.value).endswith(".") and "\n" not in str(error.value)
    assert load_runs() == []


def test_a_weight_in_an_optimizers_state_stays_a_weight():
    class KeepsItsWeights(torch.optim.SGD):
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["weight itself"] = parameter
            return super().step(closure)

    model = torch.nn.Linear(100, 100, bias=False)
    optimizer = KeepsItsWeights(model.parameters(), lr=0.1)
    with Meter(model, optimizer) as meter:
        for _ in range(2):
            model(torch.ones(1, 100)).sum().backward()
            optimizer.step()
    assert (meter.peak["weights"], meter.peak["optimizer state"]) == (40_000, 0)


def test_an_evaluation_after_a_step_is_a_forward_pass():
    model = torch.nn.Linear(100, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Meter(model, optimizer) as meter:
        model(torch.ones(1, 100)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.ones(1000, 100))
    assert max(meter.moments, key=lambda phase: sum(meter.moments[phase].values())) == "forward"
    assert meter.moments["forward"]["activations"] >= 400_000


def test_what_a_backward_pass_computes_with_a_module_is_temporary():
    wide = torch.nn.Linear(100, 1000, bias=False)

    class LooksAgain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs):
            ctx.save_for_backward(inputs)
            return inputs * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient * wide(ctx.saved_tensors[0]).mean()

    model = torch.nn.Linear(100, 100)
    with Meter(model) as meter:
        LooksAgain.apply(model(torch.ones(500, 100))).sum().backward()
    assert meter.moments["backward"]["temporary"] >= 500 * 1000 * 4


def test_a_tensor_that_grows_is_counted_at_its_new_size():
    with Meter() as meter:
        grown = torch.ones(1000)
        grown.resize_(100_000)
    assert meter.peak_bytes == 404_000  # what it held is copied


def test_a_weight_that_is_used_before_its_module_is_counted_once():
    model = torch.nn.Linear(100, 100, bias=False)
    with Meter() as meter:
        torch.nn.functional.linear(torch.ones(1, 100), model.weight).sum().backward()
        model(torch.ones(1, 100))
    assert all(moment["weights"] in (0, 40_000) for moment in meter.moments.values())
    assert (
        sum(meter.peak.values()) < 2 * 40_000 + 5_000
    )  # weight and gradient, and no batch of the weight's size
