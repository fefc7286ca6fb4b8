from pathlib import Path
from xml.etree import ElementTree

import pandas as pd

from pipekit import schedules
from pipekit.plots import curves, memory, save, timeline
from pipekit.traces import Trace
from pipekit.traces.memory import PARTS, Memory

SCHEDULE = schedules.two_bw(4, 4).take(4)
FRAME = Trace.from_schedule(SCHEDULE).frame


def words(svg: Path) -> list[str]:
    """Return the texts of an SVG in which text is text."""
    root = ElementTree.parse(svg).getroot()
    return ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]


def test_csv_reads_back_as_the_data(tmp_path: Path) -> None:
    paths = save(timeline(SCHEDULE), tmp_path / "2bw", FRAME)
    pd.testing.assert_frame_equal(pd.read_csv(paths["csv"]), FRAME)


def test_the_svg_holds_title_workers_microbatches_and_versions_as_text(tmp_path: Path) -> None:
    found = words(save(timeline(SCHEDULE, versions=True), tmp_path / "2bw", FRAME)["svg"])
    assert (
        "PipeDream-2BW: bubble 15.8 % of makespan, 8.6 % of spans, 0.0 % steady, 57 slots (exact)"
        in found
    )
    assert {"worker 0", "worker 3", "time (slots)", "forward", "update"} <= set(found)
    text = " ".join(found)
    assert all(f"{k}" in text for k in range(16))
    assert {"v0", "v1", "v2"} <= set(text.replace("\n", " ").split())


def test_a_figure_saved_again_gives_the_same_bytes(tmp_path: Path) -> None:
    frame = pd.DataFrame({"method": ["a", "b"], "epoch": [0, 0], "loss": [1.0, 2.0]})
    held = pd.DataFrame([[0, 0.0, 1, 1, 1, 1, 1]], columns=["worker", "time_s", *PARTS])
    figures = [
        timeline(schedules.two_bw(2, 2).take(1)),
        curves(frame, "epoch", "loss", "method", title="Loss", label="measured"),
        memory(Memory(held, "measured"), capacity=8),
    ]
    for figure in figures:
        once = save(figure, tmp_path / "figure", frame)["svg"].read_bytes()
        assert save(figure, tmp_path / "figure", FRAME)["svg"].read_bytes() == once
        assert b"<dc:date>" not in once
