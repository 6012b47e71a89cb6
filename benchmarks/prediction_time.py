"""How long does a prediction of BERT-large take, and how far is it from the full trace and from the published figure?

    python benchmarks/prediction_time.py [--full]

Processor time is printed beside the seconds, because other programs hardly change it. `--full` traces all 24 layers.
"""

import sys
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
    wall, processor = time.perf_counter(), time.process_time()
    run = function(bert_large_config(), **settings)
    return (
        run,
        f"{time.perf_counter() - wall:5.2f} s, {time.process_time() - processor:5.2f} s of processor",
    )


def main(full):
    for settings, published in ROWS:
        run, took = timed(predict_run, **settings)
        mib = run.peak_bytes / 2**20
        print(
            f"{run.name:20} {mib:8.1f} MiB, with context {mib + CONTEXT:8.1f}, published {published}; {took}"
        )
        if full:
            whole, took = timed(predict_run, **settings, layers=None)
            error = run.peak_bytes / whole.peak_bytes - 1
            print(
                f"{'  all layers':20} {whole.peak_bytes / 2**20:8.1f} MiB, prediction off by {error:+.3%}; {took}"
            )


if __name__ == "__main__":
    main("--full" in sys.argv[1:])
