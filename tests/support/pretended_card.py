"""A card that is not there: torch says that there is one, and whatever would move to it fails.

`pretend` is for this process. `environment_with` gives the variables under which it holds in every process of a command,
those that these start included: Python imports `every_process/sitecustomize.py` before anything else.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

KINDS = ("cuda", "mps")
VARIABLE = "TRAINLEAN_PRETENDED_CARD"  # the kind, for processes that are started
CARDS = 2


class MovedToTheCard(RuntimeError):
    """Something was about to be computed on a card, or to be kept on it."""


def pretend(kind: str, setattr=setattr) -> None:
    """Have torch say that a card of that kind is there. `setattr` may be monkeypatch's, which takes it back."""
    import torch

    def moved():  # a function of its own for each name: torch.compile keeps a table of them
        def fail(*_, **__):
            raise MovedToTheCard(
                f"this would go to the card ({kind}); the course's world is the CPU"
            )

        return fail

    def everywhere(value):
        return lambda *_, **__: value

    def hidden():
        return kind == "cuda" and os.environ.get("CUDA_VISIBLE_DEVICES") == ""

    def available(*_, **__):
        """Not for torch.compile, which keeps streams and a generator's state of any card there is, and tries its patterns there: they have no stand-ins."""
        asking = sys._getframe(1).f_globals.get("__name__", "")
        return not (hidden() or asking.startswith(("torch._dynamo", "torch._inductor")))

    def count(*_, **__):
        return 0 if hidden() else CARDS if kind == "cuda" else 1

    setattr(torch.accelerator, "is_available", available)
    setattr(torch.accelerator, "current_accelerator", everywhere(torch.device(kind)))
    setattr(torch.accelerator, "device_count", count)
    # What torch's own averager and optimizers ask of any card, wherever the tensors are.
    setattr(torch.accelerator, "synchronize", everywhere(None))
    idle = SimpleNamespace(is_capturing=everywhere(False))
    setattr(torch.accelerator, "current_stream", everywhere(idle))
    setattr(torch.Tensor, "pin_memory", lambda self, *_: self)  # pages of this machine's memory
    if kind == "cuda":
        # What torch calls before the first thing that happens on a card, from Python and from C++.
        for module in (torch.cuda, torch.cuda.random, torch.cuda.memory):
            if hasattr(module, "_lazy_init"):
                setattr(module, "_lazy_init", moved())
        setattr(torch.cuda, "is_available", available)
        setattr(torch.cuda, "device_count", count)
        for name, value in {
            "get_device_name": "a pretended card",
            "get_device_capability": (9, 0),
            "is_bf16_supported": True,
            "memory_allocated": 0,
            "memory_reserved": 0,
            "empty_cache": None,  # where nothing is kept, nothing is done
        }.items():
            setattr(torch.cuda, name, everywhere(value))
        for name in (
            "set_device",
            "current_device",
            "synchronize",
            "mem_get_info",
            "current_stream",
        ):
            setattr(torch.cuda, name, moved())
    else:
        setattr(torch.backends.mps, "is_available", everywhere(True))
        setattr(torch.backends.mps, "is_built", everywhere(True))
        for name in ("synchronize", "current_allocated_memory", "driver_allocated_memory"):
            setattr(torch.mps, name, moved())
        setattr(torch.mps, "empty_cache", everywhere(None))
        # The build has no such device: tensors would fail there, but with words that only torch's authors know.
        real, fail = torch.Tensor.to, moved()

        def to(self, *args, **named):
            wanted = [*args[:1], named.get("device")]
            if any(
                str(one).startswith(kind) for one in wanted if isinstance(one, str | torch.device)
            ):
                fail()
            return real(self, *args, **named)

        setattr(torch.Tensor, "to", to)


def forget() -> None:
    """Whether there is a card is asked again, by libraries that keep the answer."""
    for module in ("transformers.utils.import_utils", "accelerate.utils.imports"):
        for kept in list(vars(sys.modules.get(module, sys)).values()):
            if hasattr(kept, "cache_clear"):
                kept.cache_clear()


def environment_with(kind: str) -> dict[str, str]:
    """This process's variables, and those that let every process started with them pretend."""
    here = Path(__file__).parent
    path = [str(here / "every_process"), str(here), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, VARIABLE: kind, "PYTHONPATH": os.pathsep.join(path)}


def pretend_once_torch_is_there() -> None:
    """What `sitecustomize` calls: pretend as soon as this process imports torch."""
    kind = os.environ.get(VARIABLE)
    if kind:
        # A learner's JupyterLab has none of the variables by which a build keeps to the CPU; a process group's ranks set theirs.
        if any("ipykernel" in word for word in sys.orig_argv):
            for name in ("ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES"):
                os.environ.pop(name, None)
        if kind == "cuda" and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
            return  # this process was told that there is none
        sys.meta_path.insert(0, _AfterTorch(kind))


class _AfterTorch(MetaPathFinder):
    def __init__(self, kind: str):
        self.kind = kind

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                pretend(self.kind)

            spec.loader.exec_module = exec_module
        return spec
