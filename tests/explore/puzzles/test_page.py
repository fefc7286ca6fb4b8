"""The page is one small file, its modules fit into one script, and its data say where they are from."""

import re
from collections import Counter

from pipekit.explore.puzzles.diagnosis import SLOWNESS, level, recorded
from pipekit.explore.puzzles.levels import LEVELS
from pipekit.explore.puzzles.page import HERE, html
from pipekit.schedules import check


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
