"""Figure 4 from a short run, and findings from a fabricated table."""

import pandas as pd
import pytest

from pipekit.papers.pipedream.timelines import overlap as figure4
from pipekit.papers.pipedream.timelines.overlap import LINKS_AS_STAGES, NOAM, Overlap


def test_findings_are_of_noam_in_flight() -> None:
    columns = ["exposed (emulated)", "exposed (simulated)", "hidden (emulated)"]
    rows = [
        (NOAM, 0.5, 0.3, 0.25, 0.6, 0.55),
        (LINKS_AS_STAGES, 0.5, 0.02, 0.0, 0.99, 1.0),
        (NOAM, 1.5, 0.5, 0.5, 0.4, 0.4),
        (LINKS_AS_STAGES, 1.5, 0.35, 0.3, 0.7, 0.7),
    ]
    names = ["in flight", "on links / compute", *columns, "hidden (simulated)"]
    exposed, hidden = Overlap(pd.DataFrame(rows, columns=names), {}, 3).findings(0.5, 1.5)
    assert exposed.value == [0.3, 0.5]
    assert "With 7 5 3 1 in flight" in exposed.note
    assert exposed.note.endswith("0.020, 0.350 exposed (emulated), 0.000 (simulated)")
    assert hidden.value == 0.6
    assert hidden.note.endswith("0.990 hidden (emulated); simulated: 0.550 and 1.000")


def test_links_that_keep_up_are_hidden_with_enough_in_flight() -> None:
    found = figure4.overlap(0.004, [0.5], minibatches=40)
    by = found.table.set_index("in flight")
    assert by["hidden (simulated)"][LINKS_AS_STAGES] == pytest.approx(1)
    assert by["exposed (simulated)"][LINKS_AS_STAGES] == pytest.approx(0, abs=1e-9)
    assert by["exposed (simulated)"][NOAM] > 0.2
    figure, numbers = found.machine(0.5)
    assert len(figure.layout.annotations) == 2
    assert set(numbers["in_flight"]) == {NOAM, LINKS_AS_STAGES}
    assert set(numbers["worker"]) == {0, 1, 2}
