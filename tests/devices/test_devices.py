"""The devices: engines that stay, processes for one call, waits that end, and nothing left behind."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
import types

import nbclient
import nbformat
import numpy as np
import psutil
import pytest
import torch

from trainlean.costs.meter import Meter
from trainlean.devices import engines, inside, waiting
from trainlean.devices.engines import run_on_devices, start_devices, stop_devices
from trainlean.devices.forking import can_fork
from trainlean.devices.waiting import DeviceError
from trainlean.processes import still_running
from trainlean.workspace import COURSE, CourseError


@pytest.fixture(autouse=True, scope="module")
def nothing_left():
    yield
    stop_devices()
    assert not children_of(os.getpid())


@pytest.fixture
def pair():
    return start_devices(2, timeout=2)


def children_of(pid):
    """Living descendants that compute, without multiprocessing's own two servers, and that of the tests from which kernels are forked."""
    try:
        family = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [
        process
        for process in still_running(family)
        if not (is_server(process) and not is_server(process.parent()))
    ]


def is_server(process):
    """Or forked from one, which bears its name, too."""
    words = " ".join(process.cmdline())
    return "multiprocessing" in words or "forked_kernels" in words


def in_notebook(source, name="answer"):
    """A function as a notebook defines it: in `__main__`, from no file."""
    module = types.ModuleType("__main__")
    exec(compile(source, "/tmp/ipykernel_1/2.py", "exec"), vars(module))
    return vars(module)[name]


SUM = in_notebook("""
import torch
import torch.distributed as dist
SCALE = 10

def answer(values):
    mine = torch.tensor(values[dist.get_rank()]) * SCALE
    dist.all_reduce(mine)
    print("rank", dist.get_rank(), "of", dist.get_world_size())
    return mine.item()
""")


def on_rank_1(code, then="    dist.barrier()"):
    return in_notebook(
        f"import os, time\nimport torch\nimport torch.distributed as dist\ndef answer():\n    if dist.get_rank() == 1:\n        {code}\n{then}\n"
    )


# ---------------------------------------------------------------- processes for one call


def test_a_call_on_fresh_processes_gives_results_and_prints_by_rank(capfd):
    assert run_on_devices(SUM, [1, 2], fresh=True) == [30, 30]
    assert run_on_devices(SUM, [1, 2, 3], n=3, fresh=True) == [60, 60, 60]
    out, err = capfd.readouterr()
    assert (
        out
        == "rank 0: rank 0 of 2\nrank 1: rank 1 of 2\n"
        + "rank 0: rank 0 of 3\nrank 1: rank 1 of 3\nrank 2: rank 2 of 3\n"
    )
    assert err == ""
    assert not children_of(os.getpid())


@pytest.mark.parametrize(
    ("code", "then", "says"),
    [
        (
            "raise ValueError('no')",
            "    dist.barrier()",
            "rank 1 raised ValueError: no in line 6; rank 0 waited in vain in barrier, line 7",
        ),
        (
            "return",
            "    dist.barrier()",
            "rank 1 never arrived: it has ended; rank 0 waited in vain in barrier, line 7",
        ),
        (
            "time.sleep(99)",
            "    dist.barrier()",
            "rank 1 never arrived: it is still busy in line 6; rank 0 waited in vain in barrier, line 7",
        ),
        (
            "return dist.barrier()",
            "    dist.all_reduce(torch.ones(1))",
            "the ranks are not in the same collective; rank 0 waited in vain in all_reduce, line 7",
        ),
        ("os._exit(1)", "    dist.barrier()", "rank 1 died"),
        (
            "while True: pass",
            "    return 1",
            "rank 1 did not end in time: it is still busy in line 6",
        ),
    ],
)
def test_what_goes_wrong_on_a_rank_is_told_with_its_number(code, then, says):
    with pytest.raises(DeviceError) as error:
        run_on_devices(on_rank_1(code, then), timeout=2, fresh=True)
    assert str(error.value).startswith(says)
    assert not children_of(os.getpid())


