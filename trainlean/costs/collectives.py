"""Which of torch's operations are collectives, what a rank hands over in one, and what that makes it send."""

import torch

from trainlean.costs.links import traffic
from trainlean.costs.operations import tensors_of
from trainlean.costs.runs import COLLECTIVE_COUNTS
from trainlean.costs.storages import plain_tensors

COMMUNICATION = (
    "c10d",
    "_c10d_functional",
)  # the namespaces of torch's operations that communicate
# How the names of the operations that hand something over begin, c10d's and the functional ones; the first that fits.
KINDS = {
    "allreduce": "all-reduce",
    "all_reduce": "all-reduce",
    "broadcast": "broadcast",
    "reduce_scatter": "reduce-scatter",
    "reduce": "reduce",
    "allgather": "all-gather",
    "all_gather": "all-gather",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all-to-all",
    "all_to_all": "all-to-all",
    "send": "send",
    "isend": "send",
    "barrier": "barrier",
    "monitored_barrier": "barrier",
}


def collective_of(func) -> str | None:
    """The kind of collective that an operation of c10d starts; None where this rank hands nothing over (a wait, a receive)."""
    if func.namespace not in COMMUNICATION:
        return None
    operation = func._overloadpacket.__name__.strip("_")
    return next((kind for start, kind in KINDS.items() if operation.startswith(start)), None)


def payload_of(kind: str, func, args) -> tuple[list[torch.Tensor], torch.distributed.ProcessGroup]:
    """The tensors that this rank hands over in a collective, and the group in which it does."""
    arguments = dict(zip((argument.name for argument in func._schema.arguments), args))
    ours = next(
        (value for name, value in arguments.items() if name.startswith(("input", "tensors"))), ()
    )
    group = _group(arguments)
    idle = kind == "barrier" or (
        kind == "broadcast" and arguments.get("root_rank", arguments.get("src")) != group.rank()
    )
    return [] if idle else tensors_of(ours), group


def count_collective(collectives: dict[str, dict], func, args) -> list[torch.Tensor]:
    """Add an operation to the counts of its kind, where it is a collective; returns the tensors that are handed over."""
    kind = collective_of(func)
    if kind is None:
        return []
    payload, group = payload_of(kind, func, args)
    size = sum(part.nbytes for tensor in payload for part in plain_tensors(tensor))
    messages, sent = traffic(kind, size, group.size()) if payload or kind == "barrier" else (0, 0.0)
    count = collectives.setdefault(kind, dict.fromkeys(COLLECTIVE_COUNTS, 0))
    for name, more in zip(COLLECTIVE_COUNTS, (1, size, messages, sent), strict=True):
        count[name] += more
    return payload


def _group(arguments):
    """The process group of a collective, as c10d's operations and the functional ones name it."""
    group = arguments.get("process_group", arguments.get("group_name"))
    if isinstance(group, torch.ScriptObject):
        return torch.distributed.ProcessGroup.unbox(group)
    return (
        torch.distributed.distributed_c10d._resolve_process_group(group)
        if isinstance(group, str)
        else group
    )
