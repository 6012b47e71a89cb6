"""The link model held against a throttled link: time per optimizer step, predicted and measured, for DDP and Local SGD.

Two processes (gloo) in two network namespaces train a small model over a link between them whose latency and bandwidth are set:
by `tc netem` where the kernel has it (not tried: the authors' kernel has none), else by a process that passes the packets on late
and at the set rate.
The namespaces are made for the purpose and removed again; nothing outside them is touched.

    python benchmarks/link_model.py [--short]      (Linux, root, iproute2)
"""

import argparse
import contextlib
import ctypes
import datetime
import fcntl
import heapq
import json
import os
import re
import select
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import time

from trainlean.costs.links import Link, all_reduce_seconds, ddp_step_seconds, local_sgd_step_seconds

LINKS = (
    Link(5e-3, 10e6, "5 ms, 10 MB/s"),
    Link(10e-3, 5e6, "10 ms, 5 MB/s"),
    Link(75e-3, 12.5e6, "75 ms, 12.5 MB/s"),
)
LOCAL_STEPS = (1, 2, 4, 8, 16, 32)
DDP_BUCKETS = (
    25,
    0.3,
    0.2,
)  # MB: all gradients at once, as torch has it for a model of this size, two layers in a bucket, and one
TURNS, TIMES = (
    3,
    3,
)  # of each: steps of DDP, or H steps and an average; and as many of computing alone
NAMES = tuple(f"trainlean-{os.getpid()}-{side}" for side in "ab")
ADDRESSES = ("10.213.77.1", "10.213.77.2")
MTU = 9000  # fewer packets than with 1500, as a process may have to pass them on
HEADERS = (
    20 + 32
)  # of IP and TCP (with time stamps), in every packet: what is left of a packet carries the payload
SECONDS = 240  # that the two processes may take for one link


# ---------------------------------------------------------------- the link


def reason_against() -> str | None:
    """Why this machine cannot do it, in a sentence; None where it can."""
    if sys.platform != "linux":
        return "Network namespaces are a thing of Linux."
    if os.geteuid() != 0:
        return "Only root may make network namespaces: run it as root."
    if not shutil.which("ip") or not shutil.which("tc"):
        return "The commands ip and tc are not there: install iproute2."
    remove_leftovers()
    made = subprocess.run(["ip", "netns", "add", NAMES[0]], capture_output=True, text=True)
    if made.returncode:
        return f"This machine lets nobody make network namespaces ({made.stderr.strip()})."
    return None


def remove_leftovers() -> None:
    """Remove the namespaces of an earlier run of this benchmark that was killed."""
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout.split()
    for name in names:
        if (found := re.fullmatch(r"trainlean-(\d+)-[ab]", name)) and not os.path.exists(
            f"/proc/{found[1]}"
        ):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def end_with_parent() -> None:
    """In a new process: be killed when the benchmark ends in whatever way, and go before other programs until then."""
    os.nice(-15)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def remove_link(forwarder=None) -> None:
    """Remove what `make_link` has made, whatever state it is in."""
    if forwarder is not None:
        forwarder.kill()
        forwarder.wait()
    for name in NAMES:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)


def make_link(link: Link):
    """Two namespaces and the link between them; the process that forwards packets, or None where netem does."""
    remove_link()
    for name in NAMES:
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")
    forwarder = None
    ip(
        "-n",
        NAMES[0],
        "link",
        "add",
        "wire0",
        "mtu",
        str(MTU),
        "type",
        "veth",
        "peer",
        "name",
        "wire1",
        "mtu",
        str(MTU),
        "netns",
        NAMES[1],
    )
    shape = [
        "netem",
        "delay",
        f"{link.latency * 1e3}ms",
        "rate",
        f"{link.bandwidth * 8:.0f}bit",
        "limit",
        "100000",
    ]
    shaped = [
        subprocess.run(
            ["tc", "-n", name, "qdisc", "add", "dev", f"wire{side}", "root", *shape],
            capture_output=True,
        ).returncode
        for side, name in enumerate(NAMES)
    ]
    if any(shaped):
        ip("-n", NAMES[0], "link", "del", "wire0")
        forwarder = subprocess.Popen(
            [sys.executable, __file__, "--forward", *NAMES, str(link.latency), str(link.bandwidth)],
            stdout=subprocess.PIPE,
            preexec_fn=end_with_parent,
        )
        if forwarder.stdout.readline() != b"ready\n":
            raise RuntimeError("The process that passes packets on did not start.")
    for side, (name, address) in enumerate(zip(NAMES, ADDRESSES)):
        ip("-n", name, "addr", "add", f"{address}/24", "dev", f"wire{side}")
        ip("-n", name, "link", "set", f"wire{side}", "mtu", str(MTU), "up")
        # An average comes after seconds of silence: TCP must not begin each from its smallest window again.
        set_quiet = "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle"
        subprocess.run(["ip", "netns", "exec", name, "sh", "-c", set_quiet], check=True)
    return forwarder


