"""How long does a prediction of BERT-large take, and how far is it from the full trace and from the published figure?

    python benchmarks/prediction_time.py [--full] [--short]

Processor time is printed beside the seconds, because other programs hardly change it. `--full` traces all 24 layers.
"""

import argparse
import statistics
import time

from trainlean.costs.predict import predict_run
from trainlean.models import bert_large_config

CONTEXT = 1343  # MiB of CUDA context, which the published figures include
ROWS = [
    (dict(micro_batch=4), 14949),
    (dict(micro_batch=1, accumulation_steps=4), 8681),
    (dict(micro_batch=1, accumulation_steps=4, checkpointing=True), 6775),
]


def timed(function, **settings):
    """The run, its seconds of processor, and both times in words."""
    wall, processor = time.perf_counter(), time.process_time()
    run = function(bert_large_config(), **settings)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    return run, processor, f"{wall:5.2f} s, {processor:5.2f} s of processor"


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Seconds of a prediction for BERT-large.")
    parser.add_argument("--full", action="store_true", help="also trace all 24 layers")
    parser.add_argument("--short", action="store_true", help="the first row only")
    options = parser.parse_args(arguments)
    seconds, errors = [], []
    for settings, published in ROWS[:1] if options.short else ROWS:
        run, processor, took = timed(predict_run, **settings)
        mib = run.peak_bytes / 2**20
        print(
            f"{run.name:20} {mib:8.1f} MiB, with context {mib + CONTEXT:8.1f}, published {published}; {took}"
        )
        seconds.append(processor)
        errors.append(abs((mib + CONTEXT) / published - 1))
        if options.full:
            whole, _, took = timed(predict_run, **settings, layers=None)
            error = run.peak_bytes / whole.peak_bytes - 1
            print(
                f"{'  all layers':20} {whole.peak_bytes / 2**20:8.1f} MiB, prediction off by {error:+.3%}; {took}"
            )
    print(
        f"a prediction takes {statistics.median(seconds):.2f} s of processor and is {max(errors):.1%} off at most"
    )


if __name__ == "__main__":
    main()
