"""Submissions that attack: each the body of `train_accumulated`, or whole cells that define it.

Each is bounded in count and time by itself, so that a sandbox that fails harms nothing: at most 40 processes that sleep for 20
seconds, a loop of 25 seconds, files of MBs, memory of 1.5 GiB. What they write to, read from or send to lies in the test's own
folder or is a listener of the test's own on loopback; PLACES stands for these and is filled in by the test.
None does what the exercise asks for before its attack has succeeded, unless it gets hold of an answer that is not its own.
"""

SIGNATURE = (
    "def train_accumulated(model, optimizer, loss_function, micro_batches, accumulation_steps):\n"
)

# What an attack does once it has got hold of somebody else's right answer.
WITH_ANSWER = "        found(model, optimizer, loss_function, micro_batches, accumulation_steps)\n"
FORGE = """
import io, json, os, struct
import numpy as np
NAMES = ["the number of optimizer steps (k=4, 8 micro-batches)"]
def forged(values, arrays=None, save=np.savez, **more):
    head = dict(order=list(values) + list(arrays or {}), values=values, attempted=True, traceback="", printed="", arrays=list(arrays or {})) | more
    file = io.BytesIO()
    save(file, head=np.frombuffer(json.dumps(head).encode(), dtype=np.uint8), **{f"array{n}": a for n, a in enumerate((arrays or {}).values())})
    return file.getvalue()
def send(data, length=None):
    for pipe in range(3, 20):
        try:
            os.write(pipe, struct.pack("Q", len(data) if length is None else length))
            while data:
                data = data[os.write(pipe, data[:65536]):]
        except OSError:
            pass
"""

# What the exercise asks for: done only where the attack before it was not stopped, so that its success earns points.
RIGHTLY = """
    for number, (inputs, targets) in enumerate(micro_batches, 1):
        (loss_function(model(inputs), targets) / accumulation_steps).backward()
        if number % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""

BODIES = {
    "endless loop": """
    import time
    end = time.monotonic() + 25
    while time.monotonic() < end:
        pass
""",
    "endless sleep": """
    import time
    time.sleep(25)
