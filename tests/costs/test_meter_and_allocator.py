"""The meter against the allocator, on models that a meter may disturb; and what it says where the two differ."""

import contextlib
import copy
import dataclasses
import threading
import types
import warnings

import meter_against_allocator
import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore
from trainings import SLOW, TRAININGS, Branches, fit, mlp
from trainings import rows as batch_of_rows

import trainlean.costs.meter
from trainlean.costs import allocations
from trainlean.costs.measuring import measure
from trainlean.costs.meter import Meter
from trainlean.costs.runs import summary

pytestmark = pytest.mark.usefixtures("one_thread")
AGREE = (
    "branches_on_one_tensor",
    "densely_connected",
    "mixture_of_experts",
    "gradient_penalty",
    "sparse_embedding",
    "nested_tensors",
    "nested_tensors_strided",
    "functional_gradients",
    "gradients_of_each_sample",
    "indexing_and_sorting",
    "distillation_in_inference_mode",
    "custom_autograd_function",
    "optimizer_in_the_backward_pass",
)


def test_the_meter_is_compared_on_at_least_forty_trainings():
    assert len(TRAININGS) >= 40 and set(AGREE) <= TRAININGS.keys() - SLOW


def test_only_a_sentence_with_the_allocators_peak_is_a_difference_that_is_said():
    """A difference in silence misses, as does one whose sentence goes with another number, or with none."""
    differ = meter_against_allocator.Comparison("unet", 700, 1000, "At its fullest moment ...")
    assert dataclasses.replace(differ, heard=1000).verdict == "said"
    assert dataclasses.replace(differ, heard=800).verdict == "MISSES"
    assert differ.verdict == "MISSES"
    assert dataclasses.replace(differ, heard=1000, said="").verdict == "MISSES"
    assert dataclasses.replace(differ, counted=0, allocated=0).verdict == "said"  # no measurement


