"""``pipekit schedule``, and ``pipekit check`` of tables and orders of messages, as a user types them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pipekit import schedules
from tests.cli.conftest import Printed


def test_prints_the_picture_and_a_line_of_facts(printed: Printed) -> None:
    picture, _, facts = printed("schedule gpipe --stages 3").rstrip().rpartition("\n")
    assert schedules.parse(picture) == schedules.gpipe(3, 4).take(2)
    assert facts == (
        "GPipe: bubble 33.3 % of makespan, 27.3 % of spans, 36 slots; at most, a worker: weight "
        "slots 1 1 1, microbatches in flight 4 4 4 (exact)"
    )
    assert "chunks in flight 5 4 3 2 (exact)" in printed("schedule seq1f1b")


@pytest.mark.parametrize("suffix", [".txt", ".csv"])
@pytest.mark.parametrize("method", ["2bw", "pipedream-no-stashing", "bpipe"])
def test_a_written_table_reads_back_the_same(
    method: str, suffix: str, printed: Printed, elsewhere: Path
) -> None:
    first = printed(f"schedule {method}")
    assert f"wrote new/a{suffix}" in printed(f"schedule {method} --output new/a{suffix}")
    assert printed(f"schedule new/a{suffix}") == first


def test_svg_comes_with_its_events(printed: Printed, elsewhere: Path) -> None:
    text = printed("schedule gpipe flush --output two.svg --versions")
    assert text.splitlines()[:2] == ["wrote two.svg", "wrote two.csv"]
    assert "PipeDream-Flush" in Path("two.svg").read_text()
    assert ">v0<" in Path("two.svg").read_text()
    assert set(pd.read_csv("two.csv")["schedule"]) == {"GPipe", "PipeDream-Flush"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("schedule gpip", "'gpip' is neither a file, nor a package.module:function, nor one of"),
        ("schedule 1F1B", "did you mean 'flush'?"),
        ("schedule pipekit.schedules:OPS", "'list' object is not callable"),
        ("schedule pipekit.schedules:interleaved", "missing 1 required keyword-only argument"),
        ("schedule 2bw --stages 6", "use microbatches >= 6"),
        ("schedule interleaved --stages 3", "use an even number of stages, not 3"),
        ("schedule gpipe --stages 0", "stages must be a whole number of at least 1"),
        ("schedule gpipe --output a.png", "--output must end in .svg, .html, .csv, .txt"),
        ("schedule gpipe flush --output a.csv", "name one method"),
        ("schedule gpipe --output /dev/null/a.svg", "/dev/null"),
        ("check flush --repair out.csv", "--repair are of messages"),
        ("check flush --messages eagre", "not a channel: write rendezvous, eager, or eager:2"),
        ("check flush --messages=", "'' is not a channel"),
        ("plan s.json --output plan.csv", "--output must end in .json, not 'plan.csv'"),
        ("profile vgg16 --output vgg16.csv", "--output must end in .json, not 'vgg16.csv'"),
        ("check flush --messages eager --order torhc", "did you mean 'torch'?"),
        ("check flush --messages eager --communicators pairs", "did you mean 'pair'?"),
        ("check flush --messages eager --repair a.txt", "--repair must end in .csv"),
        ("check flush --messages eager --link -1", "--link must be 0 or a positive number"),
        ("schedule gpipe --output .csv", "--output must end in .svg, .html, .csv, .txt"),
    ],
)
def test_wrong_input_gets_one_sentence(
    line: str, says: str, refused: Printed, elsewhere: Path
) -> None:
    assert says in refused(line)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"worker 0 | F0 x0", "a.txt: line 1: cannot read 'x0'"),
        ("a.txt", b"\xff", "a.txt is not text"),
        ("a.csv", b"worker,op\n0,FORWARD\n", "a.csv: the CSV lacks the column 'stage'"),
        ("a.csv", b"\xff\n", "a.csv: the CSV cannot be read"),
        ("a.txt", b"worker 0 | F999999999", "F999999999 of stage 0 cannot be"),
        ("a.txt", b"worker 0 stage 999999999 | F0", "F0 of stage 999999999 cannot be"),
        ("a.txt", b"worker 0 | F0 B0 -^\nworker 1 | B0 - F0 ^0\n", "B0 of stage 1"),
    ],
)
def test_a_broken_file_is_named_in_one_line(
    name: str, content: bytes, says: str, refused: Printed, elsewhere: Path
) -> None:
    Path(name).write_bytes(content)
    assert says in refused(f"schedule {name} --output never.svg")
    assert not Path("never.svg").exists()


def test_too_little_memory_is_one_line(refused: Printed, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("pipekit.traces.Trace.from_schedule", exhausted)
    assert "needs more memory than there is" in refused("schedule gpipe")


OWN = """
from pipekit import schedules

def late(stages, microbatches):
    return schedules.gpipe(stages, microbatches)

def one_batch(stages, microbatches):
    return schedules.flush(stages, microbatches).take(1)

def none(stages, microbatches):
    return "F0 F1"
"""


def test_a_method_of_yours_is_named_by_its_module(
    printed: Printed, refused: Printed, elsewhere: Path
) -> None:
    Path("own_methods.py").write_text(OWN)
    assert str(schedules.gpipe(3, 4).take(2)) in printed("schedule own_methods:late --stages 3")
    assert str(schedules.flush(4, 4).take(1)) in printed("schedule own_methods:one_batch")
    said = refused("schedule own_methods:none")
    assert "own_methods:none must return a pipekit Schedule, not str" in said


def test_an_order_that_hangs_is_named_with_exit_code_1(pipekit: Callable[[str], Any]) -> None:
    done = pipekit("check flush --messages rendezvous --order in_order")
    assert done.exit_code == 1
    assert "no task waits for ever" in done.output
    assert "the order 'in_order' hangs (rendezvous" in done.output


def test_the_repaired_file_is_sound_and_read_back(printed: Printed, elsewhere: Path) -> None:
    repaired = elsewhere / "new" / "repaired.csv"
    printed(f"check flush --messages rendezvous --order in_order --repair {repaired}")
    assert "never hangs" in printed(f"check {repaired} --messages rendezvous")
    assert "never hangs" not in printed(f"check {repaired}")  # only the tasks are proved


@pytest.mark.parametrize(("content", "says"), [("0F0,0B0", "never hangs"), ("", "e.csv: the CSV")])
def test_one_line(content: str, says: str, pipekit: Callable[[str], Any], elsewhere: Path) -> None:
    Path("e.csv").write_text(content)
    assert says in pipekit("check e.csv --messages rendezvous").output
