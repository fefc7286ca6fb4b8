"""Findings of Table 1 from fabricated runs: what is judged is what was run."""

from dataclasses import replace
from itertools import pairwise

import pytest

from experiments.pipedream.cause_names import (
    ACTIVATIONS,
    GUESSED_LAYERS,
    NOMINAL,
    OWN_BANDWIDTH,
    PLAN,
    TIMES,
    TOO_FEW_IN_FLIGHT,
)
from experiments.pipedream.table1 import (
    calibration,
    causes,
    figure13,
    predictions,
    runs,
    speeds,
    traffic,
)
from experiments.pipedream.table1.changes import UNCHANGED, Change, changes
from experiments.pipedream.table1.findings import cells, closed_forms, comparison, introduction
from experiments.pipedream.table1.findings.judge import (
    EIGHT,
    EIGHT_B,
    FOUR,
    INCEPTION,
    INCEPTION_B,
    S2VT,
    SIXTEEN,
    Judge,
)
from experiments.pipedream.table1.predictions import Prediction
from experiments.pipedream.table1.rows import TABLE1, THROUGHPUT, Setting
from experiments.pipedream.table1.runs import Runs
from experiments.pipedream.table1.speeds import Result
from experiments.pipedream.table1.traffic import Sent
from experiments.study.rounds import Emulated
from pipekit import Profile
from pipekit.clusters import flat
from pipekit.ledger.claims import load

LAYERS = Profile.uniform(4, 0.04, 0.08, output_bytes=1e5, parameter_bytes=3.2e7)
"""0.48 s a minibatch on one machine."""


def result(one: Prediction, seconds: float, sent: float, replicate: bool = True) -> Result:
    bytes_sent = Sent(sent, 0)
    plan = one.plan_on(one.cluster, replicate=replicate)
    return Result(plan, seconds, Emulated(seconds, (seconds,)), bytes_sent, bytes_sent, 0.0)


@pytest.fixture(scope="module")
def emulated() -> dict[Setting, Runs]:
    """Return runs in which BSP takes 0.24 s and sends 100 bytes, the plan 0.08 s and 25."""
    found = {}
    for setting in TABLE1 + THROUGHPUT:
        one = Prediction(setting, LAYERS, flat(setting.workers, 1e9))
        found[setting] = Runs(one, result(one, 0.24, 100), result(one, 0.08, 25))
    return found


@pytest.fixture(scope="module")
def judge(emulated: dict[Setting, Runs]) -> Judge:
    predicted = {setting: found.prediction for setting, found in emulated.items()}
    beside = causes.beside_benchmark(predicted[THROUGHPUT[0]], predicted[EIGHT_B])
    changed = {
        setting: [
            Change(UNCHANGED, one, one.plan),
            Change("no replicas", one, one.plan_on(one.cluster, replicate=False)),
        ]
        for setting, one in predicted.items()
    }
    return Judge(emulated, causes.causes(predicted), 1.5, [beside], changed)


def test_speedups_are_over_one_machine(emulated: dict[Setting, Runs]) -> None:
    one = emulated[FOUR]
    assert one.bsp_speedup == pytest.approx(2)
    assert one.speedup == pytest.approx(6)
    assert one.over_bsp == pytest.approx(3)
    assert one.saved == pytest.approx(75)
    table = runs.speedups(emulated)
    assert table["BSP"].tolist() == pytest.approx([2] * 9)
    assert table["PipeDream (paper)"].isna().tolist() == [False] * 7 + [True] * 2
    figure, points = runs.speedup_figure(table)
    assert figure.layout.title.text.startswith("4 of the 10 predicted")
    assert len(points) == 7 * 2 * 3


def test_bytes_that_nobody_accounts_for_are_refused(emulated: dict[Setting, Runs]) -> None:
    table = runs.communication(emulated)
    assert table["all counted alike (%)"].tolist() == pytest.approx([75] * 9)
    assert "75 % less" in runs.communication_figure(table).layout.title.text
    one = emulated[FOUR]
    wrong = Runs(one.prediction, one.bsp._replace(closed=Sent(99, 0)), one.pipedream)
    with pytest.raises(RuntimeError, match="vgg16-4A: the engine sent other bytes"):
        runs.communication({FOUR: wrong})


@pytest.mark.long
def test_every_finding_is_a_claim_and_has_the_runs_values(
    judge: Judge, emulated: dict[Setting, Runs]
) -> None:
    alone = {
        setting: result(emulated[setting].prediction, 0.5, 0, replicate=False)
        for setting in figure13.ROWS
    }
    four_systems = figure13.Figure13(
        {
            "model parallel": alone,
            "BSP": {setting: emulated[setting].bsp for setting in figure13.ROWS},
            "straight pipeline": alone,
            "PipeDream": {setting: emulated[setting].pipedream for setting in figure13.ROWS},
        },
        {setting: emulated[setting].prediction for setting in figure13.ROWS},
    )
    table = four_systems.table()
    calibrations = predictions.calibrations([emulated[FOUR].prediction])
    found = [
        *cells.findings(judge),
        *introduction.findings(judge, calibrations),
        *closed_forms.findings(found.bsp for found in emulated.values()),
        *comparison.findings(judge, four_systems),
        *four_systems.findings(table),
    ]
    ledger = load()
    values = {each.claim.removeprefix("pipedream-"): each.value for each in found}
    assert len(values) == len(found) == 68
    assert all(each.claim in ledger for each in found)
    assert values["table1-vgg16-16A-bsp-speedup"] == pytest.approx([2, 2, 6])
    assert values["table1-inception-8A-comm-reduction"] == pytest.approx(75)
    assert values["sec52-overhead-vgg16-8A"] == pytest.approx(75)
    assert values["sec52-overhead-eliminated"] == pytest.approx([75, 100 * (1 - 0.25 / 0.75)])
    assert values["sec5-findings"] is False  # PipeDream gains on B as on A
    assert values["sec53-mp-below-1"] == pytest.approx([0.96, 0.96])
    assert values["sec53-ordering"] == pytest.approx(0.48)  # straight after BSP
    assert values["fig13-bars"] == pytest.approx([0.96, 0.96, 6, 0.96, 6])
    assert table["2 x NOAM"].notna().sum() == 4
    bars = next(each for each in found if each.claim == "pipedream-fig13-bars")
    assert [len(cause.value) for cause in bars.causes] == [5, 5]
    ordered = next(each for each in found if each.claim == "pipedream-sec53-ordering")
    for cause, column in zip(ordered.causes, ["2 x NOAM", "simulated, nominal"], strict=True):
        speeds = table[column].fillna(table["simulated"]).tolist()
        steps = [b / a for four in (speeds[:4], speeds[4:]) for a, b in pairwise(four)]
        assert cause.value == pytest.approx(min(steps))


