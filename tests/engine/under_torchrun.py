"""Runs a script in two processes under torchrun."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path


def under_torchrun(
    source: str, argument: Path, repository: Path, *options: str, limit_s: int
) -> str:
    """Return what a script prints that ends well and in time, with ``argument`` after its name."""
    script = argument.with_name(f"{argument.name}.py")
    script.write_text(textwrap.dedent(source))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", *options, str(script), str(argument)]
    with subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": str(repository)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            printed, complaints = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then ends the workers, which a kill would leave behind
            raise
    assert process.returncode == 0, complaints
    return printed.strip()
