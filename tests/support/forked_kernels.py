"""Kernels for nbval, forked from one process that has imported what every lesson imports: some seconds of processor less a notebook.

So is the server from which a notebook's own processes come. The process that is forked has computed nothing, and imported it
all under the environment of a notebook's run, hash seed and threads included. Of the course itself it imports nothing, so
that `import trainlean` is as new to the kernel as to a learner's.
"""

import atexit
import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from importlib import import_module
from multiprocessing import connection, forkserver
from pathlib import Path

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
    "ipyparallel.engine.app",
]
# What a process of the course's own server imports besides, once somebody asks for one.
OF_THE_COURSE = ["trainlean.exercises.checking", "trainlean.devices.inside", "trainlean.reviews"]
PLACE = "TRAINLEAN_KERNEL_SERVER"  # the server's socket, for all workers of a run


class ForkedKernel(psutil.Process):
    """What jupyter_client asks of a `subprocess.Popen`; the process is not this one's child, so that its exit status is unknown."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        """None while it runs, else 0."""
        from trainlean.processes import still_running  # the server imports nothing of the course

        return None if still_running([self]) else 0

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


def start_server(place: Path, env: dict[str, str]) -> None:
    """Let kernels be asked for at this socket, by this process and by those that it starts, until this process ends."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(place))
        listener.listen()
        # From a "<string>", as multiprocessing's: of these lines none is a learner's, of whom a rank's message tells.
        code = f"exec(compile(open({__file__!r}).read(), '<string>', 'exec'))"
        numbers = str(os.getpid()), str(listener.fileno())
        command = [sys.executable, "-c", code, *numbers, *PRELOADED]
        server = subprocess.Popen(command, env=env, pass_fds=[listener.fileno()])
    atexit.register(server.kill)
    os.environ[PLACE] = str(place)


def launch_kernel(command: list[str], env=None, cwd=None, **_) -> ForkedKernel:
    """As jupyter_client.launcher's, for a command `python -m ipykernel_launcher -f FILE`. OSError: the server has ended."""
    # Whatever a notebook is given, its own work folder included, comes with the request.
    request = {"arguments": command[command.index("-f") :], "env": env, "cwd": str(cwd)}
    with socket.socket(socket.AF_UNIX) as server, server.makefile("rwb") as lines:
        server.connect(os.environ[PLACE])
        lines.write(json.dumps(request).encode() + b"\n")
        lines.flush()
        answer = lines.readline()
    if not answer:
        raise OSError("the server that kernels are forked from has ended")
    return ForkedKernel(int(answer))


def _end_with(parent: int) -> None:
    """Let the system end this process when its parent ends, in whatever way: an import or a cell notices nothing."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already
        os._exit(0)


def _serve(parent, listener, preloaded):
    _end_with(parent)
    del sys.path[0]  # the folder of `python -c`, which no notebook sees
    gc.disable()  # a tenth of the time that these imports take
    for name in preloaded:
        import_module(name)
    gc.enable()
    gc.collect()
    gc.freeze()  # or each kernel's collector, which a meter calls, would look at all of torch
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the kernels
    server = os.getpid()
    while True:
        asking, _ = listener.accept()
        with asking, asking.makefile("rwb") as lines:
            request = json.loads(lines.readline())
            ready, done = os.pipe()
            if pid := os.fork():
                os.close(done)
                os.read(ready, 1)  # it has a group of its own: a signal to it is none to us
                os.close(ready)
                lines.write(b"%d\n" % pid)
                continue
            break
    listener.close()
    _end_with(server)
    _run(request, done)


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
    _start_fork_server()
    # What pandas sets when it is imported in a kernel, and not in a terminal.
    import_module("pandas").set_option("display.max_columns", 20)
    sys.argv = ["ipykernel_launcher", *request["arguments"]]
    with contextlib.suppress(SystemExit):
        from ipykernel import kernelapp

        kernelapp.launch_new_instance()
    atexit._run_exitfuncs()
    os._exit(0)


def _start_fork_server():
    """multiprocessing's, as it would be started by the notebook, but with the imports behind it."""
    server = forkserver._forkserver
    server._forkserver_address = address = connection.arbitrary_address("AF_UNIX")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    alive, server._forkserver_alive_fd = os.pipe()
    if pid := os.fork():
        server._forkserver_pid = pid
        listener.close()
        os.close(alive)
        return
    os.close(server._forkserver_alive_fd)
    # A kernel that is asked to end waits for those of its group, and this one ends with it.
    os.setpgid(0, 0)
    asked, _, _ = select.select([listener, alive], [], [])
    if listener in asked:  # many notebooks never ask, and end
        with contextlib.suppress(SystemExit):  # the notebook has ended
            forkserver.main(listener.detach(), alive, OF_THE_COURSE)
    os._exit(0)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])), sys.argv[3:])
