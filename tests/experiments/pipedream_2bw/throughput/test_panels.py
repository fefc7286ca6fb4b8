"""Findings from fabricated rates of Figure 6's panels."""

from dataclasses import replace

import pandas as pd
import pytest

from experiments.pipedream_2bw.systems import FLUSH, GPIPE, INTER_LAYER, SYSTEMS, TWO_BW
from experiments.pipedream_2bw.throughput import findings, panels
from experiments.pipedream_2bw.throughput.panels import Figure6
from pipekit.clusters import two_bw_v100
from pipekit.ledger.claims import load


@pytest.fixture(scope="module")
def rates() -> Figure6:
    """Return rates of 1 to 5 for the systems in order; emulated they are twice as far apart."""
    jobs = panels.panels()
    tables = {
        letter: pd.DataFrame(
            [[1.0, 2, 3, 4, 5], [2.0, 4, 6, 8, 16]], columns=SYSTEMS, index=list(own)
        ).rename_axis("batch")
        for letter, own in jobs.items()
    }
    return Figure6(jobs, tables, 2 * tables["a"].assign(**{TWO_BW: [6.0, 9.0]}))


def test_ratios_are_emulated_in_panel_a_and_simulated_elsewhere(rates: Figure6) -> None:
    assert rates.over(TWO_BW, FLUSH, "a") == [6 / 4, 9 / 8]
    assert rates.over(TWO_BW, FLUSH, "b") == [5 / 4, 2]
    assert rates.most(TWO_BW, GPIPE, panels.LARGE) == 16 / 6
    table = rates.ratios().set_index("ratio")
    assert table.loc["2BW / inter-layer"].tolist() == [6.1, 3, "emulated"]
    assert table.loc["2BW / Flush, 2048", "ours"] == 2
    assert "of 10 ratios" in panels.ratio_figure(rates.ratios()).layout.title.text
    titles = [figure.layout.title.text for _, figure, _ in rates.figures()]
    assert "2BW is 1.50 and 1.12 times as fast" in titles[0]


def test_what_no_emulation_counts_for_is_labelled_simulated(rates: Figure6) -> None:
    stood_in = replace(rates, label="simulated")
    labels = {each.label for each in findings.inter_layer_findings(stood_in)}
    assert labels == {"simulated"}
    assert {each.label for each in findings.inter_layer_findings(rates)} == {"emulated"}


def test_findings_are_claims_with_the_ratios(rates: Figure6) -> None:
    found = [
        *findings.tensor_findings(rates),
        *findings.inter_layer_findings(rates),
        *findings.gpipe_and_flush_findings(rates),
        *findings.panel_findings(rates),
    ]
    values = {each.claim: each.value for each in found}
    assert set(values) <= set(load())
    assert len(values) == 15
    assert values["2bw-sec52-flush-4-1x"] == rates.over(FLUSH, INTER_LAYER, "a")[0]
    assert values["2bw-sec52-2bw-over-flush-15pct"] == pytest.approx(100)
    assert values["2bw-fig6b"] == [5 / 4, 4 / 3]
    assert all("{" not in each.note for each in found)


def test_the_set_up_is_the_papers_and_another_is_noticed() -> None:
    assert findings.hardware_finding(two_bw_v100(), two_bw_v100(1)).value is True
    assert findings.hardware_finding(two_bw_v100(4), two_bw_v100(1)).value is False
    assert findings.shrinking_gain_finding().value is True


def test_what_berts_fewer_words_turn_is_their_doing() -> None:
    assert findings.bert_finding("a", [], []).value is True
    turned, not_turned = (findings.bert_finding("a", ["x"], held) for held in ([], ["x"]))
    assert "but not x" in turned.note
    assert [turned.value, turned.causes[0].value, not_turned.causes[0].value] == [
        False,
        True,
        False,
    ]


def test_tensor_model_parallelism_loses_most_beyond_a_server() -> None:
    table = pd.DataFrame(
        {"ways": [8, 16] * 2, "model": ["a", "a", "b", "b"], "throughput": [4.0, 1.0, 4.0, 2.0]}
    )
    assert findings.tensor_finding(table).value == 0.5
