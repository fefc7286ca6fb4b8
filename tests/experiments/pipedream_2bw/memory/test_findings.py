from functools import partial

import pandas as pd
import pytest

from experiments.pipedream_2bw.memory import findings, footprint, largest_model
from experiments.pipedream_2bw.memory.formulas import EqualStages, table
from experiments.pipedream_2bw.systems import FLUSH, GPIPE, TABLES, TWO_BW
from experiments.pipedream_2bw.throughput.panels import panels
from pipekit.ledger.claims import load
from pipekit.ledger.criteria import evaluate

SMALL = partial(EqualStages, blocks=4, hidden=8, sequence=4)


def test_the_farthest_case_of_each_system_counts() -> None:
    frame = pd.DataFrame(
        {"system": [*TABLES, *TABLES], "recompute": ["always"] * 4 + ["never"] * 4}
    )
    laws = findings.with_errors(frame.assign(formula=100.0, accounted=100.0, engine=101.0))
    assert [each.value for each in findings.law_findings(laws, 8)] == [[0, 1.01]] * 2 + [0, 0]
    laws.loc[(laws["system"] == FLUSH) & (laws["recompute"] == "always"), "off"] = -8
    assert findings.law_findings(laws, 8)[2].value == -8
    assert len(findings.law_cases(SMALL, 8)) == 24


@pytest.mark.long
def test_what_follows_from_the_formulas_passes_its_criteria() -> None:
    for found in findings.consequence_findings(SMALL)[:4]:
        claim = load()[found.claim]
        assert evaluate(claim.check, found.value, claim.target).passed, found.claim


def test_footprints_are_those_of_panel_a() -> None:
    jobs = panels()["a"]
    frame = footprint.footprints(jobs)
    needed, gpipe, without = footprint.footprint_findings(frame, jobs)
    assert gpipe.value == needed.value[-1] < 16  # by the formula of section 3.1
    kept = frame[frame["batch"] == "batch 64"].set_index("system")["logits kept"]
    assert kept[GPIPE] > 16 > kept[TWO_BW]
    assert f"{kept[GPIPE]:.1f} GB" in gpipe.note
    assert without.value > gpipe.value
    assert (
        f"GPipe needs {gpipe.value:.1f} GB" in footprint.footprint_figure(frame).layout.title.text
    )


def test_orderings_and_prices_are_those_measured() -> None:
    peaks = pd.DataFrame({"system": list(TABLES), "peak": [1, 2, 3, 6], "m": 16, "b": 8})
    order, lowest = findings.ordering_findings(peaks)
    assert order.value == [1, 2, 3, 6]
    assert lowest.value == [3 / 2, 3]
    seconds = pd.DataFrame({"always": [4.0, 5.0, 8.0], "never": [3.0, 4.0, 2.0]})
    lower, slower = findings.price_findings(seconds)
    assert lower.repeats == pytest.approx((4 / 3, 5 / 4, 4))
    assert lower.value == slower.value == pytest.approx(4 / 3)
    assert "throughput 25 % lower" in lower.note


def test_the_largest_models_grow_with_the_depth() -> None:
    sizes = pd.DataFrame(
        {"depth": [1, 2, 4] * 2, "parameters": [1e9, 3e9, 4e9, 1e9, 2e9, 3e9]}
    ).assign(model=["Megatron's"] * 3 + ["other"] * 3, billions=lambda f: f["parameters"] / 1e9)
    steps, most, _ = largest_model.largest_findings(sizes)
    assert steps.value == [1e9, 4e9]
    assert most.value == 4e9
    assert "without, 3e+09;" in most.note
    assert "train 4 billion" in largest_model.largest_figure(sizes).layout.title.text


def test_a_table_has_a_row_a_training() -> None:
    assert table([SMALL(GPIPE, 2, 2, 1, "always"), SMALL(TWO_BW, 2, 2, 1, "always")]).shape == (
        2,
        9,
    )
