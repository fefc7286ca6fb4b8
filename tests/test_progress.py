from pathlib import Path

import pytest
from IPython.display import HTML
from tqdm.std import tqdm

from pipekit import progress
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


class Output:
    """In place of IPython's handle of an output: what it showed, one after the other."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def update(self, html: HTML) -> None:
        self.seen.append(str(html.data))


def test_in_a_notebook_a_bar_is_an_output_that_is_empty_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = Output()

    def display(html: HTML, display_id: bool) -> Output:
        output.update(html)
        return output

    monkeypatch.delenv(RELAY, raising=False)
    monkeypatch.setattr(progress, "_in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    counts = []
    for _ in progress_bar(range(2), desc="training <b>", mininterval=0):
        counts.append(output.seen[-1])
    assert ["0/2" in counts[0], "1/2" in counts[1]] == [True, True]
    assert all(text.startswith("<pre>training &lt;b&gt;: ") for text in counts)
    assert output.seen[-1] == ""
