"""OpenMP's threads come and go."""

import subprocess
import sys

import pytest

from pipekit.host import operator_threads

SCRIPT = """
import os, torch
from pipekit.host.operator_threads import release_threads

def threads():
    return len(os.listdir("/proc/self/task"))

def settle(wanted):  # a thread that ends is listed for a moment
    import time
    for _ in range(10_000):
        if threads() == wanted:
            return True
        time.sleep(0.01)

torch.set_num_threads(3)
before = threads()
x = torch.ones(1 << 20)
print(threads() - before)
release_threads()
print(settle(before))
x + x
print(threads() - before)
"""


@pytest.mark.skipif(not operator_threads._pauses(), reason="another OpenMP than GNU's")
def test_they_are_released_and_come_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == ["2", "True", "2"]
