"""Does measuring distort the time? Seconds of the same training, alone and right after a count, in turns.

    python benchmarks/meter_overhead.py [--pairs 9] [--short]

Prints each pair side by side, the median ratio of the pairs (near 1: nothing of the meter stays behind), and what the
count itself costs, which never enters a measured time. One thread, since two wait for each other on a busy machine.
"""

import argparse
import statistics
import time

import torch

from trainlean.costs.meter import Meter
from trainlean.models import small_bert
from trainlean.reviews import batches, load_reviews


def train(data):
    model = small_bert()
    optimizer = torch.optim.AdamW(model.parameters())
    for i, inputs in enumerate(data):
        (model(**inputs).loss / 4).backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()


def counted(data):
    with Meter():
        train(data)


def seconds(function, data):
    start = time.perf_counter()
    function(data)
    return time.perf_counter() - start


def main(arguments=None):
    parser = argparse.ArgumentParser(description="What measuring memory costs.")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--short", action="store_true", help="one pair of a small training")
    options = parser.parse_args(arguments)
    data = batches(load_reviews()[: 4 if options.short else 32], 4)
    torch.set_num_threads(1)
    train(data)  # warm-up
    alone, after, counting = [], [], []
    print("  alone    after a count")
    for pair in range(1 if options.short else options.pairs):
        # The order changes from pair to pair, so that a machine that slows down does not slow one side only.
        if pair % 2:
            counting.append(seconds(counted, data))
            after.append(seconds(train, data))
            alone.append(seconds(train, data))
        else:
            alone.append(seconds(train, data))
            counting.append(seconds(counted, data))
            after.append(seconds(train, data))
        print(f"{alone[-1]:7.3f} s {after[-1]:7.3f} s")
    ratio, cost = (
        statistics.median(b / a for a, b in zip(alone, other)) for other in (after, counting)
    )
    print(
        f"a training takes {ratio:.2f} times what it takes alone after a count, and {cost:.2f} times while it is counted"
    )


if __name__ == "__main__":
    main()