def test_the_same_error_on_many_ranks_is_told_once():
    error = {"name": "NameError", "text": "NameError: no name", "place": None}
    ranks = [waiting.Rank(n, True, {"since": None, "place": None}, error=error) for n in range(3)]
    for several, who in ((1, "rank 0"), (2, "rank 0 and rank 1"), (3, "rank 0, rank 1 and rank 2")):
        said = waiting.sentence_about(ranks[:several])
        assert said == f"{who} raised NameError: no name"


def test_an_answer_that_is_not_written_yet_stays_one():
    with pytest.raises(NotImplementedError, match="rank 0 and rank 1 raised NotImplementedError"):
        run_on_devices(in_notebook("def answer():\n    raise NotImplementedError()"), fresh=True)


def test_a_result_that_cannot_be_sent_is_an_error_of_that_rank():
    with pytest.raises(DeviceError, match="rank 0 and rank 1 raised TypeError: cannot pickle"):
        run_on_devices(
            in_notebook("def answer():\n    import threading\n    return threading.Lock()"),
            fresh=True,
        )


@pytest.mark.parametrize("n", [0, -1, 1.5])
def test_a_count_that_makes_no_sense_gets_a_sentence(n):
    for start in (start_devices, lambda n: run_on_devices(SUM, n=n)):
        with pytest.raises(ValueError, match=r"needs a whole number of devices, 1 or more, not "):
            start(n)


def test_more_processes_than_a_machine_bears_are_not_begun():
    for start in (start_devices, lambda n: run_on_devices(SUM, n=n)):
        with pytest.raises(
            ValueError, match="starts at most 64 devices on one machine, not 1000000"
        ):
            start(1_000_000)


def test_a_missing_ipyparallel_and_a_closed_loopback_get_a_sentence(monkeypatch):
    stop_devices()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ipyparallel", None)
        with pytest.raises(CourseError, match="pip install ipyparallel"):
            start_devices(2)
    with monkeypatch.context() as patch:
        patch.setattr(
            "socket.create_server", lambda *_, **__: (_ for _ in ()).throw(OSError("not permitted"))
        )
        with pytest.raises(
            CourseError, match=r"cannot talk to each other .*not permitted.*trainlean doctor"
        ):
            start_devices(2)


# ---------------------------------------------------------------- engines that stay


def test_engines_stay_and_know_their_rank(pair, capsys):
    running = pair.run(os.getpid)
    assert pair.pull("rank") == [0, 1] and pair.pull("world_size") == [2, 2]
    assert pair.run(os.getenv, "CUDA_VISIBLE_DEVICES") == ["", ""]  # no hook waits for a card
    # Forked from one process or not, each draws for itself.
    drawn = pair.run(lambda: (random.random(), np.random.rand()))
    assert drawn[0][0] != drawn[1][0] and drawn[0][1] != drawn[1][1]
    pair.push(shared=[1, 2])
    assert pair.pull("shared") == [[1, 2], [1, 2]]
    assert start_devices(2, timeout=2) is pair
    assert run_on_devices(os.getpid) == running  # the running ones are used
    assert not set(run_on_devices(os.getpid, n=1)) & set(running)  # another number needs others
    with pytest.raises(
        DeviceError, match="rank 0 and rank 1 raised NameError: no variable 'absent' here"
    ):
        pair.pull("absent")
    assert pair.alive()
    assert repr(pair) == "2 devices (gloo)"


def test_nothing_is_forked_where_ranks_use_a_card(monkeypatch):
    """CUDA does not survive a fork of a process that has asked for it."""
    assert can_fork() == (sys.platform == "linux")
    monkeypatch.setenv("TRAINLEAN_DEVICE", "cuda")
    assert not can_fork()


def test_engines_come_where_none_may_be_forked(monkeypatch):
    """As on a Mac, and with a card."""
    stop_devices()
    monkeypatch.setattr(engines, "can_fork", lambda: False)
    started = start_devices(1)
    assert started.forked == [] and started.pull("rank") == [0]
    stop_devices()
    assert not children_of(os.getpid())


