"""The training as a script, started as people start it, ends where the same training in one process ends."""

import os
import subprocess
import sys

import pytest
import torch
from patience import patience

from trainlean import batches, load_reviews, small_bert
from trainlean.devices.inside import free_port
from trainlean.workspace import COURSE

pytestmark = pytest.mark.timeout(600)
SCRIPT = COURSE / "scripts" / "train_local_sgd.py"
SECONDS = 90  # that a launch may take; on an idle machine it takes 6
RANKS, STEPS, LOCAL_STEPS, RATE = 2, 2, 3, 0.05


@pytest.fixture(scope="module")
def by_hand(one_thread):
    """Two models in one process, their parameters averaged after step 3 and at the end."""
    data = batches(load_reviews()[:64], 4, max_length=64, shuffle=False)
    replicas = [small_bert(seed=0) for _ in range(RANKS)]
    for step in range(1, 5):
        for rank, model in enumerate(replicas):
            for batch in data[rank::RANKS][STEPS * (step - 1) : STEPS * step]:
                (model(**batch).loss / STEPS).backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= RATE * parameter.grad
                    parameter.grad = None
        if step in (LOCAL_STEPS, 4):
            with torch.no_grad():
                for same in zip(*(model.parameters() for model in replicas)):
                    mean = sum(same) / RANKS
                    for parameter in same:
                        parameter.copy_(mean)
    return replicas[0].state_dict()


def launch(*commands):
    """Run commands side by side; what the first printed."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    }
    environment = {
        name: value
        for name, value in environment.items()
        if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    common = {
        "cwd": COURSE,
        "env": environment,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    started = [subprocess.Popen([sys.executable, *command], **common) for command in commands]
    try:
        answers = [process.communicate(timeout=patience(SECONDS)) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    for process, (_, err) in zip(started, answers):
        assert process.returncode == 0, err
    return answers[0][0]


def torchrun(folder, *more):
    return [
        "-m",
        "torch.distributed.run",
        *more,
        str(SCRIPT),
        "--output",
        str(folder / "weights.pt"),
    ]


def accelerate(folder, *more):
    return [
        "-m",
        "accelerate.commands.launch",
        *more,
        str(SCRIPT),
        "--output",
        str(folder / "weights.pt"),
    ]


def distance(folder, expected):
    weights = torch.load(folder / "weights.pt")
    assert weights.keys() == expected.keys()
    return max((weights[name] - expected[name]).abs().max().item() for name in expected)


def test_two_machines_with_a_process_each_end_where_one_process_ends_that_does_it_by_hand(
    tmp_path, by_hand
):
    """As the README says it for several machines; both are this one."""
    where = [
        "--nnodes",
        "2",
        "--nproc_per_node",
        "1",
        "--master_addr",
        "127.0.0.1",
        "--master_port",
        str(free_port()),
    ]
    said = launch(*(torchrun(tmp_path, *where, "--node_rank", str(node)) for node in range(2)))
    norm = torch.cat([values.flatten() for values in by_hand.values()]).double().norm()
    assert said == f"2 ranks, 4 optimizer steps each, 2 averages, norm of the weights {norm:.6f}\n"
    assert distance(tmp_path, by_hand) < 1e-6


def test_accelerate_launches_two_processes_too(tmp_path, by_hand):
    where = ["--multi_gpu", "--num_processes", "2", "--main_process_port", str(free_port())]
    said = launch(accelerate(tmp_path, *where))
    assert "2 ranks, 4 optimizer steps each, 2 averages" in said
    assert distance(tmp_path, by_hand) < 1e-6