""",
    "signals ignored": """
    import signal, time
    for number in (signal.SIGXCPU, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    end = time.monotonic() + 25
    while time.monotonic() < end:
        pass
""",
    "fork bomb": """
    import os, time
    for _ in range(40):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
"""
    + RIGHTLY,
    "thread bomb": """
    import threading, time
    threading.stack_size(256 * 2**10)  # so that their number is what is too much
    for _ in range(60):
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()
"""
    + RIGHTLY,
    "memory bomb": """
    blocks = [bytearray(64 * 2**20) for _ in range(24)]
"""
    + RIGHTLY,
    "shared memory bomb": """
    import mmap, time
    block = mmap.mmap(-1, 500 * 2**20)
    for start in range(0, len(block), 4096):
        block[start] = 1
    time.sleep(5)
""",
    "disk fill": """
    for number in range(40):
        with open(f"file{number}", "wb") as file:
            file.write(bytes(4 * 2**20))
"""
    + RIGHTLY,
    "one large file": """
    with open("large", "wb") as file:
        for number in range(24):
            file.write(bytes(2**20))
"""
    + RIGHTLY,
    "shared memory files": """
    for number in range(40):
        with open(f"/dev/shm/file{number}", "wb") as file:
            file.write(bytes(4 * 2**20))
"""
    + RIGHTLY,
    "output flood": """
    import os
    for _ in range(200):
        print("x" * 100_000)
        os.write(1, b"x" * 100_000)
        os.write(2, b"x" * 100_000)
""",
    "os._exit": """
    import os
    os._exit(0)
""",
    "sys.exit": """
    raise SystemExit(0)
""",
    "keyboard interrupt": """
    raise KeyboardInterrupt
""",
    "crash of the interpreter": """
    import ctypes
    ctypes.string_at(0)
""",
    "killing the parent": """
    import os, signal
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
        os.kill(os.getppid(), number)
""",
    "stopping the parent": """
    import os, signal
    os.kill(os.getppid(), signal.SIGSTOP)
""",
    "killing its group": """
    import os, signal
    os.killpg(os.getpgid(0), signal.SIGKILL)
""",
    "looking into the parent": """
    import os
    with open(f"/proc/{os.getppid()}/mem", "r+b") as memory, open(f"/proc/{os.getppid()}/maps") as maps:
        first = int(maps.readline().split("-")[0], 16)
        memory.seek(first)
        memory.write(memory.read(1))
    open("PLACES/looked", "w").write("into the parent's memory")
""",
    "the parent's open files": """
    import os
    for number in range(3, 20):
        with open(f"/proc/{os.getppid()}/fd/{number}", "wb", buffering=0) as file:
            file.write(b"forged" + bytes([10]))
    open("PLACES/looked", "w").write("into the parent's files")
""",
    "higher limits": """
    import resource
    raised = []
    for what in (resource.RLIMIT_DATA, resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_NPROC):
        try:
            resource.setrlimit(what, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            raised.append(what)
        except ValueError:
            pass
    if not raised:
        raise OSError("refused")
"""
    + RIGHTLY,
    "links and locked folders left behind": """
    import os
    os.makedirs("locked/inner")
    os.symlink("/", "locked/inner/root")
    os.symlink("PLACES", "places")
    os.chmod("locked/inner", 0)
    os.chmod("locked", 0)
""",
    "reading solutions": """
    import glob, json
    for path in glob.glob("COURSE/solutions/1_accumulation/1_pytorch.ipynb") + glob.glob("COURSE/authoring/1_accumulation/1_pytorch.py"):
        cells = [cell["source"] for cell in json.load(open(path))["cells"]] if path.endswith("ipynb") else [open(path).read()]
        code = next("".join(source) for source in cells if "def train_accumulated(" in "".join(source))
        names = {}
        exec(code, names)
        found = names["train_accumulated"]
"""
    + WITH_ANSWER,
    "reading exercises_tests": """
    import importlib, sys
    for name in [name for name in sys.modules if name.startswith("exercises_tests")]:
        del sys.modules[name]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "trainlean" not in type(finder).__module__]
    sys.path.insert(0, "COURSE")
    module = importlib.import_module("exercises_tests.1_accumulation.1_pytorch.exercises")
    for found in (module.by_autograd,):
"""
    + WITH_ANSWER,
    "reading other submissions": """
    import glob, json, os
    for path in [p for p in glob.glob("PLACES/class/*/*.ipynb") if "honest" in p] + glob.glob("/tmp/submission*/**/*.ipynb", recursive=True):
        code = next("".join(c["source"]) for c in json.load(open(path))["cells"] if "def train_accumulated(" in "".join(c["source"]))
        names = {}
        exec(code, names)
        found = names["train_accumulated"]
"""
    + WITH_ANSWER,
    "writing the gradebook": """
    for name in ("grades.csv", "grades.jsonl"):
        with open(f"PLACES/{name}", "a") as file:
            file.write("forged")
""",
    "writing into the course": """
    for folder in ("COURSE/trainlean", "COURSE/data", "COURSE/work"):
        try:
            open(f"{folder}/FORGED_NAME", "w").write("forged")
        except OSError:
            pass
""",
    "network by TCP": """
    import socket
    with socket.create_connection(("127.0.0.1", TCP_PORT), timeout=2) as connection:
        connection.sendall(b"forged")
""",
    "network by UDP": """
    import socket
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"forged", ("127.0.0.1", UDP_PORT))
""",
    "a socket that no network namespace holds": """
    import socket
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
"""
    + RIGHTLY,
    "the worker's limits and priority": """
    import os, resource
    os.setpriority(os.PRIO_USER, os.getuid(), 19)
    os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))
    resource.prlimit(os.getppid(), resource.RLIMIT_FSIZE, (0, 0))
""",
    "settings of libraries in the worker's folders": """
    import os
    for folder in ("/tmp", "/tmp/.config/matplotlib"):
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/matplotlibrc", "w") as file:
            file.write("figure.figsize: 100000, 100000")
    import matplotlib
""",
    "more files than memory for their names": """
    import os, time
    end = time.monotonic() + 0.3
    for number in range(10**9):
        open(f"/tmp/{number}", "w").close()
        if time.monotonic() > end:
            break
""",
    "a thread that goes on": """
    import threading, time, os
    def go_on():
        for _ in range(100):
            time.sleep(0.2)
            for pipe in range(3, 20):
                try:
                    os.write(pipe, bytes(8))
                except OSError:
                    pass
    threading.Thread(target=go_on).start()
""",
    "a daemon that outlives the run": """
    import ctypes, os, time
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(15, b"COMM", 0, 0, 0)
            time.sleep(25)
        os._exit(0)
