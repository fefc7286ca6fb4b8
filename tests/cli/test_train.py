"""``pipekit train`` and ``pipekit demo``, as a user types them."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipekit import Pipeline, Stalled
from tests.cli.conftest import Printed
from tests.engine.checkpoints.killing import kill


@pytest.fixture
def gpt(elsewhere: Path) -> str:
    """Return the options for a GPT that learns a short text."""
    Path("alphabet.txt").write_text("abcdefghijklmnopqrstuvwxyz" * 300)  # 110 rows, 12 for testing
    return "train --model gpt --text alphabet.txt --stages 2 --batch-rows 4 --microbatches 2"


@pytest.mark.slow
def test_it_prints_a_measured_table_and_writes_events(printed: Printed, elsewhere: Path) -> None:
    options = "--method 2bw --stages 2 --batch-rows 200 --epochs 2 --microbatches 2"
    text = printed(f"train --model mlp {options} --output mine")
    assert "PipeDream-2BW, 2 stages" in text
    assert "test accuracy" in text
    assert re.search(
        r"measured: \d workers? (share|has|have) \d+ cores? of .*; data: .*MNIST",
        " ".join(text.split()),
    )
    row = r"│ +{} │ +\d\.\d{{4}} │ +\d+\.\d% │ +\d+\.\d\d │ +\d+% \d+% \d+% │ +2 2 │"
    for epoch in (1, 2):
        assert re.search(row.format(epoch), text), text
    events = pd.read_csv("mine/trace.csv")
    assert len(events) == 2 * (20 * 2 * 2 + 20)  # stages (batches, microbatches, F and B; U)
    assert len(pd.read_csv("mine/timeline.csv")) < len(events)
    assert "the first 8 batches" in Path("mine/timeline.svg").read_text()
    record = json.loads(Path("mine/provenance.json").read_text())
    assert record["label"] == "measured"
    assert "MNIST" in record["data"]
    perfetto = json.loads(Path("mine/trace.perfetto.json").read_text())
    assert perfetto["otherData"]["provenance"] == record


@pytest.mark.slow
def test_a_gpt_learns_a_text_and_is_judged_in_bits_per_byte(printed: Printed, gpt: str) -> None:
    """In the alphabet each letter tells the next: from 8 bits it goes down towards 0."""
    text = printed(f"{gpt} --method 2bw --epochs 2")
    assert "test bits/byte" in text
    assert "data: alphabet.txt" in " ".join(text.split())
    rows = re.findall(r"│ +(\d) │ +(\d\.\d{4}) │ +(\d\.\d{3}) │", text)
    assert [epoch for epoch, _, _ in rows] == ["1", "2"]
    assert float(rows[-1][2]) < 2


@pytest.mark.slow
def test_a_method_of_yours_trains_as_the_named_one(printed: Printed, elsewhere: Path) -> None:
    Path("my_methods.py").write_text(
        "from pipekit.schedules import flush\n"
        "def own(stages, microbatches): return flush(stages, microbatches).take(1)\n"
    )
    printed("schedule flush --stages 2 --batches 1 --output own.csv")
    line = "train --model mlp --stages 2 --batch-rows 400 --epochs 1 --method"
    texts = [printed(f"{line} {name}") for name in ("flush", "my_methods:own", "own.csv")]
    flush, own, file = (re.findall(r"│ +1 │ +(\S+) │ +(\S+) │", text) for text in texts)
    assert own == file == flush != []


def test_mixed_precision_tells_how_many_updates_were_skipped(printed: Printed) -> None:
    """A loss above 1 times 2^140 is infinite."""
    options = f"--stages 2 --batch-rows 400 --autocast fp16 --loss-scale {2.0**140}"
    text = printed(f"train --model mlp {options}")
    assert re.search(r"│ +10 │$", text, re.MULTILINE), text


@pytest.mark.long
@pytest.mark.parametrize("model", ["mlp", "gpt"])
def test_both_transports_give_the_same_losses(model: str, printed: Printed, gpt: str) -> None:
    line = {"mlp": "train --model mlp --stages 2 --batch-rows 400", "gpt": gpt}[model]
    texts = [printed(f"{line} --seed 3 --transport {t}") for t in ("threads", "distributed")]
    losses = [re.findall(r"│ +1 │ +(\S+) │ +(\S+) │", text) for text in texts]
    assert losses[0] == losses[1] != []


@pytest.mark.slow
def test_it_resumes_from_checkpoints(printed: Printed, refused: Printed, elsewhere: Path) -> None:
    line = "train --model mlp --method pipedream --stages 2 --batch-rows 400"
    whole = printed(f"{line} --epochs 2")
    saving = f"{line} --checkpoints saved --resume"
    printed(f"{saving} --epochs 1 --every 4")
    resumed = printed(f"{saving} --epochs 2")
    results = [re.findall(r"│ +(\d) │ +(\S+) │ +(\S+%) │", text) for text in (whole, resumed)]
    assert results[0] == results[1]
    assert len(results[0]) == 2
    assert "of epoch 2: name at least as many" in refused(f"{saving} --epochs 1")
    assert "call resume('" in refused(f"{line} --checkpoints saved")


def test_ctrl_c_leaves_the_epochs_that_are_done_and_says_how_to_go_on(
    pipekit: Callable[[str], Any], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = iter([0.123])

    def evaluate(*_: object) -> float:
        for score in scores:
            return score
        raise KeyboardInterrupt

    monkeypatch.setattr("pipekit.Pipeline.evaluate", evaluate)
    result = pipekit(
        "train --model mlp --stages 1 --batch-rows 2000 --epochs 3 --checkpoints saved"
    )
    assert result.exit_code == 130
    assert re.findall(r"│ +(\d) │ +\S+ │ +(\S+%) │", result.stdout) == [("1", "12.3%")]
    assert "to go on from the newest checkpoint: pipekit" in result.stderr


LINE = "train --model mlp --stages 2 --batch-rows 400 --transport distributed"


@pytest.mark.long
def test_a_killed_worker_is_one_sentence_and_the_line_that_resumes(
    pipekit: Callable[[str], Any], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whichever batch it is; a broken pipe, say, once ended the command without a word."""
    evaluate, calls = Pipeline.evaluate, iter([False, True])

    def kills(*given: Any) -> Any:
        if next(calls):
            kill(1)
        return evaluate(*given)

    monkeypatch.setattr(Pipeline, "evaluate", kills)
    line = f"{LINE} --epochs 3 --checkpoints saved"
    monkeypatch.setattr(sys, "argv", ["pipekit", *line.split()])
    result = pipekit(line)
    assert result.exit_code == 1
    said, how = result.stderr.splitlines()[-2:]
    assert re.match(r"error: worker 1's process ended .* \(SIGKILL, killed: .*memory\)", said)
    assert how == f"to go on from the newest checkpoint: pipekit {line} --resume"
    assert re.findall(r"│ +(\d) │ +\S+ │ +(\S+%) │", result.stdout)[0][0] == "1"
    monkeypatch.setattr(Pipeline, "evaluate", evaluate)
    assert pipekit(how.partition("pipekit ")[2]).exit_code == 0


