"""``pipekit check``: tables and orders of messages, proved."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipekit.cli import app

run = CliRunner().invoke


def test_an_order_that_hangs_is_named_with_exit_code_1() -> None:
    done = run(app, ["check", "flush", "--messages", "rendezvous", "--order", "in_order"])
    assert done.exit_code == 1
    assert "the tasks can never wait for one another" in done.output
    assert "the order 'in_order' hangs (rendezvous" in done.output


def test_the_repaired_file_is_sound_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "new" / "repaired.csv"
    arguments = f"check flush --messages rendezvous --order in_order --repair {file}"
    assert run(app, arguments.split()).exit_code == 0
    again = run(app, ["check", str(file), "--messages", "rendezvous"])
    assert again.exit_code == 0
    assert "never hangs" in again.output


def test_without_a_channel_only_the_tasks_are_proved() -> None:
    done = run(app, ["check", "gpipe"])
    assert done.exit_code == 0
    assert "never hangs" not in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("flush --messages eagre", "'eagre' is no channel: write rendezvous, eager, or eager:2"),
        ("flush --messages eager --order torhc", "did you mean 'torch'?"),
        ("flush --messages eager --communicators pairs", "did you mean 'pair'?"),
        ("flush --repair out.csv", "--repair is of messages"),
        ("flsh", "neither a file, nor a package.module:function, nor one of"),
    ],
)
def test_wrong_input_gets_a_sentence(arguments: str, says: str) -> None:
    done = run(app, ["check", *arguments.split()])
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
