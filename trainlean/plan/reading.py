"""What MODEL of the command line names: a configuration of transformers on this disk, or a function of a Python file."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path

from trainlean.costs.subject import Subject, subject_of


def read_model(where: str, task: str | None = None) -> Subject:
    """The model to be trained. ValueError: what cannot be read or made, in a sentence.

    `where`: a folder with config.json, such a file, or `file.py:function`; the function takes nothing and returns a module
    (or a function that makes one), a sample batch and a function of module and batch that gives the loss (None: the
    forward pass gives it). Nothing is ever looked up on a network. `task`: of a configuration, as for `predict_run`.
    """
    path, colon, function = where.rpartition(":")
    if colon and path.endswith(".py"):
        if task is not None:
            raise ValueError(
                f"A task is chosen for a configuration only: leave out --task, {function} of {path} says what is trained."
            )
        return _of_file(Path(path), function)
    if where.endswith(".py"):
        raise ValueError(
            f"Name the function, too: {where}:FUNCTION, which returns the model, a sample batch and the loss (a function of the two, or None)."
        )
    return subject_of(_config(Path(where)), task)


def _config(path):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    file = path / "config.json" if path.is_dir() else path
    if not file.exists():
        if path.is_dir():
            raise ValueError(
                f"The folder {path} has no config.json: name a folder that has one, or the file."
            )
        raise ValueError(
            f"There is no {path}: MODEL is a folder with a transformers config.json, such a file, or file.py:function. "
            "A name on a hub would need the network, which is never asked: download its config.json and name that."
        )
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(
            f"{file} is no configuration: it cannot be read as JSON ({error})."
        ) from None
    kind = values.get("model_type") if isinstance(values, dict) else None
    if not kind:
        raise ValueError(
            f'{file} names no model_type: a configuration of transformers has one, such as "model_type": "llama".'
        )
    if kind not in CONFIG_MAPPING:
        raise ValueError(
            f"{file} is of type {kind!r}, which this transformers does not have: give the module as file.py:function."
        )
    try:
        return CONFIG_MAPPING[kind].from_dict(values)
    except Exception as error:  # each class checks its values in its own way
        raise ValueError(
            f"{file} cannot be read as a {kind} configuration: {_words(error)}"
        ) from None


def function_of_file(path: Path, function: str) -> Callable:
    """A function of a Python file that need not be a module of anything. ValueError: no such file or function, or the file raises."""
    if not path.exists():
        raise ValueError(f"There is no {path}, of which a function {function!r} was wanted.")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))  # as `python file.py` would
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"{path} cannot be run: {_words(error)}") from None
    finally:
        sys.path.pop(0)
    if not callable(make := getattr(module, function, None)):
        there = [
            name
            for name, value in vars(module).items()
            if callable(value) and value.__class__.__name__ == "function"
        ]
        raise ValueError(
            f"{path} has no function {function!r}; it has {', '.join(there) or 'none'}."
        )
    return make


def _of_file(path, function):
    make = function_of_file(path, function)
    try:
        made = make()
    except Exception as error:
        raise ValueError(f"{function}() of {path} fails: {_words(error)}") from None
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise ValueError(
            f"{function}() of {path} returns model, sample batch and loss (a function of model and batch, or None), not {type(made).__name__}."
        )
    model, batch, loss = (*made, None)[:3]
    return subject_of(model, batch=batch, loss=loss)


def _words(error):
    text = " ".join(str(error).split())[:300].rstrip(".")
    return f"{type(error).__name__}: {text}." if text else f"{type(error).__name__}."