def test_a_call_leaves_the_variables_of_the_engines_alone(pair, capsys):
    names = in_notebook(
        "def answer():\n    import IPython\n    return [name for name in IPython.get_ipython().user_ns if name[:1] != '_']"
    )
    before = pair.run(names)
    assert pair.run(SUM, [3, 4]) == [70, 70]
    assert pair.run(names) == before
    assert capsys.readouterr().out == "rank 0: rank 0 of 2\nrank 1: rank 1 of 2\n"


def test_accelerate_and_ddp_use_the_group_that_is_there(pair):
    seen = pair.run(
        in_notebook("""
def answer():
    import torch
    from accelerate import Accelerator
    accelerator = Accelerator()
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    model(torch.full((1, 1), float(accelerator.process_index))).backward()
    gradient = next(model.parameters()).grad.item()
    return accelerator.distributed_type, accelerator.num_processes, accelerator.process_index, torch.distributed.get_backend(), type(model).__name__, gradient
""")
    )
    assert seen == [
        ("MULTI_CPU", 2, rank, "gloo", "DistributedDataParallel", 0.5) for rank in (0, 1)
    ]


def test_a_rank_that_never_arrives_ends_the_call_and_start_devices_works_again(pair):
    # DDP starts its all-reduce from C++: the learner's line is a backward.
    absent = in_notebook("""
def answer():
    import torch
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    loss = model(torch.ones(1, 1)).sum()
    if torch.distributed.get_rank() == 0:
        loss.backward()
""")
    with pytest.raises(DeviceError) as error:
        pair.run(absent)
    assert str(error.value).startswith(
        "rank 1 never arrived: it has ended, its last collective was broadcast; rank 0 waited in vain in all_reduce, line 7. The devices were stopped"
    )
    assert not children_of(os.getpid())
    assert start_devices(2, timeout=2).pull("rank") == [0, 1]


def test_a_dead_engine_is_named_and_replaced(pair):
    with pytest.raises(
        DeviceError, match=r"^rank 1 died.*; rank 0 waited in vain.*The devices were stopped"
    ):
        pair.run(on_rank_1("os._exit(1)"))
    assert not children_of(os.getpid())


def test_a_frozen_engine_is_named(pair, monkeypatch):
    monkeypatch.setattr(waiting, "FROZEN_SECONDS", 1)
    with pytest.raises(
        DeviceError, match=r"^rank 1 froze, last seen in line 6.*The devices were stopped"
    ):
        pair.run(
            on_rank_1(
                f"time.sleep(0.5); os.kill(os.getpid(), {signal.SIGSTOP:d})", then="    return 1"
            )
        )
    assert not children_of(os.getpid())


def test_no_process_outlives_a_kernel_that_is_killed():
    code = "import time; from trainlean.devices.engines import start_devices; start_devices(1); print('up', flush=True); time.sleep(99)"
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert kernel.stdout.readline() == b"up\n"
    family = children_of(kernel.pid)
    assert len(family) >= 3  # the guard, the controller and its parts, the engine
    kernel.send_signal(signal.SIGKILL)
    kernel.wait()
    kernel.stdout.close()
    alive = still_running(family, 10)
    for process in alive:
        process.kill()
    assert not alive


@pytest.mark.skipif(sys.platform != "linux", reason="only on Linux engines are forked")
def test_no_engine_outlives_what_it_was_forked_from():
    """However that ends, and although the engine is frozen."""
    code = f"import os, signal; from trainlean.devices.engines import start_devices; engine = start_devices(1).run(os.getpid)[0]; os.kill(engine, {signal.SIGSTOP:d}); print(engine, flush=True); signal.pause()"
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    engine = psutil.Process(int(kernel.stdout.readline()))
    engine.parent().kill()
    left = still_running([engine], 5)
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    assert not left


# ---------------------------------------------------------------- %%px

