"""A 2-1 plan trained over links that are really slow: network namespaces with shaped bandwidth."""

import json
import sys
from pathlib import Path

import pytest

from pipekit.clusters.namespaces import available, bytes_per_second, run

RATE = "200mbit"
MINIBATCHES, ROWS, WIDTH = 6, 64, 8192  # an activation of 2 MiB

SCRIPT = f"""
import json, os, sys
import torch
from torch import nn
import pipekit as pk
from pipekit import schedules

torch.manual_seed(0)  # every process makes the same weights
x, y = torch.ones({ROWS}, 4), torch.zeros({ROWS}, 1)
pipe = pk.Pipeline(
    nn.Sequential(nn.Linear(4, {WIDTH}), nn.Linear({WIDTH}, 1)),
    schedules.pipedream([2, 1]),
    balance=[1, 1],
    optimizer=lambda p: torch.optim.SGD(p, lr=1e-4),
    loss=nn.MSELoss(),
    transport="distributed",
)
pipe.train([(x, y)] * 2)  # connections are made at the first use
run = pipe.train([(x, y)] * {MINIBATCHES})
if os.environ["RANK"] == "0":
    found = {{"wall_s": run.wall_s, "traffic": run.traffic.to_dict("records")}}
    frame = run.trace.frame
    found["events"] = frame.to_dict("records")
    open(sys.argv[1], "w").write(json.dumps(found))
"""


@pytest.mark.long
@pytest.mark.skipif(available() is not None, reason=str(available()))
def test_a_transfer_takes_its_bytes_over_the_bandwidth(tmp_path: Path) -> None:
    script, result = tmp_path / "train.py", tmp_path / "found.json"
    script.write_text(SCRIPT)
    assert run([sys.executable, str(script), str(result)], 3, RATE) == 0
    found = json.loads(result.read_text())

    size = ROWS * WIDTH * 4
    sent = {(r["source"], r["destination"], r["purpose"]): r["bytes"] for r in found["traffic"]}
    assert sent[0, 2, "activation"] == sent[2, 0, "gradient"] == MINIBATCHES / 2 * size
    assert sent[0, 1, "weights"] == sent[1, 0, "weights"] == (4 + 1) * WIDTH * 4 * MINIBATCHES / 2

    # The first worker's clock is the others': they left a barrier together.
    ends = {(e["op"], e["stage"], e["microbatch"]): e["end_s"] for e in found["events"]}
    starts = {(e["op"], e["stage"], e["microbatch"]): e["start_s"] for e in found["events"]}
    transfers = [starts["FORWARD", 1, k] - ends["FORWARD", 0, k] for k in range(MINIBATCHES)]
    least = size / bytes_per_second(RATE)
    assert min(transfers) >= 0.8 * least, "the burst of the token bucket may go faster"
    assert min(transfers) <= 3 * least
    # Everything that comes in at worker 2 comes through its one link.
    assert found["wall_s"] >= MINIBATCHES * size / bytes_per_second(RATE)
