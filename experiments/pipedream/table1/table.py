"""Table 1's rows emulated, with one thing changed, and claims of them."""

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from experiments import pipedream as names
from experiments import study
from experiments.pipedream.table1 import plans
from experiments.pipedream.table1.plans import EIGHT, FOUR, S2VT, Setting, calibrated
from experiments.pipedream.table1.row import BSP, MODEL_PARALLEL, PIPEDREAM, SYSTEMS, Ran, Row, run
from experiments.study.costs import faster_links
from pipekit.progress import progress_bar

UNCHANGED = "", ""
FREE = 1e18  # bytes/s of links that take no time


def changes(row: Row) -> Iterator[tuple[names.Change, Row]]:
    """Yield a row with each change that can be made to it, by its cause."""
    kept, planned, setting = row.simulated, replace(row, given=None, runs={}), row.setting
    machines = setting.machines()
    free = machines.calibrated(machines.levels[0].name, FREE, "links that take no time")
    yield names.NOMINAL, replace(kept, cluster=machines)
    yield names.LINK_TIME, replace(kept, cluster=free)
    yield names.DUPLEX, replace(kept, cluster=faster_links(row.cluster, 0.5))
    yield names.OVERLAP, replace(kept, late=True)
    yield names.SHARDS, replace(kept, cluster=calibrated(setting, sums="parameter server"))
    yield names.TOO_FEW_IN_FLIGHT, replace(kept, method=plans.twice_in_flight)
    yield names.PLANNED_FOR, replace(planned, planned_for=None)
    yield names.COST, replace(planned, cost="released")
    if setting.cluster == S2VT.cluster:
        on = (*plans.CALIBRATED_ON[setting.cluster], S2VT)
        yield names.KNOWN_LAYERS, replace(kept, cluster=calibrated(setting, on))
    if setting in plans.TABLE1:
        yield names.PLAN, replace(kept, given=row.chosen)
        yield names.OWN_BANDWIDTH, replace(kept, cluster=calibrated(setting, (setting,)))
    if setting == S2VT:
        # 5 % of what data parallelism sends is all that the printed 95 % leaves.
        part = 0.05 * kept.sent(BSP).total / kept.sent(PIPEDREAM).activations
        fewer = study.with_costs(row.profile, output_bytes=lambda layer: layer.output_bytes * part)
        yield names.ACTIVATIONS, replace(planned, profile=fewer)
    if (estimated := plans.roofline(setting)) != plans.profile_of(setting):
        yield names.TIMES, replace(planned, profile=estimated)


def changed(rows: Mapping[str, Row]) -> dict[names.Change, dict[str, Row]]:
    """Return rows, by name, with each change that any of them can have, by its cause."""
    found: dict[names.Change, dict[str, Row]] = {}
    for name, row in rows.items():
        for cause, other in changes(row):
            found.setdefault(cause, {})[name] = other
    return found


@cache
def otherwise(setting: Setting) -> dict[names.Change, Row]:
    """Return a setting's row by cause, and :data:`UNCHANGED`."""
    row = Row.of(setting)
    return {UNCHANGED: row, **dict(changes(row))}


F = TypeVar("F", bound=Callable[..., Any])

FIGURE13 = FOUR, EIGHT  # the rows of Figure 13, which has all systems


def emulated(
    rows: Mapping[str, Row], minibatches: int, faster: float, repeats: int
) -> dict[str, Row]:
    """Return rows with the systems emulated that Table 1 or Figure 13 has."""
    known, found = dict[tuple[object, ...], Ran](), {}
    for name, row in progress_bar(rows.items(), desc="emulating", unit="row"):
        runs = {}
        for system in SYSTEMS if row.setting in FIGURE13 else (BSP, PIPEDREAM):
            plan, alone = row.plan_of(system), system == MODEL_PARALLEL
            key = row.setting.model, row.setting.cluster, plan.config, (*plan.balance,), alone
            if key not in known:
                count = minibatches // 2 if alone or system == BSP else minibatches
                how = count, faster, repeats, row.method_of(system)
                known[key] = run(row.profile, plan, row.cluster, *how)
            runs[system] = known[key]
        found[name] = replace(row, given=row.plan, runs=runs)
    return found


def claim(
    nb: study.Notebook,
    changed: Mapping[names.Change, Mapping[str, Row]],
    repeats: int,
    id: str,
    *rows: Row,
    note: str = "",
    label: str = "",
    of: Container[str] = (BSP, PIPEDREAM),
    circular: Container[names.Change] = (),
    figure: str | None = None,
) -> Callable[[F], F]:
    """Record what the function below finds of some rows, as :meth:`.Notebook.claim` does.

    It is called with the ``rows`` of each of the ``repeats`` rounds of emulations, as simulated,
    and with each change that any of them can have and that is not ``circular``: puts in what the
    claim says. ``label`` is of a value with no clock in it: all others rest on emulations ``of``
    systems, and are simulated if any of these does not count.
    """
    runs = [ran.timed for row in rows for name, ran in row.runs.items() if name in of and not label]
    kind = label or ("emulated" if all(run.counted for run in runs) else "simulated")
    notes = dict.fromkeys([note, *(run.note for run in runs)])
    emulations = tuple([row.in_round(n) for row in rows] for n in range(repeats))
    rounds = study.Rounds[list[Row]](emulations, [row.in_round(None) for row in rows])
    settings = {row.setting.name: row for row in rows}
    because = [
        study.changed(*cause, [each.get(name, row.simulated) for name, row in settings.items()])
        for cause, each in changed.items()
        if cause not in circular and each.keys() & {*settings}
    ]
    how: Any = {"over": [list(rows)] if label else rounds, "because": because, "figure": figure}

    def record(function: F) -> F:
        decorate = nb.claim(f"pipedream-{id}", kind, "; ".join(filter(None, notes)), **how)
        decorate(lambda rows: function(*rows))
        return function

    return record
