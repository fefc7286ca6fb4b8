"""The table of all methods: closed forms equal slots wherever they are said to hold."""

import pytest

from experiments.zoo import comparison
from experiments.zoo.closed_forms import FORMS, Setting
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH
from tests.emulation.own_time import own_time

SETTINGS = [
    Setting(p, m, f, i, w, overlap=0.75)
    for p in (2, 4)
    for m in (p, 3 * p)
    for f, i, w in ((1, 1, 1), (3, 3, 3), (1, 3, 1), (3, 1, 1), (1, 1, 3))
]


@pytest.mark.parametrize("name", FORMS)
def test_the_closed_form_is_the_slots_wherever_it_holds(name: str) -> None:
    form, found = FORMS[name], 0
    for setting in SETTINGS:
        if setting.value(form.holds):
            found += 1
            assert comparison.idle(name, setting)[form.part] == pytest.approx(
                setting.value(form.bubble)
            )
            assert comparison.activations(name, setting) == setting.value(form.activations)
    assert found >= 4


def test_every_method_that_flushes_has_a_row() -> None:
    assert set(comparison.NAMES) == set(METHODS) - PER_MINIBATCH - {"2bw", "paci"}
    table = comparison.table(Setting(4, 8)).set_index("method")
    assert len(table) == len(comparison.NAMES)
    assert table.loc["ZB-H2", "steady, %"] == pytest.approx(0)
    assert table.loc["ZB-V", "spans, %"] == pytest.approx(0)
    assert (table["weight versions"] == 1).all()
    held = table.dropna(subset=["closed form (slots)"])
    assert held["closed form (slots)"].to_list() == pytest.approx(held["exact (slots)"].to_list())


def test_seconds_are_simulated_and_emulated() -> None:
    with own_time():
        frame = comparison.seconds(
            Setting(2, 4), slot_s=2e-3, batches=1, names=["flush", "zb-h1", "chimera"]
        )
    frame = frame.set_index("method")
    assert frame["simulated (s)"].to_list() == pytest.approx([0.030, 0.026, 0.024])
    assert frame["emulated / simulated"].to_list() == pytest.approx([1, 1, 1])
    assert frame.loc["ZB-H1", "gain over Flush, % (simulated)"] == pytest.approx(100 * 4 / 26)


def test_a_global_stop_costs_zb_h2_what_it_gains_over_zb_h1() -> None:
    with own_time():
        frame = comparison.validated(
            Setting(2, 4), slot_s=1e-3, batches=3, names=["zb-h1", "zb-h2"]
        ).set_index(["method", "validate"])
    simulated, steady = frame["simulated (s)"], frame["steady bubble, % (simulated)"]
    assert simulated["ZB-H2", "first"] == pytest.approx(simulated["ZB-H1", "first"])
    assert simulated["ZB-H2", "later"] < simulated["ZB-H2", "first"]
    assert steady["ZB-H2", "later"] == pytest.approx(0)
    emulated = frame["emulated (s)"].dropna()
    assert [*emulated.index.get_level_values("validate")] == ["nothing", "first"] * 2
    assert emulated.to_list() == pytest.approx(simulated[emulated.index].to_list())
