"""JupyterLab as `trainlean lab` starts it, for the tests that look at it in a browser."""

import json
import os
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from unittest import mock

from trainlean import cli
from trainlean.doctor import prepare_jupyter

TOKEN = "made-for-this-test"
PATIENCE = 60  # seconds until something is there that a quiet machine has in a few


class RunningLab:
    """JupyterLab on the course's map, with the lessons that lie in `folder`; what it writes down about its user goes there, too."""

    def __init__(self, folder):
        self.folder = folder
        own = {
            name: str(folder / name)
            for name in (
                "JUPYTER_CONFIG_DIR",
                "JUPYTER_RUNTIME_DIR",
                "JUPYTERLAB_SETTINGS_DIR",
                "JUPYTERLAB_WORKSPACES_DIR",
                "IPYTHONDIR",
                "TRAINLEAN_WORK",
            )
        }
        prepare_jupyter()
        with mock.patch.object(cli, "COURSE", folder):
            opens = cli.lab_command(browser=False)
        command = [
            *opens,
            f"--IdentityProvider.token={TOKEN}",
            "--LabApp.expose_app_in_browser=True",
            "--ServerApp.port=0",
            "--LanguageServerManager.autodetect=False",  # of servers that node has installed
        ]
        self.log = open(folder / "lab.log", "w+", encoding="utf-8")  # noqa: SIM115
        # Quiet about speed: a learner's own bars are shown.
        environment = {**os.environ, **own, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTEST_VERSION", None)
        self.process = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)
        until = time.monotonic() + PATIENCE
        while not (found := re.search(r"http://localhost:(\d+)/", self.read_log())):
            if self.process.poll() is not None or time.monotonic() > until:
                self.process.kill()  # or it would outlive the test
                raise AssertionError(f"JupyterLab did not come up: {self.read_log()}")
            time.sleep(0.1)
        self.root = found[0]

    def read_log(self):
        """What JupyterLab has said so far."""
        return Path(self.log.name).read_text(encoding="utf-8")

    def ask(self, path, method="GET"):
        """An answer of Jupyter's server."""
        request = urllib.request.Request(f"{self.root}api/{path}?token={TOKEN}", method=method)
        with urllib.request.urlopen(request) as answer:
            return json.loads(answer.read() or b"null")

    def end(self):
        """End its kernels, then itself."""
        for session in self.ask("sessions"):
            self.ask(f"sessions/{session['id']}", "DELETE")
        self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        finally:
            self.process.kill()  # of what is still there; else it would outlive the test
            self.log.close()
