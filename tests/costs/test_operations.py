"""Operations are shown to who watches, and computed as if nobody did."""

import os
import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trainlean.costs.operations import KEY, unwatched, watched, watchers

pytestmark = pytest.mark.usefixtures("one_thread")


class Names:
    def __init__(self):
        self.seen = []

    def before(self, operation, args, kwargs):
        pass

    def after(self, operation, args, kwargs, out):
        self.seen.append(operation.name())

    def failed(self, operation):
        self.seen.append(f"{operation.name()} failed")


def test_every_operation_is_shown_and_views_are_not():
    names = Names()
    with watched(names):
        x = torch.ones(3, 4, requires_grad=True)
        (x.T @ x * 2).sum().backward()
    assert names.seen.count("aten::mm") == 3  # one forward, two backward
    assert {"aten::ones", "aten::sum", "aten::mul.Tensor"} <= {*names.seen}
    assert not {"aten::t", "aten::detach", "aten::transpose.int", "aten::expand"} & {*names.seen}


def test_autograd_adds_gradients_in_place_as_it_does_alone():
    names = Names()
    with watched(names):
        x = torch.ones(5, requires_grad=True) * 1
        sum((x * k).sum() for k in range(4)).backward()
    assert names.seen.count("aten::add_.Tensor") == 3


def test_what_a_watcher_computes_is_not_shown():
    names = Names()
    with watched(names), unwatched():
        torch.ones(3)
    assert names.seen == []


def test_two_watch_within_each_other_and_neither_stays():
    outer, inner = Names(), Names()
    with watched(outer):
        torch.ones(1)
        with watched(inner):
            torch.zeros(1)
    assert (outer.seen, inner.seen) == (["aten::ones", "aten::zeros"], ["aten::zeros"])
    assert watchers() == () and not torch._C._dispatch_tls_is_dispatch_key_included(KEY)


def test_an_operation_that_fails_is_shown_as_failed_and_raises_what_it_raises():
    names = Names()
    with watched(names), pytest.raises(RuntimeError, match="mat1 and mat2"):
        torch.ones(2, 3) @ torch.ones(2, 3)
    assert names.seen == ["aten::ones", "aten::ones", "aten::mm failed"]


def test_another_thread_is_not_watched():
    names = Names()
    with watched(names):
        thread = threading.Thread(target=torch.ones, args=(3,))
        thread.start()
        thread.join()
    assert names.seen == []


def test_a_fake_mode_that_begins_within_is_left_alone():
    names = Names()
    with watched(names):
        with FakeTensorMode() as mode, mode:
            shape = torch.zeros_like(mode.from_tensor(torch.ones(3))).clone()
        shape.add_(1)
        torch.zeros(1)
    assert names.seen[-1] == "aten::zeros" and "aten::zeros_like" not in names.seen
    with FakeTensorMode(), watched(Names()):
        torch.ones(3)
    assert not torch._C._dispatch_tls_is_dispatch_key_included(KEY)


def test_inference_mode_is_taken_apart():
    names = Names()
    with watched(names), torch.inference_mode():
        torch.nn.functional.linear(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4))
    assert "aten::addmm" in names.seen


@pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows starts processes anew")
def test_a_forked_process_is_not_watched():
    with watched(Names()):
        child = os.fork()
        if not child:
            torch.ones(3)
            os._exit(len(watchers()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(watchers()) == 1
