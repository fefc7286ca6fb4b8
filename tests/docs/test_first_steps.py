"""What the program that times the first steps of a newcomer runs is what the page shows."""

from pathlib import Path

from experiments.first_steps import PAGE, steps


def test_each_numbered_heading_has_its_commands_and_programs() -> None:
    page = (
        "# Start\n\n## 1. Draw\n\n    pipekit schedule gpipe\n\nwords\n\n"
        "## 2. Train\n\n```python\nif True:\n    print(1)\n```\n\n```sh\nls\n```\n\n## After\n\n    no\n"
    )
    assert steps(page) == {
        "Draw": "pipekit schedule gpipe",
        "Train": "ls\n\npython - <<'EOF'\nif True:\n    print(1)\nEOF",
    }


def test_every_step_of_the_page_has_something_to_run(repository: Path) -> None:
    found = steps((repository / PAGE).read_text())
    assert len(found) == 4
    assert all(found.values())
    assert found["Two methods train a network"] == "make demo"
