"""What must be seen in the lesson 3_local_sgd/1_pytorch: replicas trained and averaged in one process."""

from exercises_tests.truth.local_sgd import oracle_local_sgd

from .probes import CASES

train_local_sgd = oracle_local_sgd(CASES, apart=True)
