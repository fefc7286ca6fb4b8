"""The commands, as a user types them."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pytest
import yaml
from click import unstyle
from typer.main import get_command
from typer.testing import CliRunner

from pipekit import schedules
from pipekit.cli import app
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pipekit(*arguments: str) -> Any:
    """Run a command as on a wide terminal: rich then breaks no line."""
    return CliRunner().invoke(
        app, arguments, catch_exceptions=False, env={"COLUMNS": "250", "TERMINAL_WIDTH": "250"}
    )


def printed(*arguments: str) -> str:
    result = pipekit(*arguments)
    assert result.exit_code == 0, result.output
    return str(unstyle(result.stdout))


def refused(*arguments: str) -> str:
    """Return the one line said about wrong input."""
    result = pipekit(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return str(line)


class TestApp:
    @pytest.mark.parametrize("command", ["schedule", "train", "run"])
    def test_help_has_examples(self, command: str) -> None:
        text = printed(command, "--help")
        assert "Examples" in text
        assert f"pipekit {command} " in text.partition("Examples")[2]

    @pytest.mark.parametrize("command", ["schedule", "train"])
    def test_help_names_every_method(self, command: str) -> None:
        text = " ".join(re.sub("[│\n]", " ", printed(command, "--help")).split())
        assert [name for name in METHODS if name not in text] == []

    def test_help_breaks_its_lines_where_the_terminal_does_and_examples_fit_80_columns(
        self,
    ) -> None:
        for command in get_command(app).commands.values():  # type: ignore[attr-defined]
            prose, _, examples = command.help.partition("\b")
            assert prose.count("\n") == 2 * prose.count("\n\n")
            assert [line for line in examples.splitlines() if len(line) > 78] == []

    def test_version(self) -> None:
        assert re.fullmatch(r"pipekit \d+\.\d+\.\d+\n", printed("--version"))

    def test_no_command_shows_the_help(self) -> None:
        result = pipekit()
        assert result.exit_code == 2
        assert "schedule" in result.output

    def test_the_command_line_itself_loads_no_library_that_takes_seconds(self) -> None:
        code = (
            "import sys, pipekit; before = set(sys.modules); import pipekit.cli; "
            "print({'torch', 'pandas', 'plotly', 'matplotlib', 'papermill'} & sys.modules.keys() - before)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[2],
        )
        assert done.stdout.strip() == "set()"

    @pytest.mark.parametrize(
        "arguments",
        [
            ["train", "--method", "gpip"],
            ["train", "--model", "resnt"],
            ["train", "--mitigation", "spectrane"],
            ["profile", "vgg17"],
            ["schedule", "gpip"],
        ],
    )
    def test_a_wrong_name_is_refused_before_torch_is_loaded(self, arguments: list[str]) -> None:
        """Since that takes seconds; counted in imports, not by a clock."""
        code = (
            "import sys\nfrom pipekit.cli import app\n"
            f"try: app({arguments!r})\n"
            "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.strip() == "2 False"
        assert re.search("must be one of|none of the methods", done.stderr)


class TestMethods:
    @pytest.mark.parametrize("name", METHODS)
    def test_every_method_is_executable_and_updates_once_a_batch(self, name: str) -> None:
        schedule = METHODS[name](4, 8).take(5)
        schedules.check(schedule)
        assert len(schedule.batches) == 5
        assert schedule.microbatches == (5 if name in PER_MINIBATCH else 40)

    def test_names_mean_the_functions_of_that_name(self) -> None:
        assert METHODS["2bw"](2, 3).take(4) == schedules.two_bw(2, 3).take(4)
        assert METHODS["pipedream"](2, 3).take(4) == schedules.pipedream(2).take(4)
        assert not METHODS["pipedream-no-stashing"](2, 3).take(4).stashing
        assert METHODS["interleaved"](4, 3).take(4) == schedules.interleaved(4, 3, workers=2).take(
            4
        )

    def test_interleaved_stages_come_in_pairs(self) -> None:
        with pytest.raises(schedules.ScheduleError, match="use an even number of stages, not 3"):
            METHODS["interleaved"](3, 4).take(5)


class TestSchedule:
    def test_prints_the_picture_and_a_line_of_facts(self) -> None:
        picture, _, facts = printed("schedule", "gpipe", "--stages", "3").rstrip().rpartition("\n")
        assert schedules.parse(picture) == schedules.gpipe(3, 4).take(2)
        assert facts == (
            "GPipe: bubble 33.3 % of makespan, 27.3 % of spans, 36 slots; at most, a worker: weight "
            "slots 1 1 1, "
            "microbatches in flight 4 4 4 (exact)"
        )

    def test_methods_that_update_every_minibatch_get_as_many_passes(self) -> None:
        default = printed("schedule", "pipedream", "--microbatches", "3", "--batches", "2")
        assert str(schedules.pipedream(4).take(6)) in default
        assert str(schedules.pipedream(4).take(5)) in printed(
            "schedule", "pipedream", "--minibatches", "5"
        )

    def test_several_methods_one_after_another(self) -> None:
        text = printed("schedule", "flush", "2bw")
        assert text.index("PipeDream-Flush: bubble") < text.index("# PipeDream-2BW")

    @pytest.mark.parametrize("suffix", [".txt", ".csv"])
    @pytest.mark.parametrize("method", ["2bw", "pipedream-no-stashing"])
    def test_a_written_table_reads_back_the_same(
        self, method: str, suffix: str, elsewhere: Path
    ) -> None:
        first = printed("schedule", method)
        assert f"wrote new/a{suffix}" in printed("schedule", method, "--output", f"new/a{suffix}")
        assert printed("schedule", f"new/a{suffix}") == first

    def test_svg_comes_with_its_events(self, elsewhere: Path) -> None:
        text = printed("schedule", "gpipe", "flush", "--output", "two.svg", "--versions")
        assert text.splitlines()[2:] == ["wrote two.svg", "wrote two.csv"]
        assert "PipeDream-Flush" in Path("two.svg").read_text()
        assert ">v0<" in Path("two.svg").read_text()
        assert set(pd.read_csv("two.csv")["schedule"]) == {"GPipe", "PipeDream-Flush"}

    def test_html_stands_alone(self, elsewhere: Path) -> None:
        printed("schedule", "gpipe", "--output", "a.html")
        assert "plotly.js" in Path("a.html").read_text()

    def test_a_file_that_cannot_be_executed_is_refused_naming_the_tasks(
        self, elsewhere: Path
    ) -> None:
        Path("bad.txt").write_text("worker 0 | F0 B0 -^\nworker 1 | B0 - F0 ^0\n")
        line = refused("schedule", "bad.txt", "--output", "never.svg")
        assert "B0 of stage 1" in line
        assert not Path("never.svg").exists()

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ("gpip", "'gpip' is not a file and none of the methods gpipe, flush"),
            ("2bw --stages 6", "use microbatches >= 6"),
            ("gpipe --stages 0", "stages must be a whole number of at least 1"),
            ("gpipe --output a.png", "--output must end in .svg, .html, .csv, .txt"),
            ("gpipe flush --output a.csv", "name one method"),
            ("gpipe --output /dev/null/a.svg", "/dev/null"),
        ],
    )
    def test_wrong_input_gets_one_sentence(
        self, arguments: str, says: str, elsewhere: Path
    ) -> None:
        assert says in refused("schedule", *arguments.split())
        assert list(elsewhere.iterdir()) == []


class TestRun:
    @pytest.fixture
    def experiment(self, elsewhere: Path) -> Path:
        notebooks = []
        for name, source in {"good": "print(scale)", "bad": "raise OSError('on purpose')"}.items():
            cell = nbformat.v4.new_code_cell("scale = ''\nresults_dir = ''")
            cell.metadata["tags"] = ["parameters"]
            notebook = nbformat.v4.new_notebook(cells=[cell, nbformat.v4.new_code_cell(source)])
            nbformat.write(notebook, f"{name}.ipynb")
            notebooks.append({"notebook": f"{name}.ipynb"})
        Path("e.yaml").write_text(yaml.safe_dump({"name": "e", "notebooks": notebooks}))
        return Path("e.yaml")

    @pytest.mark.slow
    def test_exit_code_0_and_the_folder_last(self, experiment: Path) -> None:
        last = printed("run", str(experiment), "--only", "good", "--scale", "full").splitlines()[-1]
        folder = Path(last.removeprefix("results: "))
        assert folder.parent == Path("results/runs").resolve()
        assert "full" in (folder / "good.ipynb").read_text()

    @pytest.mark.slow
    def test_a_failing_notebook_gives_exit_code_1(self, experiment: Path) -> None:
        result = pipekit("run", str(experiment), "--only", "bad")
        assert result.exit_code == 1
        assert "OSError: on purpose" in result.stdout

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["missing.yaml"], "there is no experiment file missing.yaml"),
            (["e.yaml", "--only", "ugly"], "e has no notebook 'ugly', only good, bad"),
        ],
    )
    def test_wrong_input_gets_one_sentence(
        self, arguments: list[str], says: str, experiment: Path
    ) -> None:
        assert says in refused("run", *arguments)