def forward(names, latency: float, bandwidth: float) -> None:
    """Pass packets between two TUN devices, one in each namespace: at `bandwidth`, and `latency` later."""
    libc = ctypes.CDLL(None, use_errno=True)
    tuns = []
    for side, name in enumerate(names):
        with open(f"/run/netns/{name}") as space:
            if libc.setns(space.fileno(), 0x40000000):  # CLONE_NEWNET
                raise OSError(ctypes.get_errno(), "setns")
        tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(
            tun, 0x400454CA, struct.pack("16sH22x", f"wire{side}".encode(), 0x1001)
        )  # TUNSETIFF: IFF_TUN | IFF_NO_PI
        tuns.append(tun)
    print("ready", flush=True)
    free, on_the_way, number = [0.0, 0.0], [], 0
    while True:
        wait = max(0.0, on_the_way[0][0] - time.monotonic()) if on_the_way else None
        for tun in select.select(tuns, [], [], wait)[0]:
            side = tuns.index(tun)
            with contextlib.suppress(BlockingIOError):
                while True:
                    packet = os.read(tun, 65536)
                    free[side] = max(free[side], time.monotonic()) + len(packet) / bandwidth
                    number += 1
                    heapq.heappush(
                        on_the_way, (free[side] + latency, number, tuns[1 - side], packet)
                    )
        now = time.monotonic()
        while on_the_way and on_the_way[0][0] <= now:
            _, _, tun, packet = heapq.heappop(on_the_way)
            with contextlib.suppress(OSError):
                os.write(tun, packet)


# ---------------------------------------------------------------- the two processes


