"""The pytest plugin: `assert_same_training` as a fixture for anybody's tests."""

import pytest


@pytest.fixture
def assert_same_training():
    """`assert_same_training(train, batch=64, accumulation_steps=4)`: fails with the verdict where it is another training."""
    from trainlean.audit.same import assert_same_training  # torch is loaded when it is needed

    return assert_same_training
