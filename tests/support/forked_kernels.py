"""Kernels for nbval, forked from a process that has imported what every lesson imports: some seconds of processor less a notebook.

The process that is forked has imported and computed nothing, under the environment of a notebook's run, hash seed and threads
included. Of the course itself it imports nothing, so that `import trainlean` is as new to the kernel as to a learner's.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
from importlib import import_module

import psutil

PRELOADED = [
    "torch",
    "torch._dynamo",
    "transformers.trainer",
    "transformers.models.bert.modeling_bert",
    "accelerate",
    "matplotlib.pyplot",
    "matplotlib_inline.backend_inline",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipywidgets",
    "anywidget",
]
_server: subprocess.Popen | None = None


class ForkedKernel(psutil.Process):
    """What jupyter_client asks of a `subprocess.Popen`; the process is not this one's child, so that its exit status is unknown."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        """None while it runs, else 0."""
        try:
            gone = not self.is_running() or self.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:  # it went in between
            gone = True
        return 0 if gone else None

    def send_signal(self, sig) -> None:
        """Nothing where it has ended, as a Popen does it."""
        with contextlib.suppress(psutil.NoSuchProcess):
            super().send_signal(sig)

    def kill(self) -> None:
        """As `send_signal`."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """As `send_signal`."""
        self.send_signal(signal.SIGTERM)

    def wait(self, timeout=None) -> int:
        """Wait for its end."""
        super().wait(timeout)
        return 0


def launch_kernel(command: list[str], env=None, cwd=None, **_) -> ForkedKernel:
    """As jupyter_client.launcher's, for a command `python -m ipykernel_launcher -f FILE`. OSError: the server cannot be started."""
    global _server
    if _server is None or _server.poll() is not None:
        # Whatever a notebook is given, its own work folder included, comes with the request.
        server = [sys.executable, __file__, str(os.getpid()), *PRELOADED]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        _server = subprocess.Popen(server, **pipes, env=env)
        atexit.register(_server.kill)
    request = {"arguments": command[command.index("-f") :], "env": env, "cwd": str(cwd)}
    _server.stdin.write(json.dumps(request).encode() + b"\n")
    _server.stdin.flush()
    return ForkedKernel(int(_server.stdout.readline()))


def _end_with(parent: int) -> None:
    """Let the system end this process when its parent ends, in whatever way: an import or a cell notices nothing."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(0)


def _serve(parent, preloaded):
    _end_with(parent)
    del sys.path[0]  # the folder of this file, which no notebook sees
    for name in preloaded:
        import_module(name)
    gc.collect()
    gc.freeze()  # or each kernel's collector, which a meter calls, would look at all of torch
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the kernels
    server = os.getpid()
    for line in sys.stdin.buffer:
        ready, done = os.pipe()
        if pid := os.fork():
            os.close(done)
            os.read(ready, 1)  # it has a group of its own: a signal to it is none to us
            os.close(ready)
            print(pid, flush=True)
        else:
            _end_with(server)
            _run(json.loads(line), done)


def _run(request, done):
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    os.write(done, b".")
    os.close(done)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["env"], JPY_PARENT_PID=str(os.getppid()))
    os.chdir(request["cwd"])
    # What pandas sets when it is imported in a kernel, and not in a terminal.
    import_module("pandas").set_option("display.max_columns", 20)
    sys.argv = ["ipykernel_launcher", *request["arguments"]]
    with contextlib.suppress(SystemExit):
        from ipykernel import kernelapp

        kernelapp.launch_new_instance()
    atexit._run_exitfuncs()
    os._exit(0)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2:])
