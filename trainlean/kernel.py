"""What importing the course changes in a notebook's kernel: `%%px` is there, and errors of the library end in a sentence."""

import linecache
import sys
import traceback
from collections.abc import Callable

from trainlean.arguments import says_itself

OWN = (
    ValueError,
    LookupError,
    OSError,
)  # what the library raises in words of its own, beside CourseError


def prepare_kernel(table: Callable | None = None, **magics: Callable) -> None:
    """Prepare the kernel in which this runs, with these magics (for lines and cells); elsewhere nothing happens.

    `table` writes a pandas DataFrame as HTML, in place of what pandas does.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return
    for name, magic in magics.items():
        shell.register_magic_function(magic, magic_kind="line_cell", magic_name=name)
    if table:
        html = shell.display_formatter.formatters["text/html"]
        for module in ("pandas", "pandas.core.frame"):  # from pandas 3 on, and before
            html.for_type_by_name(module, "DataFrame", table)
    shell.set_custom_exc((KeyboardInterrupt, *OWN), _show)


def _show(shell, kind, error, trace, tb_offset=None):
    """IPython shows an interrupt, and what this library raised in words of its own, as one sentence; all else as ever."""
    frames = traceback.extract_tb(trace)
    if issubclass(kind, KeyboardInterrupt):
        _say(error, f"Interrupted{_where(shell, frames)}.")
    elif says_itself(error):
        _say(error, f"{error}{_where(shell, frames, ' (', ')')}")
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)


def _say(error, sentence: str) -> None:
    error._render_traceback_ = lambda: [sentence]


def _where(shell, frames, before: str = " ", after: str = "") -> str:
    """The line of a cell in which it happened, and where in the cell that was called."""
    own = [frame for frame in frames if shell.compile.format_code_name(frame.filename)]
    if not own:
        return ""
    told = [_line(own[-1])]
    if len(own) > 1:
        told.append(f"called in {_line(own[0])}")
    return f"{before}in {', '.join(told)}{after}"


def _line(frame) -> str:
    code = linecache.getline(frame.filename, frame.lineno).strip()
    name = "" if frame.name == "<module>" else f" of {frame.name}"
    # A magic's line is not what the learner has written.
    return f"line {frame.lineno}{name}" + (
        "" if not code or code.startswith("get_ipython()") else f": `{code}`"
    )