@pytest.mark.parametrize("name", AGREE)
def test_the_peak_is_the_allocators(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one = meter_against_allocator.compare(name)
    assert one.verdict == "agrees" and one.said == ""


def test_lazy_modules_get_their_weights_under_the_meter():
    def train():
        model = torch.nn.Sequential(
            torch.nn.LazyLinear(256), torch.nn.ReLU(), torch.nn.LazyLinear(10)
        )
        model(torch.ones(1, 64))
        fit(model, batch_of_rows)

    with Meter() as meter:
        train()
    assert meter.peak_bytes == meter_against_allocator.allocators_peak(train)


def test_distributed_tensors_are_counted_once():
    """As the same training on plain tensors: the allocator itself tells another number now and then, of threads that communicate."""

    def plain():
        model = mlp(64, 512, 10)
        fit(model, batch_of_rows, optimizer=torch.optim.AdamW(model.parameters()))

    peaks = []
    for train in (plain, TRAININGS["distributed_tensors"]):
        with Meter() as meter:
            train()
        peaks.append(meter.peak_bytes)
    assert peaks[1] == pytest.approx(peaks[0], rel=0.001)


@pytest.mark.parametrize("name", ["unet", "lstm", "bfloat16_weights"])
def test_scratch_memory_of_kernels_is_said_with_its_size(name):
    with pytest.warns(UserWarning, match="scratch memory"), Meter() as meter:
        TRAININGS[name]()
    assert meter.allocator_peak == meter_against_allocator.allocators_peak(TRAININGS[name])
    assert f"{1 - meter.peak_bytes / meter.allocator_peak:.1%} more" in meter.note


def test_random_states_that_checkpoints_keep_are_said_and_are_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Meter() as meter:
            TRAININGS["checkpointed_small"]()
    state = torch.get_rng_state().nbytes
    assert state < meter.allocator_peak - meter.peak_bytes < 5 * state
    assert "KiB of random states" in meter.note


def branches(rows=256):
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        F.cross_entropy(model(torch.randn(rows, 64)), torch.randint(10, (rows,))).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_fake_tensors_are_counted_as_real_ones():
    with Meter() as real:
        branches()
    with FakeTensorMode(), Meter() as fake:
        branches()
    assert (fake.peak, fake.flops, fake.samples) == (real.peak, real.flops, real.samples)


def test_gradients_of_fake_branches_are_added_in_place():
    """Where a model is fullest as they are added: in new memory the peak of a prediction would be half as much again."""

    def train():
        shared = torch.nn.Linear(64, 512, bias=False)(torch.ones(1000, 64))
        sum((shared * k).sum() for k in (1, 2, 3)).backward()

    with Meter() as real:
        train()
    with FakeTensorMode(), Meter() as fake:
        train()
    allocated = meter_against_allocator.allocators_peak(train)
    assert fake.peak_bytes == real.peak_bytes == pytest.approx(allocated, rel=0.001)


def test_gradients_are_the_same_under_the_meter():
    def gradient(counted):
        torch.manual_seed(0)
        model = Branches()
        if counted:
            with Meter():
                model(torch.ones(4, 64)).sum().backward()
        else:
            model(torch.ones(4, 64)).sum().backward()
        return model.stem.weight.grad

    assert torch.equal(gradient(True), gradient(False))


def test_a_run_keeps_what_the_allocator_says_beside_its_peak():
    with pytest.warns(UserWarning, match="scratch memory"):
        run = measure(TRAININGS["unet"], name="unet", repeats=0, save=False)
    assert run.device_bytes["allocator_peak"] > 1.1 * run.peak_bytes
    plain = measure(branches, name="branches", repeats=0, save=False)
    assert plain.device_bytes == {}
    assert "allocator MiB" in summary([run, plain]) and "allocator MiB" not in summary([plain])


def test_a_training_in_another_thread_is_an_error():
    with pytest.raises(RuntimeError, match="in another thread"), Meter():
        thread = threading.Thread(target=branches)
        thread.start()
        thread.join()


def test_what_a_communicating_thread_holds_ends_with_its_last_use():
    """A collective's own thread may be the last to let go of what was sent, and the profiler does not hear that thread."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    kept = []
    try:
        with Meter() as meter:
            flat = torch.ones(100_000)
            dist.all_reduce(flat)
            mean = flat / 2
            kept.append(flat)
            del flat, mean
            torch.ones(50_000).sum()
            releasing = threading.Thread(target=kept.clear)
            releasing.start()
            releasing.join()
            torch.ones(150_000).sum()
    finally:
        dist.destroy_process_group()
    assert 4 * 200_000 <= meter.peak_bytes < 4 * 201_000
    assert meter.allocator_peak < 4 * 201_000


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_a_collective_copies_ends_with_its_last_use(elsewhere):
    """Gloo reduces a copy of what is scattered; at times its thread is the last to let go of it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with Meter() as meter:
            part, parts = torch.empty(100_000), torch.ones(100_000)
            for _ in range(2):
                works = [dist.reduce_scatter_tensor(part, parts, async_op=True)]
                works[0].wait()
                releasing = threading.Thread(target=works.clear)
                releasing.start() if elsewhere else releasing.run()
                if elsewhere:
                    releasing.join()
                torch.ones(10_000_000).sum()  # too large to come where the copy was
    finally:
        dist.destroy_process_group()
    assert 4 * 10_200_000 <= meter.peak_bytes < 4 * 10_201_000
    assert 4 * 10_200_000 <= meter.allocator_peak < 4 * 10_201_000


def test_a_collectives_own_thread_writes_nothing_that_a_meter_frees(monkeypatch):
    """Gloo's thread ends the label of a collective, at times after the meter has gone: the process died of it."""
    heard, disable = [], allocations._autograd._disable_profiler

    def names():
        told = disable()
        heard.extend(event.name for event in told.experimental_event_tree())
        return told

    monkeypatch.setattr(allocations._autograd, "_disable_profiler", names)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with Meter():
            dist.all_reduce(torch.ones(1000))
    finally:
        dist.destroy_process_group()
    assert set(heard) == {"[memory]"}


def test_a_gradient_that_another_thread_lets_go_of_does_not_come_back():
    """It was looked at after its last use: its end lies behind that, or it would count from the start and for ever."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    net, kept = torch.nn.Linear(300, 300, bias=False), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    try:
        with Meter(net, optimizer) as meter:
            net(torch.ones(2, 300)).sum().backward()
            dist.all_reduce(net.weight.grad)
            optimizer.step()
            torch.ones(1).sum()
            optimizer.zero_grad(set_to_none=False)
            net.eval()(torch.ones(2, 300))
            kept.append(net.weight.grad)
            net.weight.grad = None
            releasing = threading.Thread(target=kept.clear)
            releasing.start()
            releasing.join()
            net(torch.ones(2, 300)).sum().backward()
    finally:
        dist.destroy_process_group()
    assert meter.peak["gradients"] == 4 * 300 * 300


def test_what_was_there_before_ends_when_it_is_released():
    """torch's profiler does not tell that memory which was handed out before it comes back."""
    net = torch.nn.Linear(300, 300, bias=False)
    net(torch.ones(2, 300)).sum().backward()
    with Meter(net) as meter:
        net.zero_grad()
        net(torch.ones(2, 300)).sum().backward()
    once = 4 * 300 * 300
    assert meter.peak["gradients"] == once
    assert meter.timeline[-1][1]["gradients"] == once
    assert 2 * once < meter.allocator_peak < 2 * once + 20_000


def test_a_compiled_training_is_measured_compiled_and_the_meter_is_not_compiled():
    """What a compiled function calls is compiled as well, and so were the meter's own functions; or nothing was, for its hooks."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    compiled = torch.compile(model, backend="eager")
    counters.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile")  # of hooks, which a meter has
        with Meter() as meter:
            compiled(torch.ones(2, 4)).sum().backward()
    assert dict(counters["stats"]) == {"calls_captured": 2, "unique_graphs": 1}
    assert dict(counters["frames"]) == {"total": 1, "ok": 1}
    assert (meter.flops, meter.samples) == (128, 2)


class Broken(torch.nn.Module):
    """What torch.compile computes in two graphs, and in Python between them."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.first(x)
        torch._dynamo.graph_break()
        return self.second(hidden.relu())


def test_where_a_compiled_model_goes_on_in_python_the_meter_is_not_compiled():
    """There operations are called from Python that torch.compile looks at, and the meter from them."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), Broken())

    def train(model):
        torch._dynamo.reset()
        counters.clear()
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
        return dict(counters["frames"])

    compiled = torch.compile(model, backend="eager")
    alone = train(compiled)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using `torch.compile")  # of hooks, which a meter has
        with Meter() as meter:
            assert train(compiled) == alone
    with Meter() as plain:
        train(model)
    assert meter.flops == plain.flops > 0


def test_two_meters_in_two_threads_count_their_own():
    found, both = {}, threading.Barrier(2, timeout=60)

    def count(name, rows):
        with warnings.catch_warnings(), Meter() as meter:
            both.wait()
            branches(rows)
            both.wait()
        found[name] = meter

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        threads = [threading.Thread(target=count, args=(rows, rows)) for rows in (64, 256)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    alone = {}
    for rows in (64, 256):
        with Meter() as alone[rows]:
            branches(rows)
    for rows, meter in found.items():
        counts = (meter.samples, meter.optimizer_steps, meter.flops)
        assert counts == (alone[rows].samples, alone[rows].optimizer_steps, alone[rows].flops)
        # One of them hears the allocator; the other has the same peak, or says that it may be too high.
        assert meter.peak == alone[rows].peak or "too high" in meter.note
    assert sorted(meter.allocator_peak is None for meter in found.values()) == [False, True]


def test_a_meter_within_a_meter():
    with Meter() as outer:
        branches(64)
        with Meter() as inner:
            branches()
    with Meter() as alone:
        branches()
    assert (inner.peak, inner.allocator_peak) == (alone.peak, alone.allocator_peak)
    assert outer.peak_bytes == alone.peak_bytes and outer.samples == alone.samples + 128


def test_within_somebodys_profiler_the_peak_may_be_too_high_and_is_said_to_be():
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profiler, pytest.warns(UserWarning, match="could not be heard"), Meter() as meter:
        branches()
    with Meter() as alone:
        branches()
    assert meter.allocator_peak is None and meter.flops == alone.flops


@pytest.mark.parametrize("name", ["unet", "lstm"])
def test_within_somebodys_profiler_what_is_missing_is_said(name):
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profiler, pytest.warns(UserWarning, match="since a profiler .* runs"), Meter() as meter:
        TRAININGS[name]()
    assert meter.allocator_peak is None and "without what kernels" in meter.note


@pytest.mark.parametrize(
    "name",
    [
        "branches_on_one_tensor",
        "tied_weights",
        "custom_autograd_function",
        "optimizer_adagrad",
        "nested_tensors_strided",
        "functional_gradients",
        "gradients_of_each_sample",
    ],
)
def test_where_the_allocator_is_not_heard_references_tell_the_same(name, monkeypatch):
    monkeypatch.setattr(trainlean.costs.meter, "recording", contextlib.nullcontext)
    with Meter() as meter:
        TRAININGS[name]()
    allocated = meter_against_allocator.allocators_peak(TRAININGS[name])
    assert meter.allocator_peak is None and meter.peak_bytes == pytest.approx(allocated, rel=0.001)


def test_sparse_gradients_are_found_by_references(monkeypatch):
    """As a card's are: their indices and their values, which no operation makes as one tensor."""
    monkeypatch.setattr(trainlean.costs.meter, "recording", contextlib.nullcontext)
    words = torch.nn.Embedding(1000, 32, sparse=True)
    with Meter(words) as meter:
        words(torch.arange(60)).sum().backward()
    assert meter.peak["gradients"] == 60 * (8 + 4 * 32)


def test_distributed_tensors_are_found_by_references(monkeypatch):
    """As a card's are: the half that this rank holds."""
    monkeypatch.setattr(trainlean.costs.meter, "recording", contextlib.nullcontext)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        layer = torch.nn.Linear(64, 512, bias=False)
        parallelize_module(layer, dist.init_device_mesh("cpu", (2,)), ColwiseParallel())
        optimizer = torch.optim.Adam(layer.parameters())
        with Meter(layer) as meter:
            layer(torch.ones(2, 64)).sum().backward()
            optimizer.step()
    finally:
        dist.destroy_process_group()
    half = 4 * 64 * 256
    kept = [meter.peak[name] for name in ("weights", "gradients", "optimizer state")]
    assert kept == [half, half, 2 * half + 4]


def test_on_a_card_a_meter_goes_by_references_and_says_what_the_allocator_had_beside(monkeypatch):
    """CUDA's allocator is not heard: with its events (none came, on an H100) all activations were missing."""
    on_card = types.SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(trainlean.costs.meter, "recording", contextlib.nullcontext)
    with Meter() as meter:
        branches()
    monkeypatch.undo()
    with Meter() as hearing:
        assert hearing._blocks(on_card) is hearing._referenced
    monkeypatch.setattr(trainlean.costs.meter, "device_of", lambda blocks: "cuda")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 10 * 2**20)
    for block in meter.blocks:
        block.device = "cuda"
    said = meter.note
    assert "handed out 10.0 MiB at its fullest moment" in said and "workspaces of kernels" in said
    assert "gradients are added in new memory" in said  # those of branches


