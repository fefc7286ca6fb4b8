"""The race detector is silent on correct programs, and reports each synchronisation left out."""

import pytest

from tests.device.programs import PROGRAMS, Program
from tests.device.simulated.process import simulated


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_correct_program_is_silent(program: Program) -> None:
    for _ in range(3):
        program(lambda _: True)
        races = simulated().take_races()
        assert not races, races
        simulated().settle()


@pytest.mark.parametrize(
    ("program", "deleted"),
    [
        pytest.param(program, name, id=f"{program.__name__}: {name}")
        for program, names in PROGRAMS.items()
        for name in names
    ],
)
def test_a_deleted_synchronisation_is_reported(program: Program, deleted: str) -> None:
    asked = set()

    def keep(name: str) -> bool:
        asked.add(name)
        return name != deleted

    program(keep)
    assert asked == set(PROGRAMS[program])
    assert simulated().take_races()