def test_a_training_that_is_stuck_ends_by_its_timeout(
    pipekit: Callable[[str], Any], elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stalls(*_: object) -> float:
        raise Stalled("no worker has got any further for 9 s")

    monkeypatch.setattr(Pipeline, "evaluate", stalls)
    result = pipekit("train --model mlp --stages 1 --batch-rows 2000 --timeout 9")
    assert result.exit_code == 1
    said = result.stderr.splitlines()[-2:]
    assert said[0] == "error: no worker has got any further for 9 s"
    assert "--checkpoints FOLDER --every 20 would have" in said[1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--timeout 0", "timeout must be more than 0 s"),
        ("--transport pigeons", "transport must be one of threads, distributed"),
        ("--method pipefisher", "CURVATURE), which Pipeline cannot run"),
        ("--stages 40", "40 stages"),
        ("--batch-rows 5000", "batch_rows must be 1 to 4000"),
        ("--every 5", "name it, --checkpoints FOLDER"),
        ("--loss-scale static", "loss_scale must be a number, 'dynamic'"),
        ("--replicas 2-1 --method pipedream --loss-scale 1", "wait for one another"),
        ("--text alphabet.txt", "a network that learns text: name it, --model gpt"),
        ("--text short.txt --model gpt", "short.txt has 2 bytes, and rows of 64 need at least 650"),
        ("--text alphabet.txt --model gpt --batch-rows 200", "batch_rows must be 1 to 109"),
    ],
)
def test_wrong_input_gets_one_sentence(options: str, says: str, refused: Printed, gpt: str) -> None:
    Path("short.txt").write_text("ab")
    assert says in refused(f"train {options}")


@pytest.mark.long
def test_two_methods_learn_and_are_drawn(printed: Printed, tmp_path: Path) -> None:
    text = printed(f"demo --output {tmp_path}")
    accuracies = [float(each) for each in re.findall(r"accuracy ([\d.]+)%", text)]
    assert len(accuracies) == 2
    assert min(accuracies) > 80
    assert text.index("Model parallelism has") < text.index("kept by each worker: 1 and 1")
    assert text.index("PipeDream has one") < text.index("kept by each worker: 2 and 1")
    (shares,) = re.findall(r"for (\d+)% of the time without a pipeline and for (\d+)%", text)
    alone, pipelined = map(int, shares)
    assert alone > pipelined
    assert (tmp_path / "timelines.svg").exists()