CELLS = [
    "from trainlean.devices.engines import start_devices\nstart_devices(2, timeout=2)",
    "%%px\nimport time\nfor i in range(2):\n    time.sleep(0.02 * (1 - rank))\n    print('step', i)\nrank + 1",
    "%%px\nimport torch, torch.distributed as dist\ntotal = torch.tensor(rank + 1.0)\ndist.all_reduce(total)\nprint('before\\rafter', total.item(), end='')",
    "%%px\nimport warnings\nwarnings.warn('look')",
    "%%px\nimport matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1))\nplt.plot([1])\nplt.show()",
    "%%px\nprint(rank)\nif rank == 1:\n    raise ValueError('no')",
    "%%px\nif rank == 0:\n    dist.barrier()",
    "%px print(rank)",
]


def outputs(cell):
    """What a cell showed, as nbval sees it: neighbouring text joined, pictures left out."""
    joined = []
    for output in cell.outputs:
        if output.output_type == "stream":
            shown = [output.name, output.text]
        elif output.output_type == "error":
            shown = ["error", output.evalue]
        else:
            shown = ["data", output.data.get("text/plain")]
        if joined and shown[0] == joined[-1][0] == "stdout":
            joined[-1][1] += shown[1]
        else:
            joined.append(shown)
    return joined


def test_the_output_of_a_cell_has_one_form():
    """That it is the same each time, nbval says of every solution."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in CELLS]
    )
    for number in (5, 6, 7):
        notebook.cells[number].metadata["tags"] = ["raises-exception"]
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    again = "The devices were stopped: call start_devices again, then run the cells that set up their variables."
    assert [outputs(cell) for cell in notebook.cells] == [
        [["data", "2 devices (gloo)"]],
        [
            [
                "stdout",
                "rank 0: step 0\nrank 0: step 1\nrank 0: 1\nrank 1: step 0\nrank 1: step 1\nrank 1: 2\n",
            ]
        ],
        [["stdout", "rank 0: after 3.0\nrank 1: after 3.0\n"]],
        [
            [
                "stderr",
                "".join(
                    f"rank {rank}: cell:3: UserWarning: look\nrank {rank}:   warnings.warn('look')\n"
                    for rank in (0, 1)
                ),
            ]
        ],
        [
            ["stdout", "rank 0:\n"],
            ["data", "<Figure size 100x100 with 1 Axes>"],
            ["stdout", "rank 1:\n"],
            ["data", "<Figure size 100x100 with 1 Axes>"],
        ],
        [
            ["stdout", "rank 0: 0\nrank 1: 1\n"],
            ["error", "rank 1 raised ValueError: no in line 4: `raise ValueError('no')`."],
        ],
        [
            [
                "error",
                f"rank 1 never arrived: it has ended, its last collective was all_reduce; rank 0 waited in vain in barrier, line 3: `dist.barrier()`. {again}",
            ]
        ],
        [["error", "No devices are running: call start_devices(2) first."]],
    ]


def test_a_rank_whose_turn_has_not_come_is_not_said_to_wait_in_vain(tmp_path, monkeypatch):
    """It left the collective with the other one, and a busy machine lets it run only later: its note is an old one."""
    monkeypatch.setattr(waiting, "GRACE_SECONDS", 0.1)
    note = {"place": None, "collective": "all_reduce", "count": 1, "since": time.time() - 60}
    (tmp_path / "0.json").write_text(json.dumps(note))
    began = time.monotonic()

    def ended():
        return {0, 1} if time.monotonic() > began + 0.5 else {1}

    ranks = waiting.wait_for_ranks(ended, 2, tmp_path, 100, 100)
    assert all(rank.ended for rank in ranks)

    def ended_and_noted():  # it takes notes, and stands where it stood
        (tmp_path / "0.json").write_text(json.dumps(note))
        return {1}

    first, _ = waiting.wait_for_ranks(ended_and_noted, 2, tmp_path, 100, 100)
    assert first.waits


def test_notes_are_of_the_learners_lines():
    """A note names the line of the learner, not the one of a library that it called."""
    frames = [
        traceback.FrameSummary(file, line, "f", line="code")
        for file, line in [("cell.py", 3), (time.__name__, 1)]
    ]
    frames.append(traceback.FrameSummary(os.__file__, 9, "g", line="library"))
    assert inside.own_line(frames[:1] + frames[2:]) == ["cell.py", 3, "code"]


def test_taking_notes_keeps_nothing_of_a_training_alive(tmp_path, monkeypatch):
    """Peaks do not depend on when a note is taken: what a note held, another thread would let go of, later."""
    monkeypatch.setattr(inside, "NOTE_SECONDS", 0)
    monkeypatch.setattr(inside.multiprocessing, "parent_process", lambda: None)
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(8)))

    def peak():
        with Meter() as meter:
            net(torch.ones(64, 64)).sum().backward()
            net.zero_grad()
        return meter.peak_bytes

    peak()  # torch's own first time
    alone = peak()
    folder = tmp_path / "notes"
    folder.mkdir()
    notes = threading.Thread(
        target=inside._take_notes,
        args=(folder, 0, threading.main_thread().ident),
        daemon=True,
    )
    notes.start()
    try:
        peaks = {peak() for _ in range(40)}
        noted = json.loads((folder / "0.json").read_text())["place"]
    finally:
        folder.rename(tmp_path / "no more")  # all at once, while it is written to
        notes.join()
    assert peaks == {alone}
    assert noted[0] == __file__


def test_a_stack_is_read_from_outside_with_names_in_any_letters(tmp_path):
    file = tmp_path / "übung 1.py"
    file.write_text("def wait():\n    arrived.set()\n    go_on.wait(60)\n\nwait()\n")
    arrived, go_on = threading.Event(), threading.Event()
    code = compile(file.read_text(), str(file), "exec")
    waiting_thread = threading.Thread(
        target=exec, args=(code, {"arrived": arrived, "go_on": go_on})
    )
    waiting_thread.start()
    try:
        assert arrived.wait(60)
        stack = inside._stack(waiting_thread.ident)
    finally:
        go_on.set()
        waiting_thread.join()
    assert inside.own_line(stack) in (
        [str(file), 2, "arrived.set()"],
        [str(file), 3, "go_on.wait(60)"],
    )
    assert inside._stack(-1) == []


LEAVING = """
import threading, weakref
from trainlean.devices import inside