def test_a_profiler_within_a_meter_is_refused_in_a_sentence():
    with pytest.raises(RuntimeError, match="outside of `measure`"), Meter():
        TRAININGS["profiled_by_itself"]()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        pass  # and torch's is as it was


def test_what_was_there_before_may_go_without_a_word(capfd):
    """torch's C++ would warn at the first such block and at each thousandth after it."""
    before = [torch.ones(1) for _ in range(1001)]
    with Meter():
        before.clear()
    assert capfd.readouterr().err == ""


def _ensemble():
    """As torch's tutorial has it: the module called is one of shapes, its weights come as arguments."""
    models = [mlp(64, 256, 10) for _ in range(4)]
    weights, buffers = torch.func.stack_module_state(models)
    shapes = copy.deepcopy(models[0]).to("meta")
    optimizer = torch.optim.Adam(weights.values())

    def one(weights, buffers, x):
        return torch.func.functional_call(shapes, (weights, buffers), (x,))

    for _ in range(2):
        torch.vmap(one, in_dims=(0, 0, None))(weights, buffers, torch.ones(32, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def _looked_at_first():
    for shapes_only in (torch.device("meta"), FakeTensorMode()):
        with shapes_only:
            mlp(64, 512, 10)(torch.ones(100, 64)).sum().backward()
    fit(mlp(64, 256, 10), batch_of_rows)


@pytest.mark.parametrize("train", [_ensemble, _looked_at_first])
def test_a_module_of_shapes_alone_says_nothing_of_the_device(train):
    train()
    with Meter() as meter:
        train()
    allocated = meter_against_allocator.allocators_peak(train)
    assert meter.peak_bytes == pytest.approx(allocated, rel=0.001) and meter.note == ""


def test_a_traced_model_has_whole_samples():
    with Meter() as meter:
        model = torch.jit.trace(mlp(64, 256, 10), torch.ones(4, 64))
        fit(model, batch_of_rows)
    assert isinstance(meter.samples, int)


def test_memory_that_is_not_the_allocators_is_said():
    weight = torch.nn.Parameter(torch.from_numpy(np.ones((300, 64), dtype=np.float32)))
    rows = np.ones((200, 64), dtype=np.float32)

    def train():
        torch.nn.functional.linear(torch.from_numpy(rows), weight).square().sum().backward()
        weight.grad = None

    train()
    with Meter() as meter:
        train()
    allocated = meter_against_allocator.allocators_peak(train)
    assert meter.allocator_peak == pytest.approx(allocated, rel=0.001)
    assert meter.peak_bytes == pytest.approx(allocated + 4 * 500 * 64, rel=0.001)
    assert "125.0 KiB are no memory of torch's allocator" in meter.note


def test_numpys_memory_ends_when_it_is_released():
    weight = torch.nn.Parameter(torch.ones(64, 64))
    rows = np.ones((2000, 64), dtype=np.float32)

    def train():
        for start in range(0, 2000, 200):
            part = torch.from_numpy(rows[start : start + 200].copy())
            (part @ weight).sum().backward()

    train()
    with Meter() as meter:
        train()
    beside = meter.peak_bytes - meter_against_allocator.allocators_peak(train)
    assert 200 * 64 * 4 <= beside < 2 * 200 * 64 * 4


@pytest.mark.parametrize("format", ["torch", "safetensors"])
def test_weights_in_a_mapped_file_are_counted_once(format, tmp_path):
    path = tmp_path / "weights"
    weights = mlp(64, 256, 10).state_dict()
    torch.save(weights, path) if format == "torch" else save_file(weights, path)

    def train():
        with torch.device("meta"):
            model = mlp(64, 256, 10)
        loaded = torch.load(path, mmap=True) if format == "torch" else load_file(path)
        model.load_state_dict(loaded, assign=True)
        fit(model, batch_of_rows)

    train()
    with Meter() as meter:
        train()
    allocated = meter_against_allocator.allocators_peak(train)
    assert meter.peak_bytes == pytest.approx(allocated, rel=0.001)
    assert meter.peak["weights"] >= sum(weight.nbytes for weight in weights.values())


def in_a_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("before", [False, True])
def test_a_backward_pass_in_another_thread_is_said(before):
    """Its FLOPs are not counted: of a model made within, and of one from before."""

    def train(model, backward):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            backward(model(batch_of_rows()[0]).sum())
            optimizer.step()
            optimizer.zero_grad()

    meters = []
    for backward in (torch.Tensor.backward, lambda loss: in_a_thread(loss.backward)):
        made = mlp(64, 256, 10)
        with Meter() as meter:
            train(made if before else mlp(64, 256, 10), backward)
        meters.append(meter)
    here, elsewhere = meters
    assert "Another thread" not in here.note
    assert elsewhere.flops < here.flops and "Another thread trained" in elsewhere.note


def test_what_another_thread_trains_beside_is_said():
    def train():
        fit(mlp(64, 256, 10), batch_of_rows)

    with Meter() as alone:
        train()
    with Meter() as meter:
        in_a_thread(train)
        train()
    assert "Another thread" not in alone.note
    assert "Another thread trained" in meter.note
