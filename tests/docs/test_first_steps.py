"""What the program that times the first steps of a newcomer runs is what the page shows."""

from pathlib import Path

from experiments.first_steps import PAGE, steps


def test_every_step_of_the_page_has_something_to_run(repository: Path) -> None:
    found = steps((repository / PAGE).read_text())
    assert len(found) == 4
    assert all(found.values())
    assert found["Two methods train a network"] == "make demo"
