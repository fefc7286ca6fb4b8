from dataclasses import dataclass
from pathlib import Path

import pytest

from pipekit.papers.trainings import Record, train_all


@dataclass(frozen=True)
class Case:
    name: str
    fails: bool = False


def train(case: Case) -> Record:
    if case.fails:
        raise RuntimeError("out of memory")
    return {"trained": case.name}


@pytest.mark.slow
def test_what_is_done_is_kept_when_another_fails_and_not_trained_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "trainings"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text('{"trained": "before"}')
    with pytest.raises(RuntimeError, match="out of memory"):
        train_all([Case("a"), Case("b"), Case("c", fails=True)], train, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.json"]
    records = train_all([Case("a"), Case("b")], train, folder)
    assert records == [{"trained": "before"}, {"trained": "b"}]