""",
    "stack walking to the seed": """
    import gc, sys
    frame, seeds = sys._getframe(), []
    while frame:
        seeds += [value for name, value in frame.f_locals.items() if name == "seed"]
        frame = frame.f_back
    import types
    import trainlean.exercises.exercise as engine
    things = gc.get_objects()
    candidates = [thing.oracle for thing in things if type(thing) is engine.Exercise]
    candidates += [thing for thing in things if type(thing) is types.FunctionType and ("oracle" in thing.__name__ or thing.__name__ == "large_batch_training")]
    if 7 not in seeds:
        raise LookupError("no seed in sight")
    for candidate in candidates:
        for seed in seeds:
            try:
                observation = candidate(seed)
                send(engine.pack(engine.Seen({name: engine.plain(value) for name, value in observation.items()})))
            except Exception:
                pass
""",
    "asking the engine for the oracle": """
    import trainlean.exercises.exercise as engine
    exercise = engine.find_exercise("train_accumulated")
    send(engine.pack(engine.Seen(engine.see_oracle(exercise, 7))))
""",
    "a hard-coded answer": """
    import torch
    for step in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.125)
        optimizer.step()
        optimizer.zero_grad()
""",
    "NaN everywhere": """
    import torch
    for step in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, float("nan"))
        optimizer.step()
        optimizer.zero_grad()
""",
    "giant arrays": """
    import torch
    for parameter in model.parameters():
        parameter.data = torch.zeros(5_000_000)
        parameter.grad = None
""",
    "forged answer": """
    send(forged({NAMES[0]: 2}))
    os._exit(0)
""",
    "forged, with values that equal everything": """
    send(forged({NAMES[0]: float("nan"), "raised": ["a"], "deep": {"a": [1]}, "huge": 10**400}))
    os._exit(0)
""",
    "forged, an archive that grows": """
    send(forged({}, {NAMES[0]: np.zeros(2_000_000)}, save=np.savez_compressed))
    os._exit(0)
""",
    "forged, an archive in which arrays lie about their size": """
    data = forged({}, {NAMES[0]: np.zeros(1000)})
    send(data.replace(b"(1000,)", b"(9e9,)"[:7].ljust(7)).replace(b"'shape': (1000,), }", b"'shape': (10**9,),}"))
    os._exit(0)
""",
    "forged, more than was announced": """
    send(bytes(4 * 2**20), length=2**62)
    os._exit(0)
""",
    "forged, deep JSON": """
    file = io.BytesIO()
    np.savez(file, head=np.frombuffer(b"[" * 100_000, dtype=np.uint8))
    send(file.getvalue())
    os._exit(0)
""",
    "forged, other kinds of arrays": """
    send(forged({}, {NAMES[0]: np.array(["a", "b"]), "times": np.zeros(3, "datetime64[s]"), "complex": np.ones(3, complex)}))
    os._exit(0)
""",
    "pickles": """
    class Evil:
        def __reduce__(self):
            return (open, ("PLACES/unpickled", "w"))
    send(forged({}, {NAMES[0]: np.array([Evil()], dtype=object)}))
    os._exit(0)
""",
    "a pickle in place of an archive": """
    import pickle
    class Evil:
        def __reduce__(self):
            return (open, ("PLACES/unpickled", "w"))
    send(pickle.dumps(Evil()))
    os._exit(0)
""",
}

BODIES |= {
    "sleeping processes": """
    import os, time
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)
    time.sleep(3)
""",
    "children that are the worker's": """
    import ctypes, os, platform, time
    clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    for _ in range(2):
        number = ctypes.CDLL(None).syscall(clone, 0x8000 | 17, 0, 0, 0, 0)
        if number < 0:
            raise OSError("refused")
        if number == 0:
            time.sleep(20)
            os._exit(0)
"""
    + RIGHTLY,
    "System V's shared memory": """
    import ctypes
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    for _ in range(3):
        number = libc.shmget(0, 150 * 2**20, 0o1600)
        if number < 0:
            raise OSError("refused")
        place = libc.shmat(number, None, 0)
        ctypes.memset(place, 1, 150 * 2**20)
        libc.shmdt(ctypes.c_void_p(place))
"""
    + RIGHTLY,
    "files in memory that have no name": """
    import os
    files = [os.memfd_create(f"{number}") for number in range(16)]
    for file in files:
        os.write(file, bytes(15 * 2**20))
