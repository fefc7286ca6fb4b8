"""Profiles of torch.distributed.pipelining, recorded here by processes on gloo, are explained."""

import subprocess
import sys
from pathlib import Path

import pytest

import pipekit as pk

SCRIPT = Path(__file__).with_name("torch_run.py")
NAMED = {
    "GPipe": "gpipe",
    "1F1B": "flush",
    "LoopedBFS": "looped-bfs",
    "Interleaved1F1B": "interleaved",
    "InterleavedZeroBubble": "interleaved-zero-bubble",
    "ZBVZeroBubble": "zb-v",
}


@pytest.mark.long
def test_every_pass_is_found_and_the_method_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(SCRIPT), str(tmp_path), *NAMED]
    subprocess.run(command, check=True, capture_output=True, timeout=500)
    for schedule, method in NAMED.items():
        found = pk.explain(pk.read_trace(tmp_path / schedule))
        assert found.recognition.method == method
        assert (found.recognition.edits, found.recognition.microbatches) == (0, 8)
        assert sum(found.record()["shares"].values()) == pytest.approx(1.0)
