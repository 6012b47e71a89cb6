"""Is the meter's peak the allocator's? Trainings in many styles, each under the meter and alone under torch's profiler.

    python benchmarks/meter_against_allocator.py [TRAINING ...] [--short]
    TRAINLEAN_DEVICE=cuda python benchmarks/meter_against_allocator.py [TRAINING ...]

Prints for each training both peaks, and the sentence where the meter says one. A training agrees when the peaks are
equal to 0.1 %. It is said where a sentence says that they are not, and the meter tells the allocator's to 0.1 %, or where an
error of one sentence says that it cannot be measured. On a card all that a training makes without naming a device is made
there, and alone it is heard by the caching allocator's own statistics.
"""

import argparse
import gc
import sys
import traceback
import warnings
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile
from trainings import SLOW, TRAININGS

from trainlean.costs.meter import TOLERANCE, Meter
from trainlean.workspace import the_device

STEP = 16  # the short form takes every sixteenth training; the tests have a dozen of their own


@dataclass(frozen=True)
class Comparison:
    """One training: the meter's peak and the allocator's in bytes, and what the meter said."""

    name: str
    counted: int
    allocated: int
    said: str
    heard: int | None = None  # the allocator's peak as the meter tells it, beside its own

    @property
    def verdict(self):
        """agrees, said, MISSES, or no training where it does not run at all (on a card, which it was not written for)."""
        if self.said.startswith("no training"):
            return "no training"
        if self.said.startswith("crashed"):
            return "MISSES"
        if self.allocated and abs(self.counted - self.allocated) <= TOLERANCE * self.allocated:
            return "agrees"
        heard = self.heard is None or abs(self.heard - self.allocated) <= TOLERANCE * self.allocated
        unheard = self.heard is None and self.counted > 0 and the_device() != "cuda"
        return "said" if self.said and heard and not unheard else "MISSES"


def allocators_peak(train) -> int:
    """The peak of torch's CPU allocator in bytes over a training, from the profiler's memory events; 0 where it cannot be heard."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train()
    live = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


def cards_peak(train) -> int:
    """The peak of CUDA's caching allocator in bytes over a training, as it rounds them."""
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    train()
    return torch.cuda.max_memory_allocated() - before


def compare(name: str) -> Comparison:
    """Measure a training both ways."""
    train = TRAININGS[name]
    # A training with reference cycles peaks where Python happens to collect them, which is elsewhere with a meter or a profiler.
    gc.collect()
    gc.disable()
    try:
        return _compare(name, train)
    finally:
        gc.enable()


def _compare(name: str, train) -> Comparison:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        on_card = the_device() == "cuda"
        if name not in PROFILED or on_card:
            try:
                train()  # what is made once for a process is made
            except Exception as error:
                if not on_card:
                    raise
                return Comparison(name, 0, 0, f"no training: {type(error).__name__}: {error}"[:200])
        counted, said, heard = 0, "", None
        try:
            with Meter() as meter:
                train()
            counted, said, heard = meter.peak_bytes, meter.note, meter.allocator_peak
        except (RuntimeError, ValueError) as error:
            text = str(error)
            sentence = text.endswith(".") and "\n" not in text and "Meter" in text
            said = (
                text
                if sentence
                else f"crashed: {type(error).__name__}: {traceback.format_exc()[-700:]}"
            )
        if on_card:
            allocated = cards_peak(train)
        else:
            allocated = 0 if name in PROFILED else allocators_peak(train)
    return Comparison(name, counted, allocated, said, heard)


PROFILED = {"profiled_by_itself", "in_a_thread"}  # the profiler does not hear these


def main(arguments=None) -> int:
    """Returns how many trainings miss."""
    parser = argparse.ArgumentParser(description="Is the meter's peak the allocator's?")
    parser.add_argument("trainings", nargs="*")
    parser.add_argument("--short", action="store_true", help="a few trainings")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    torch.set_default_device(the_device())
    names = options.trainings or list(TRAININGS)
    if options.short:
        names = [name for name in TRAININGS if name not in SLOW][::STEP]
    verdicts = []
    for name in names:
        one = compare(name)
        verdicts.append(one.verdict)
        off = (one.counted / one.allocated - 1) if one.allocated else 0
        print(
            f"{name:40} {one.counted:>10,} {one.allocated:>10,} {off:+8.2%}  {one.verdict}  {one.said}",
            flush=True,
        )
    print(
        f"{verdicts.count('agrees')} of {len(names)} trainings agree with the allocator to 0.1 %, "
        f"{verdicts.count('said')} are said not to, {verdicts.count('MISSES')} miss"
    )
    return verdicts.count("MISSES")


if __name__ == "__main__":
    sys.exit(bool(main(sys.argv[1:])))
