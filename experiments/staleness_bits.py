"""Train at random by each mitigation and by its equation, and count the cases with equal bits.

    python -m experiments.staleness_bits --cases 12 --processes 12

draws a network, a partition, batches, an optimizer and its options for each case, as
``tests/engine/methods/test_mitigations.py`` does, and writes results/reference/staleness/bits.csv:
by name the random cases on one worker a stage, those on several, and those on one with a process
for each worker in place of a thread; and in how many of them all weights and losses of the engine
are those of :mod:`pipekit.oracle.mitigation_equations` to the bit.
"""

import argparse
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pandas as pd
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tqdm import tqdm

from pipekit.host.provenance import provenance, write
from tests.engine.methods import test_mitigations as judged

COLUMNS = ["name", "cases", "equal", "replicated", "replicated_equal"]
COLUMNS += ["processes", "processes_equal"]
Test = Callable[[st.DataObject], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--cases", type=int, default=12, help="of each mitigation, and kind of stage, over threads"
    )
    parser.add_argument("--processes", type=int, default=12, help="cases of each over processes")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--output", type=Path, default=Path("results/reference/staleness"))
    asked = parser.parse_args()
    several = {kind.case: kind for kind in judged.REPLICATED}
    rows = []
    for name in tqdm(judged.CASES, desc="mitigation"):
        cases, same = equal(partial(on_one, name), asked.cases, asked.seed)
        more, more_same = 0, 0
        if name in several:
            more, more_same = equal(partial(on_several, several[name]), asked.cases, asked.seed)
        far, far_same = equal(partial(over_processes, name), asked.processes, asked.seed)
        rows.append((name, cases, same, more, more_same, far, far_same))
    table = pd.DataFrame(rows, columns=COLUMNS).assign(label="exact")
    asked.output.mkdir(parents=True, exist_ok=True)
    table.to_csv(asked.output / "bits.csv", index=False)
    write(
        asked.output / "bits.json",
        provenance("exact", asked.seed, cases=asked.cases, processes=asked.processes),
    )
    print(table.to_string(index=False))


def on_one(name: str, data: st.DataObject) -> None:
    """Compare one random training, one worker a stage."""
    judged.test_weights_and_losses_are_the_equations.hypothesis.inner_test(name, data)


def over_processes(name: str, data: st.DataObject) -> None:
    """Compare one random training, one worker a stage and one process a worker."""
    case = judged.drawn(data, name)
    pipe, truth = judged.both_ways(judged.CASES[name], **case, transport="distributed")
    with closing(pipe):
        judged.assert_equal(pipe, truth, case["batches"])


def on_several(kind: judged.Replicated, data: st.DataObject) -> None:
    """Compare one random training whose stages are on several workers each."""
    judged.test_stages_on_several_workers.hypothesis.inner_test(kind, data)


def equal(test: Test, cases: int, start: int) -> tuple[int, int]:
    """Return how many random cases were drawn, and in how many of them a test passes."""
    passed, failed = 0, 0

    @seed(start)
    @settings(
        max_examples=cases,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=st.data())
    def each(data: st.DataObject) -> None:
        nonlocal passed, failed
        try:
            test(data)
        except AssertionError:
            failed += 1  # another case may pass: they are counted
        else:
            passed += 1

    each()
    return passed + failed, passed


if __name__ == "__main__":
    main()
