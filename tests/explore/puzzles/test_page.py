"""The page is one small file; the game's words on boards made by hand: refusals, hints and names."""

import re
from collections import Counter
from typing import Any

import pytest

from pipekit.explore.puzzles.data import levels
from pipekit.explore.puzzles.diagnosis import SLOWNESS, level, recorded
from pipekit.explore.puzzles.levels import LEVELS
from pipekit.explore.puzzles.page import HERE, html
from pipekit.schedules import check
from tests.explore.puzzles.conftest import Ask


def test_no_two_modules_make_one_name() -> None:
    made = re.compile(r"^(?:export )?(?:const|function|class) (\w+)", re.MULTILINE)
    names = Counter(name for path in HERE.glob("*.js") for name in made.findall(path.read_text()))
    assert [name for name, count in names.items() if count > 1] == []


def test_it_is_below_a_megabyte_and_names_no_other_host() -> None:
    page = html()
    assert len(page.encode()) < 1e6
    assert set(re.findall(r"https?://[^\s\"'`]+", page)) == {"http://www.w3.org/2000/svg"}


def test_levels_are_executable() -> None:
    assert len(LEVELS) >= 16
    for each in LEVELS:
        check(each.best)


def test_the_recorded_trace_has_one_slow_worker_and_its_provenance() -> None:
    trace, told = recorded()
    assert (told["label"], tuple(told["slowness"])) == ("emulated", SLOWNESS)
    forwards = trace.frame[trace.frame["op"] == "FORWARD"]
    took = (forwards["end_s"] - forwards["start_s"]).groupby(forwards["worker"]).median()
    assert took.idxmax() == SLOWNESS.index(max(SLOWNESS))
    assert took[2] / took.drop(2).max() > 1.4
    questions = level()["questions"]
    assert [sum(answer["right"] for answer in each["answers"]) for each in questions] == [1, 1]


BY_NAME = {level["name"]: level for level in levels()}


@pytest.mark.parametrize(
    ("level", "rows", "worker", "task", "says"),
    [
        (
            "GPipe",
            ["", "", ""],
            0,
            "B0",
            "B0 needs the tensors that F0 keeps on this worker. Place F0 first.",
        ),
        ("GPipe", ["F0 B0", "", ""], 0, "U3", "B1, B2, B3 would come too late"),
        ("GPipe", ["F0 B0 F1", "F0", ""], 1, "F1", "Nobody could ever go on: "),
        ("1F1B", ["F0 F1 F2", "", ""], 0, "F3", "keep 4 microbatches in flight, and 3 fit"),
        ("PipeDream", ["F0 F1 F2", "", ""], 0, "F3", "F3 reads weight version 1, which update 1"),
        ("ZB-V", ["F0", ""], 0, "F0@3", None),  # waits for worker 1, which may come later
        ("Zero bubble", ["F0", "", ""], 0, "W0", "W0 needs the tensors that I0 keeps"),
        ("Memory for two", ["F0 F1 I0", "", ""], 0, "F2", "3 microbatches in flight, and 2 fit"),
        ("Memory for two", ["F0 F1 I0 W0", "", ""], 0, "F2", None),
        ("Offload", ["F0 O0 F1", ""], 0, "F2", None),
        ("Offload", ["F0 F1", ""], 0, "F2", "2 fit. A gradient has to be added first, or activ"),
        ("Offload", ["F0 O0 F1 F2", ""], 0, "L0", "with L0 worker 0 would keep 3"),
        ("Offload", ["", ""], 0, "O0", "O0 needs the tensors that F0 keeps on this worker"),
        ("Offload", ["F0", ""], 0, "L0", "L0 needs the tensors that O0 takes to the host"),
        ("Offload", ["F0 O0", "F0"], 1, "B0", "B0 needs the tensors that L0 brings back"),
    ],
)
def test_a_move_is_refused_with_its_reason(
    level: str, rows: list[str], worker: int, task: str, says: str | None, ask: Ask
) -> None:
    refusal = ask("refusal", BY_NAME[level], rows=rows, worker=worker, task=task)
    if says is None:
        assert refusal is None
    else:
        assert says in refusal["says"]
        assert refusal["tasks"], "tasks at fault are marked"


def test_hints_go_from_the_idea_to_the_move(ask: Ask) -> None:
    level = BY_NAME["1F1B"]
    hints = ask("hints", level, rows=["F0 F1 F2", "F0 F1", "F0 B0"])
    assert hints[0] == level["idea"]
    assert "Look at worker 1: after F0 F1 the best order known has this: backward" in hints[1]
    assert hints[2] == "Worker 1, after F0 F1: B0."
    off_course = ask("hints", level, rows=["F0 F1 F2", "F0 F1", "F0 F1"])
    assert (
        "after F0 the best order known has this: backward, where you have another" in off_course[1]
    )


def changed(level: dict[str, Any], worker: int, old: str, new: str) -> list[str]:
    """Return a level's best rows with other tasks on a worker."""
    rows = list(level["rows"])
    assert old in rows[worker]
    rows[worker] = rows[worker].replace(old, new)
    return rows


def test_a_board_near_a_method_is_told_by_what_is_moved_and_its_price(ask: Ask) -> None:
    level = BY_NAME["Zero bubble"]
    near = changed(level, 0, "I0 W0 F3", "I0 F3 W0")
    assert ask("recognised", level, rows=near).startswith("This is ZB-H1 with ")
    worse = changed(level, 2, "I3 W1 W2", "W1 W2 I3")
    says = ask("recognised", level, rows=worse)
    assert says == "This is ZB-H1 with I3 on worker 2 moved, and 2 slots longer."


def test_microbatches_are_alike_where_they_read_the_same_weights(ask: Ask) -> None:
    level = BY_NAME["GPipe"]
    swap = str.maketrans({"0": "1", "1": "0"})
    rows = [
        " ".join(cell if cell[0] == "U" else cell.translate(swap) for cell in row.split())
        for row in level["rows"]
    ]
    assert "GPipe" in ask("recognised", level, rows=rows)


def test_an_order_far_from_all_methods_says_how_far(ask: Ask) -> None:
    level = BY_NAME["GPipe"]
    one_by_one = ["F0 B0 F1 B1 F2 B2 F3 B3 U3:1"] * 3
    says = ask("recognised", level, rows=one_by_one)
    assert says.startswith("Nearest is PipeDream-Flush: ")
    assert says.endswith("slots longer.")
