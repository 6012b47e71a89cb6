"""Global variables for ranks that are threads of one process, as if each were a process."""

from types import CodeType, FunctionType


def for_every_rank(answer: object, world_size: int) -> list:
    """The answer once for each rank, with global variables of its own, as if each rank were a process.

    An answer that is no plain function, or that makes use of a class of its own cell, is the same for all.
    """
    return [_with_own_globals(answer) for _ in range(world_size)]


def _with_own_globals(answer):
    if not isinstance(answer, FunctionType):
        return answer
    shared, own = answer.__globals__, dict(answer.__globals__)
    for name in _used(answer.__code__, shared, set()):
        value = shared[name]
        if isinstance(value, type) and value.__module__ == shared.get("__name__"):
            return answer
        if _is_of(value, shared):
            own[name] = _moved(value, own)
        elif type(value) in (dict, list, set):
            own[name] = value.copy()
    return _moved(answer, own)


def _used(code: CodeType, shared: dict, found: set[str]) -> set[str]:
    """The global names of which a function makes use, by itself or through other functions of its cell."""
    for name in code.co_names:
        if name in shared and name not in found:
            found.add(name)
            if _is_of(shared[name], shared):
                _used(shared[name].__code__, shared, found)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            _used(inner, shared, found)
    return found


def _is_of(value, shared: dict) -> bool:
    return isinstance(value, FunctionType) and value.__globals__ is shared


def _moved(function: FunctionType, own: dict) -> FunctionType:
    moved = FunctionType(
        function.__code__, own, function.__name__, function.__defaults__, function.__closure__
    )
    moved.__kwdefaults__ = function.__kwdefaults__
    return moved
