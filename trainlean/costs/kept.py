"""Predictions that were made before, in the work folder: a notebook that is opened again has them at once."""

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

import torch

from trainlean.workspace import work_folder, write_whole


def kept(question: list, make: Callable[[], dict]) -> dict:
    """The answer of `make()`, a dictionary that JSON can hold; kept for the next time that the same question is asked.

    The same question is the same text for the same libraries, the same sources of these predictions, and, since a kernel's own
    memory is measured, the same kind of processor and number of threads. A folder that cannot be written keeps nothing.
    `$TRAINLEAN_PREDICTIONS` names another folder than the work folder's, for several to share.
    """
    about = [*question, _made_with(), torch.get_num_threads()]
    name = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode()).hexdigest()[:24]
    with suppress(OSError, ValueError):
        return json.loads(_path(name).read_text(encoding="utf-8"))
    answer = make()
    with suppress(OSError):
        write_whole(_path(name), json.dumps(answer))
    return answer


def _path(name):
    folder = os.environ.get("TRAINLEAN_PREDICTIONS") or work_folder() / "predictions"
    return Path(folder) / f"{name}.json"


@cache
def _made_with():
    sources = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    versions = [metadata.version(name) for name in ("torch", "transformers")]
    processor = torch.backends.cpu.get_cpu_capability()
    return [hashlib.sha256(sources).hexdigest(), versions, processor]