def work(rank: int, local_steps: list[int], width: int) -> None:
    """Train as one of the two ranks; rank 0 prints what was measured as JSON."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    torch.set_num_threads(1)
    limit = datetime.timedelta(seconds=60)  # for one collective
    dist.init_process_group(
        "gloo", init_method=f"tcp://{ADDRESSES[0]}:29500", rank=rank, world_size=2, timeout=limit
    )
    torch.manual_seed(rank)
    batch = torch.randn(128, width)

    def timed(*works):
        """The medians of the seconds that each of `works` takes, on the slower rank; they take turns, as other programs come and go."""
        taken = [[] for _ in works]
        for _ in range(TURNS):
            for work, seconds in zip(works, taken):
                ends = []
                for _ in range(
                    TIMES + 1
                ):  # from end to end, so that it does not matter which rank has left the last one first
                    work()
                    ends.append(time.perf_counter())
                slower = torch.tensor([b - a for a, b in zip(ends, ends[1:])], dtype=torch.float64)
                dist.all_reduce(slower, dist.ReduceOp.MAX)
                seconds += slower.tolist()
        return [statistics.median(seconds) for seconds in taken]

    def new():
        torch.manual_seed(0)
        layers = [
            layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.Tanh())
        ]
        net = torch.nn.Sequential(*layers)
        return net, torch.optim.SGD(net.parameters(), lr=0.01)

    def steps_of(model, optimizer, steps=1, after=lambda: None):
        def work():
            for _ in range(steps):
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            after()

        return work

    def average():
        with torch.no_grad():
            flat = parameters_to_vector(replica.parameters())
            dist.all_reduce(flat)
            vector_to_parameters(flat / 2, replica.parameters())

    replica, optimizer = new()
    payload = sum(parameter.nbytes for parameter in replica.parameters())
    flat = torch.zeros(payload // 4)
    for _ in range(8):  # until TCP knows the link
        dist.all_reduce(flat)
    measured = {
        "payload": payload,
        "flat": timed(lambda: dist.all_reduce(flat))[0],
        "ddp": [],
        "local": [],
    }
    for cap in DDP_BUCKETS:
        net, its_optimizer = new()
        ddp = DistributedDataParallel(net, bucket_cap_mb=cap)
        training = steps_of(ddp, its_optimizer)
        for _ in range(4):
            training()
        sizes = [
            int(size)
            for size in str(ddp._get_ddp_logging_data()["rebuilt_bucket_sizes"]).split(",")
        ]
        measured["ddp"].append([sizes, *timed(steps_of(replica, optimizer), training)])
    for h in local_steps:
        both = timed(steps_of(replica, optimizer, h), steps_of(replica, optimizer, h, average))
        measured["local"].append([h, *(seconds / h for seconds in both)])
    dist.barrier()
    if rank == 0:
        print(json.dumps(measured), flush=True)
    # Not to the end of the interpreter: now and then the process died there of a thread of gloo's that was still at work.
    os._exit(0)


def measure(link: Link, local_steps, width: int) -> tuple[dict, str]:
    """What the two processes measured over the link, and what throttled it."""
    forwarder = make_link(link)
    workers = []
    try:
        for rank, name in enumerate(NAMES):
            environment = os.environ | {"GLOO_SOCKET_IFNAME": f"wire{rank}", "OMP_NUM_THREADS": "1"}
            command = [
                "ip",
                "netns",
                "exec",
                name,
                sys.executable,
                __file__,
                "--work",
                str(rank),
                "--width",
                str(width),
                "--local-steps",
                *map(str, local_steps),
            ]
            workers.append(
                subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    env=environment,
                    preexec_fn=end_with_parent,
                )
            )
        out, error = workers[0].communicate(timeout=SECONDS)
        if workers[0].returncode:
            raise RuntimeError(
                error.strip().splitlines()[-1] if error.strip() else "rank 0 failed without a word"
            )
        workers[1].wait(timeout=30)
        return json.loads(
            out
        ), "netem" if forwarder is None else "a process that passes the packets on"
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        remove_link(forwarder)


def report(link: Link, measured: dict) -> list[float]:
    """Print predicted and measured times of one link; the errors in per cent."""
    carried = Link(link.latency, link.bandwidth * (1 - HEADERS / MTU), gloo=True)
    payload = measured["payload"]
    rows = [
        (
            "all-reduce of the parameters",
            0.0,
            all_reduce_seconds(payload, 2, carried),
            measured["flat"],
        )
    ]
    for sizes, compute, seconds in measured["ddp"]:
        name = f"DDP, {len(sizes)} bucket{'s' * (len(sizes) > 1)}"
        rows.append(
            (name, compute, ddp_step_seconds(compute, payload, 2, carried, buckets=sizes), seconds)
        )
    for h, compute, seconds in measured["local"]:
        rows.append(
            (
                f"Local SGD, H = {h}",
                compute,
                local_sgd_step_seconds(compute, payload, 2, carried, h),
                seconds,
            )
        )
    print(f"\n{link}: {payload:,} bytes of parameters; ms per step")
    print(f"{'':30}{'computing':>11}{'predicted':>11}{'measured':>11}{'error':>10}")
    for name, compute, predicted, seconds in rows:
        print(
            f"{name:30}{compute * 1e3:11.1f}{predicted * 1e3:11.1f}{seconds * 1e3:11.1f}{100 * (predicted / seconds - 1):+8.1f} %"
        )
    return [100 * (predicted / seconds - 1) for _, _, predicted, seconds in rows[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Predicted against measured time per step over a throttled link."
    )
    parser.add_argument("--forward", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--width", type=int, default=256, help="of the model's four layers")
    parser.add_argument("--local-steps", type=int, nargs="+", default=list(LOCAL_STEPS))
    parser.add_argument(
        "--link", type=int, nargs="+", default=range(len(LINKS)), help="which of the links, from 0"
    )
    parser.add_argument("--short", action="store_true", help="one link, one H, a smaller model")
    options = parser.parse_args()
    if options.short:
        options.width, options.local_steps, options.link = 64, [4], [0]
    if options.forward:
        *names, latency, bandwidth = options.forward
        forward(names, float(latency), float(bandwidth))
        return
    if options.work is not None:
        work(options.work, options.local_steps, options.width)
        return
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(1)
    )  # so that what was made is removed then, too
    if reason := reason_against():
        print(f"Not measured here. {reason}")
        return
    errors = []
    try:
        for link in (LINKS[i] for i in options.link):
            measured, throttle = measure(link, options.local_steps, options.width)
            if not errors:
                print(f"The link is throttled by {throttle}; 2 processes, gloo, one thread each.")
                print(
                    f"Load of the machine, this included: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; beyond that, computing times are chance."
                )
            errors += report(link, measured)
    finally:
        remove_link()
    print(
        f"\nsteps of DDP and Local SGD: mean of the absolute errors {sum(map(abs, errors)) / len(errors):.1f} %, largest {max(map(abs, errors)):.1f} %"
    )


if __name__ == "__main__":
    main()
