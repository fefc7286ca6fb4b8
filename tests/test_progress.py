from pathlib import Path

import pytest
from tqdm.std import tqdm

from pipekit.progress import RELAY, progress_bar


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "a.progress"
    monkeypatch.setenv(RELAY, str(file))
    return file


def test_a_relayed_bar_says_in_a_file_how_far_it_is_and_prints_nothing(
    relay: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seen = [relay.read_text() for _ in progress_bar(range(2), desc="training", mininterval=0)]
    assert seen == ["training 0/2 it", "training 1/2 it"]
    assert relay.read_text() == ""
    assert capfd.readouterr().err == ""


def test_of_bars_within_bars_the_outermost_is_told(relay: Path) -> None:
    with progress_bar(range(9), desc="outer", unit="run", mininterval=0) as outer:
        outer.update()
        for _ in progress_bar(range(3), desc="inner", mininterval=0):
            assert relay.read_text() == "outer 1/9 run"


def test_a_bar_that_is_not_wanted_tells_nothing(relay: Path) -> None:
    assert list(progress_bar([1, 2], disable=True)) == [1, 2]
    assert not relay.exists()


def test_on_a_terminal_a_bar_is_tqdms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(RELAY, raising=False)
    assert type(progress_bar([1], disable=True)) is tqdm
