"""Writes a training script with a plan's first setting: a template of templates/ with its constants replaced."""

import ast
import re
import sys
from pathlib import Path

from trainlean.costs.batches import tensors_of_batch
from trainlean.costs.operations import tensors_of
from trainlean.plan.search import Plan
from trainlean.workspace import write_whole

TEMPLATES = Path(__file__).parent / "templates"
KINDS = ("pytorch", "accelerate", "trainer")
PIECES = ("head", "optimizer", "samples")  # that several of them share


def script_text(plan: Plan, kind: str, model: str, task: str | None = None) -> str:
    """The script's text. `model` and `task` are what `read_model` takes. ValueError: no such script, or none for this plan."""
    if kind not in KINDS:
        raise ValueError(f"A script is one of {', '.join(KINDS)}, not {kind!r}.")
    first = plan.rows[0]
    setup = first.setup
    if kind == "trainer" and setup.local_steps:
        raise ValueError("The Trainer has no Local SGD: write pytorch or accelerate.")
    if kind == "trainer" and not isinstance(plan.subject.batch(setup), dict):
        raise ValueError(
            "The Trainer takes samples that are dictionaries, and the sample batch is none: write pytorch or accelerate."
        )
    batch = plan.subject.batch(setup)
    if kind == "accelerate" and len(tensors_of(batch)) < len(tensors_of_batch(batch)):
        raise ValueError(
            f"Accelerate puts batches together of tuples, lists and dictionaries, and the sample batch is of another kind ({type(batch).__name__}): write pytorch."
        )
    values = {
        "MODEL": model,
        "TASK": task,
        "MICRO_BATCH": setup.micro_batch,
        "ACCUMULATION_STEPS": setup.accumulation_steps,
        "SEQUENCE_LENGTH": setup.sequence_length,
        "CHECKPOINTING": setup.checkpointing,
        "OPTIMIZER": setup.optimizer,
        "PRECISION": setup.precision,
        "ATTENTION": setup.attention,
        "LORA": setup.lora,
        "PADDED": setup.padded,
        "DEVICES": setup.devices,
        "LOCAL_STEPS": setup.local_steps,
        "DEVICE": plan.device,
        "PREDICTED_PEAK": first.needed,
        "PROOF": _proof(plan.largest, setup),
    }
    text = _joined(kind)
    for name, value in values.items():
        line = f"{name} = {_written(value)}".replace("\\", r"\\")
        pattern = re.compile(rf"^{name} = .*?(?=  #|$)", re.MULTILINE)
        text, count = pattern.subn(line, text)
        assert count == 1, f"{kind}.py has {count} lines {name} = ..."
    return text


def write_script(plan: Plan, kind: str, path: Path, model: str, task: str | None = None) -> None:
    """Write the script; what is there is kept. ValueError: something is there, or what `script_text` refuses."""
    if path.exists():
        raise ValueError(f"{path} is there already: name another file, or remove it.")
    if path.suffix != ".py":
        raise ValueError(f"The script is a Python file, such as train.py, not {path}.")
    write_whole(path, script_text(plan, kind, model, task))


def _joined(kind):
    """The template with the pieces that it imports written into it: a script stands alone."""
    imports: list[ast.Import | ast.ImportFrom] = []
    bodies: list[str] = []
    docstring = ""
    waiting, taken = [kind], set()
    while waiting:
        text = (TEMPLATES / f"{waiting.pop(0)}.py").read_text(encoding="utf-8")
        about, *statements = ast.parse(text).body
        lines = text.splitlines()
        docstring = docstring or "\n".join(lines[: about.end_lineno])
        last = about.end_lineno
        for statement in statements:
            if not isinstance(statement, (ast.Import, ast.ImportFrom)):
                break
            last = statement.end_lineno
            module = getattr(statement, "module", None)
            if module not in PIECES:
                imports.append(statement)
            elif module not in taken:
                waiting.append(module)
                taken.add(module)
        bodies.append("\n".join(lines[last:]).strip())
    script, *pieces = bodies
    return "\n\n\n".join([f"{docstring}\n\n{_sorted(imports)}", *pieces, script]) + "\n"


def _sorted(imports):
    """Imports in three groups, Python's own, others, the course's; what comes from one module in one line."""
    names: dict[str, set] = {}
    plain = set()
    for statement in imports:
        if isinstance(statement, ast.ImportFrom):
            names.setdefault(statement.module or "", set()).update(
                one.name for one in statement.names
            )
        else:
            plain.add(ast.unparse(statement))
    lines = sorted(plain)
    lines += [
        f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)
    ]

    def group(line):
        module = line.split()[1].split(".")[0]
        return 2 if module == "trainlean" else module not in sys.stdlib_module_names

    groups = ["\n".join(line for line in lines if group(line) == number) for number in range(3)]
    return "\n\n".join(filter(None, groups))


def _proof(largest, setup):
    """Micro-batch and steps of the window that is proven: the setting's own where it fits at once, else two small ones.

    Never fewer than two steps, which is what there is to prove.
    """
    steps = setup.accumulation_steps
    if steps == 1:
        return (max(1, setup.micro_batch // 2), 2)
    if setup.micro_batch * steps <= largest:
        return (setup.micro_batch, steps)
    half = setup.micro_batch // 2
    return (half, 2) if half else (1, 2)


def _written(value):
    return f'"{value}"' if isinstance(value, str) and '"' not in value else repr(value)