def test_a_note_names_the_cause_of_its_row(judge: Judge) -> None:
    assert "the busiest link would allow" in judge.cause(EIGHT_B)
    assert judge.borrowed in judge.cause(INCEPTION)
    assert "saturates" in cells.row_findings(judge, SIXTEEN)[0].note


def test_a_cell_of_the_fit_is_predicted_without_it(judge: Judge) -> None:
    one = judge.runs[S2VT].prediction
    found = cells.held_out(judge, S2VT)
    on_vgg16_alone = calibration.effective([calibration.cell_of(FOUR)])
    assert calibration.without(S2VT).levels[0].used_bandwidth == pytest.approx(on_vgg16_alone)
    assert found.value == calibration.bsp_speedup(one.profile, calibration.without(S2VT))
    assert (found.label, found.shown_only) == ("simulated", "")
    assert found.note.startswith("held out")
    held_out = [row for row in TABLE1 if "held out" in cells.row_findings(judge, row)[0].note]
    assert held_out == [FOUR, EIGHT_B, INCEPTION_B, S2VT]


def test_a_change_is_an_experiment_of_the_claims_whose_value_it_changes(
    judge: Judge,
) -> None:
    bsp, _, faster, over_bsp, _ = cells.row_findings(judge, FOUR)
    change = judge.changes[FOUR][-1]
    assert bsp.causes == (), "without replicas data parallelism is as fast as it was"
    assert [cause.name for cause in faster.causes] == ["no replicas"]
    assert faster.causes[0].value == change.speedup
    assert over_bsp.causes[0].value == pytest.approx(change.speedup / change.bsp_speedup)


def test_what_a_claim_says_is_no_experiment_of_it(judge: Judge) -> None:
    one = judge.changes[FOUR][0].one
    own = Change(OWN_BANDWIDTH, replace(one, cluster=flat(4, 1e8)), one.plan)
    given = Change(PLAN, replace(one, cluster=flat(4, 1e8)), one.plan)
    known = {**judge.changes, FOUR: [Change(UNCHANGED, one, one.plan), own, given]}
    bsp, config, faster, *_ = cells.row_findings(replace(judge, changes=known), FOUR)
    assert [cause.name for cause in bsp.causes] == [PLAN], "not the bandwidth fitted on it"
    assert PLAN not in [cause.name for cause in config.causes]
    assert [cause.name for cause in faster.causes] == [OWN_BANDWIDTH, PLAN]


def test_the_changes_of_a_row_change_one_thing_each(emulated: dict[Setting, Runs]) -> None:
    one = emulated[FOUR].prediction
    changed = {each.cause: each for each in changes(one)}
    assert changed[UNCHANGED].one == one
    assert changed[TOO_FEW_IN_FLIGHT].plan == one.plan
    assert changed[TOO_FEW_IN_FLIGHT].one == changed[PLAN].one == one
    assert changed[PLAN].plan.config == "2-1-1"
    assert changed[NOMINAL].one.cluster.levels[0].used_bandwidth == 25e9 / 8
    assert changed[OWN_BANDWIDTH].bsp_speedup == pytest.approx(1.47)
    assert GUESSED_LAYERS not in changed, "the row would be fitted on itself"
    assert changed[TIMES].one.cluster == one.cluster
    assert changed[TIMES].one.compute_s == pytest.approx(LAYERS.rows * 128.62e-3 / 16)


def test_s2vts_activations_are_tried_at_the_printed_traffic() -> None:
    one = Prediction(S2VT, LAYERS, flat(4, 1e7))
    changed = {each.cause: each for each in changes(one)}
    small, bsp = changed[ACTIVATIONS].one.profile, speeds.data_parallel(LAYERS, 4)
    everything = traffic.sent(LAYERS, bsp).total
    assert traffic.sent(small, one.plan).activations == pytest.approx(0.05 * everything)
    assert traffic.sent(small, bsp).total == everything


def test_what_a_network_had_to_be_slower_by(emulated: dict[Setting, Runs]) -> None:
    one, vgg16 = (emulated[row].prediction for row in (THROUGHPUT[0], EIGHT))
    found = causes.beside_benchmark(one, vgg16)
    assert found.ours == 1  # all profiles are the same here
    assert found.factor == pytest.approx(103.57 / 128.62)
    assert str(found).startswith("VGG16 / resnet50: 1.24 in cnn-benchmarks, 1.00 here")
