"""What the garbage collector need not look at."""

import gc

import pytest

from trainlean import collector
from trainlean.collector import spared


@pytest.fixture
def nothing_frozen(monkeypatch):
    """As in a learner's kernel: nobody has frozen anything for good."""
    monkeypatch.setattr(collector, "_for_good", False)
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


def test_what_is_there_is_spared_until_the_last_block_ends(nothing_frozen):
    with spared():
        with spared():
            pass
        assert gc.get_freeze_count() > 0, "the inner block has ended, the outer one has not"
    assert gc.get_freeze_count() == 0


def test_what_python_freezes_itself_spares_nothing(nothing_frozen, monkeypatch):
    """3.12 has frozen 375 objects when it has started."""
    monkeypatch.setattr(gc, "get_freeze_count", lambda: 375)
    with spared():
        monkeypatch.undo()
        assert gc.get_freeze_count() > collector.OWN


def test_what_was_frozen_later_stays_though_somebody_was_spared_before(nothing_frozen):
    """A file of tests that predicts while it is collected comes before what tests freeze."""
    with spared():
        pass
    gc.freeze()
    with spared():
        pass
    assert gc.get_freeze_count() > 0


def test_tests_spare_what_they_have_imported():
    """Else every meter and every test would have the collector look at all of torch: a fifth of the run."""
    with spared():
        pass
    assert gc.get_freeze_count() > collector.OWN
