"""What `trainlean audit` does and prints."""

import json as json_module
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from trainlean.audit.same import same_training
from trainlean.audit.verdict import Audit
from trainlean.plan.reading import function_of_file
from trainlean.workspace import CourseError


@contextmanager
def _children_on_stderr():
    """What programs print that the function starts is no part of the verdict."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def audit_file(
    where: str, *, batch: int, accumulate: int, checkpointing: bool, ranks: int, json: bool
) -> Audit:
    """Audit the function of `file.py:function` and print the verdict. CourseError: what cannot be, in a sentence."""
    path, colon, name = where.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise CourseError(
            f"{where!r} is no file.py:function: `trainlean audit mine.py:train` calls train(micro_batch, accumulation_steps)."
        )
    try:
        train = function_of_file(Path(path), name)
    except ValueError as error:
        raise CourseError(str(error)) from None
    # The function may import what lies beside it, also while it runs.
    beside = mock.patch.object(sys, "path", [str(Path(path).resolve().parent), *sys.path])
    with beside, _children_on_stderr():
        audit = same_training(train, batch, accumulate, checkpointing=checkpointing, ranks=ranks)
    if json:
        print(json_module.dumps(audit.to_dict(), indent=2))
    else:
        print(audit)
        if audit.lesson:
            print(f"Lesson: {audit.lesson}")
    return audit
