"""The questions of the lesson 3_local_sgd/1_pytorch."""

from exercises_tests.probing.local_sgd import LocalCase, probe_on_ranks

CASES = (
    LocalCase(micro_batches=16, accumulation_steps=2, local_steps=3),
    LocalCase(micro_batches=8, accumulation_steps=1, local_steps=2, tied=True),
    LocalCase(micro_batches=18, accumulation_steps=2, local_steps=2, world_size=3),
    LocalCase(micro_batches=9, accumulation_steps=2, local_steps=2, frozen=True),  # one left over
    LocalCase(micro_batches=7, accumulation_steps=1, local_steps=1),  # one left over
    LocalCase(micro_batches=6, accumulation_steps=1, local_steps=2, momentum=0.9),
    LocalCase(micro_batches=8, accumulation_steps=1, local_steps=3, groups=True, twice=True),
    LocalCase(micro_batches=12, accumulation_steps=2, local_steps=4, now_and_then=True),
    LocalCase(micro_batches=3, accumulation_steps=2, local_steps=2),  # no step at all
)

train_local_sgd = probe_on_ranks(
    CASES,
    lambda case, micro_batches, rank: (
        list(micro_batches),
        case.accumulation_steps,
        case.local_steps,
    ),
    apart=True,
)