"""
    + RIGHTLY,
    "memory of started processes together": """
    import subprocess, sys, time
    code = "b = bytearray(90 * 2**20); print('up', flush=True); import time; time.sleep(20)"
    started = [subprocess.Popen([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE) for _ in range(6)]
    for process in started:
        if process.stdout.readline() != b"up\\n":
            raise MemoryError
    time.sleep(1)
"""
    + RIGHTLY,
    "a file system of its own": """
    import ctypes, os
    libc = ctypes.CDLL(None)
    if libc.unshare(0x10000000 | 0x20000):
        raise OSError("refused")
"""
    + RIGHTLY,
}

CELLS = {
    "patching torch": """
import torch
for name in ("allclose", "equal", "isclose"):
    setattr(torch, name, lambda *a, **k: torch.tensor(True))
torch.Tensor.backward = lambda *a, **k: None
torch.Tensor.numpy = lambda *a, **k: __import__("numpy").zeros(1)
"""
    + SIGNATURE
    + "    torch\n    optimizer.step()\n",
    "patching numpy, json and builtins": """
import builtins, json
import numpy as np
class Same(dict):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = None
np.allclose = np.array_equal = lambda *a, **k: True
np.abs = np.asarray = lambda *a, **k: Same()
json.dumps = lambda *a, **k: '{"order": [], "values": {}, "arrays": [], "attempted": true, "traceback": "", "printed": ""}'
builtins.isinstance = lambda *a: True
builtins.all = lambda *a: True
patched = True
"""
    + SIGNATURE
    + "    return patched, builtins, json, np, Same\n",
    "patching the meter and the recorder": """
import sys
import trainlean.costs.meter
trainlean.costs.meter.Meter = object
for name, module in list(sys.modules.items()):
    if name.startswith("exercises_tests") and hasattr(module, "Recorder"):
        module.Recorder._before_step = lambda self, model: None
"""
    + SIGNATURE
    + "    sys, trainlean\n    optimizer.step()\n",
    "patching the probe": """
import sys
for name, module in list(sys.modules.items()):
    if name.startswith("exercises_tests"):
        for thing in list(vars(module)):
            if callable(getattr(module, thing)) and not thing.startswith("__"):
                setattr(module, thing, lambda *a, **k: {})
"""
    + SIGNATURE
    + "    sys, name, module, thing\n",
    "replacing check and the verdict": """
import trainlean.exercises.exercise as engine, trainlean.exercises.feedback as feedback, trainlean.exercises.checking as checking
def check(*a, **k): return "right"
right = engine.Verdict("train_accumulated", "1_accumulation/1_pytorch", "right", 3, 3, "Right.")
feedback.check = check
engine.verdict = engine.judge = checking.verdict = lambda *a, **k: right
engine.same = engine.equal = lambda *a: True
engine.first_difference = lambda *a: None
"""
    + SIGNATURE
    + "    return check, right, feedback, engine, checking\n",
    "an answer that is everything": """
class Everything(float):
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __eq__(self, other): return True
    def __array__(self, *a, **k): raise KeyboardInterrupt
    __hash__ = None
train_accumulated = Everything(1.0)
""",
    "attacks while its cell is run": """
import os, signal
class Attack:
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            os.kill(os.getppid(), number)
        except PermissionError:
            pass
"""
    + SIGNATURE
    + "    Attack\n",
    "exits when its cell is run": """
import os
gone = os._exit(0)
"""
    + SIGNATURE
    + "    gone\n",
}


def cell(name: str) -> str:
    """The code of an attack, with the places still to be filled in."""
    if name in CELLS:
        return CELLS[name]
    body = BODIES[name]
    return (
        (FORGE if "send(" in body else "")
        + SIGNATURE
        + body.lstrip("\n").replace("\n        found", "\n        found")
    )


NAMES = [*BODIES, *CELLS]

# Attacks on what is the same under every kind of isolation: the answering process itself, what it sends, and who reads that.
# It is enough that one kind withstands them; all others are tried on each, since they meet what it shows, counts or ends.
INSIDE = {name for name in NAMES if name.startswith(("forged", "patching", "sys.", "os."))} | {
    "signals ignored",
    "endless sleep",
    "thread bomb",
    "memory bomb",
    "output flood",
    "keyboard interrupt",
    "crash of the interpreter",
    "a hard-coded answer",
    "NaN everywhere",
    "giant arrays",
    "pickles",
    "a pickle in place of an archive",
    "stack walking to the seed",
    "replacing check and the verdict",
    "an answer that is everything",
    "exits when its cell is run",
}
