"""How long a test waits for processes on a machine that has other things to do."""

import os

MOST = 540  # seconds, below the limit of the tests that wait so


def patience(seconds: float) -> float:
    """`seconds` of a machine at rest, times as many as there are processes for each of its cores."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else 1.0
    return min(MOST, seconds * max(1.0, busy))
