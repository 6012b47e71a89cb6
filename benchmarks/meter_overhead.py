"""Does measuring distort the time? Seconds of the same training, alone and right after a count, in turns.

    python benchmarks/meter_overhead.py [pairs]

Prints each pair side by side, the median ratio of the pairs (near 1: nothing of the meter stays behind), and what the
count itself costs, which never enters a measured time. One thread, since two wait for each other on a busy machine.
"""

import statistics
import sys
import time

import torch

from trainlean.costs.meter import Meter
from trainlean.models import small_bert
from trainlean.reviews import batches, load_reviews

DATA = batches(load_reviews()[:32], 4)


def train():
    model = small_bert()
    optimizer = torch.optim.AdamW(model.parameters())
    for i, inputs in enumerate(DATA):
        (model(**inputs).loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def counted():
    with Meter():
        train()


def seconds(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main(pairs):
    torch.set_num_threads(1)
    train()  # warm-up
    alone, after, counting = [], [], []
    print("  alone    after a count")
    for pair in range(pairs):
        # The order changes from pair to pair, so that a machine that slows down does not slow one side only.
        if pair % 2:
            counting.append(seconds(counted))
            after.append(seconds(train))
            alone.append(seconds(train))
        else:
            alone.append(seconds(train))
            counting.append(seconds(counted))
            after.append(seconds(train))
        print(f"{alone[-1]:7.3f} s {after[-1]:7.3f} s")
    ratio, cost = (
        statistics.median(b / a for a, b in zip(alone, other)) for other in (after, counting)
    )
    print(f"a training after a count takes {ratio:.2f} times what it takes alone")
    print(f"a training while it is counted takes {cost:.2f} times what it takes alone")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
