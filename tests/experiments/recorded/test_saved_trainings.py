from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments.recorded.saved_trainings import Record, train_or_load


@dataclass(frozen=True)
class Config:
    name: str
    fails: bool = False


def train(config: Config) -> Record:
    if config.fails:
        raise RuntimeError("out of memory")
    return {"trained": config.name}


@pytest.mark.long
@pytest.mark.slow
def test_what_is_done_is_kept_when_another_fails_and_not_trained_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "trainings"
    folder.mkdir(parents=True)
    (folder / "a.json").write_text('{"trained": "before"}')
    with pytest.raises(RuntimeError, match="out of memory"):
        train_or_load([Config("a"), Config("b"), Config("c", fails=True)], train, folder)
    assert sorted(path.name for path in folder.iterdir()) == ["a.json", "b.json"]
    records = train_or_load([Config("a"), Config("b")], train, folder)
    assert records == [{"trained": "before"}, {"trained": "b"}]