kept = []

def a_note(_):
    kept.append(inside.own_line(inside._stack(threading.get_ident())))

def leaves(_):
    held = set()
    kept.append(weakref.ref(held, a_note))

list(map(leaves, [1]))  # called from C: what is left below it is no frame of Python
print("still there")
"""


def test_a_note_may_be_taken_of_a_thread_that_is_leaving_a_function():
    """Under Python 3.13.0 the dump of faulthandler ended the process: a rank of three lessons died."""
    done = subprocess.run([sys.executable, "-c", LEAVING], cwd=COURSE, capture_output=True)
    assert done.returncode == 0 and b"still there" in done.stdout, done


BEGINNING_AND_ENDING = """
import ctypes, threading, time
from trainlean.devices import inside

threads_of_c = ctypes.CDLL(None)
nothing = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _: None)

def some():
    until = time.monotonic() + 3
    while time.monotonic() < until:
        for begun in [ctypes.c_void_p() for _ in range(8)]:
            threads_of_c.pthread_create(ctypes.byref(begun), None, nothing, None)
            threads_of_c.pthread_join(begun, None)

other = threading.Thread(target=some)
other.start()
while other.is_alive():
    assert inside._stack(threading.get_ident())
print("still there")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no threads of that make")
def test_a_note_may_be_taken_while_threads_of_c_come_and_go():
    """As torch's do that call Python, such as a hook of DDP: the dump of faulthandler ended the process."""
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING_AND_ENDING], cwd=COURSE, capture_output=True
    )
    assert done.returncode == 0 and b"still there" in done.stdout, done
