"""What all tests share: records go to a temporary folder, no test leaves Accelerate's state behind, and nbval runs each notebook as the build does."""

import gc
import os
import sys
import tempfile
import threading
from pathlib import Path
from unittest import mock

import forked_kernels
import pytest
import pytest_timeout
import started_here
from jupyter_client.provisioning import local_provisioner
from nbval.plugin import IPyNbFile
from xdist.scheduler import LoadScopeScheduling

from trainlean.notebooks.building import end_processes, kernel_processes, notebook_environment

gc.disable()  # until the tests are collected: it would look at all of torch again and again while that is imported


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch) -> Path:
    """The work folder of this test, so that no test writes among the learner's records."""
    monkeypatch.setenv("TRAINLEAN_WORK", str(tmp_path / "work"))
    return tmp_path / "work"


@pytest.fixture(autouse=True)
def no_accelerate_state():
    """Accelerate keeps devices, precision and windows for the whole process: the next test must not find those of this one."""
    yield
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


@pytest.fixture(scope="module")
def one_thread():
    """One thread for a file's tests: on models of this size more only wait for each other, on a busy machine thirty times as long."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pytest_collection_modifyitems(items):
    """The longest first, so that all workers end at once (with `--no-loadscope-reorder`); known mistakes before the strangers' answers, which are compared with what was seen of them."""
    items.sort(
        key=lambda item: (
            not isinstance(item.parent, IPyNbFile),
            item.path.name == "test_strangers.py",
        )
    )


class Together(LoadScopeScheduling):
    """What one worker runs together: a notebook, whose cells share a kernel; the tests of an exercise, which see its oracle and its mistakes once; those of the browser, which share one; else a file.

    xdist's own groups (`--dist loadgroup`) are written into a name that pytest 9.2 no longer reads.
    """

    def _split_scope(self, nodeid: str) -> str:
        path, _, test = nodeid.partition("::")
        if path.endswith(("test_exercises.py", "test_strangers.py")) and "[" in test:
            return test.partition("[")[2].partition("-")[0].rstrip("]")
        if path.startswith("tests/browser/"):
            return "tests/browser"
        return nodeid if path.endswith("test_benchmarks.py") else path


def pytest_collection_finish():
    """What has been imported stays: the collector, which a meter calls each time, need not look at all of torch."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def what_came_stays():
    """Nor at what a test has imported and libraries have noted: where it was called, it looks once more, and never again."""
    before = gc.get_stats()[2]
    yield
    if gc.get_stats()[2] != before:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `--dist loadscope`, what belongs together as `Together` says."""
    return Together(config, log) if config.getvalue("dist") == "loadscope" else None


def pytest_sessionstart(session):
    """What is started by this process from here on is known as its own. Of one question all tests and notebooks make one prediction.

    What is compiled is kept for this run alone: a run that was killed may leave half a file behind.
    """
    if not getattr(session.config.option, "numprocesses", None):  # this process runs tests itself
        started_here.mark()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="trainlean-tests-", ignore_cleanup_errors=True)
        session.config.add_cleanup(folder.cleanup)
        for name in ("TRAINLEAN_PREDICTIONS", "TORCHINDUCTOR_CACHE_DIR"):  # inherited by workers
            os.environ[name] = str(Path(folder.name, name))
            Path(os.environ[name]).mkdir()
        # Kernels without vectors: a quarter less to compile, and buffers of the same size.
        os.environ["TORCHINDUCTOR_VEC_ISA_OK"] = "0"
        # It imports while the tests are collected.
        if session.config.getoption("nbval", False) and sys.platform == "linux":
            environment = notebook_environment(Path(folder.name))
            forked_kernels.start_server(Path(folder.name, "kernels"), environment)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """What a failed test has left without a parent ends: a launcher that ran out of time leaves its trainings behind."""
    report = yield
    if report.failed:
        started_here.end_started(orphans=True)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item, settings):
    """As pytest-timeout does it with a thread, which ends this process; but what it has started ends, too."""

    def out_of_time():
        leave = os._exit

        def end_all(status):
            started_here.end_started()
            leave(status)

        os._exit = end_all
        pytest_timeout.timeout_timer(item, settings)

    timer = threading.Timer(settings.timeout, out_of_time)

    def cancel():
        timer.cancel()
        timer.join()

    item.cancel_timeout = cancel
    timer.start()
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    """nbval starts a notebook's kernel in the set-up of its first cell; the kernel inherits the build's environment.

    But for what is timed: nbval compares no seconds, and the counts come from a run of their own.
    On Linux it is forked from a process that has the imports behind it.
    """
    notebook = item.parent
    if not isinstance(notebook, IPyNbFile) or notebook.kernel is not None:
        return (yield)
    scratch = tempfile.TemporaryDirectory(prefix="trainlean-", ignore_cleanup_errors=True)
    before = dict(os.environ)
    os.environ.update(notebook_environment(Path(scratch.name)), TRAINLEAN_REPEATS="0")
    launch = (
        forked_kernels.launch_kernel if sys.platform == "linux" else local_provisioner.launch_kernel
    )
    try:
        with mock.patch.object(local_provisioner, "launch_kernel", launch):
            result = yield
    except BaseException:
        scratch.cleanup()
        raise
    finally:
        os.environ.clear()
        os.environ.update(before)
    notebook.addfinalizer(lambda: _end(notebook, scratch))
    return result


def _end(notebook: IPyNbFile, scratch: tempfile.TemporaryDirectory) -> None:
    """Let the kernel stop by itself (nbval would kill it, and its engines would live on), then end what is left."""
    if notebook.kernel is not None and notebook.kernel.is_alive():
        processes = kernel_processes(notebook.kernel.km)
        notebook.kernel.kc.stop_channels()
        notebook.kernel.km.shutdown_kernel(now=False)
        end_processes(processes)
    scratch.cleanup()
