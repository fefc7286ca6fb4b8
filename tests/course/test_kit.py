"""The lecture kit: handed-out folders lack solutions, right ones pass, and every common error fails."""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

KIT = Path(__file__).parents[2] / "docs" / "course"
SOLVED = (KIT / "assignment" / "pipeline.py").read_text(encoding="utf-8")


def loaded(path: Path) -> ModuleType:
    """Return a file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def exercises() -> ModuleType:
    return loaded(KIT / "exercises.py")


@pytest.fixture
def graded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """A function that returns the parts which a text of ``pipeline.py`` fails."""

    def grade(source: str) -> list[str]:
        path = tmp_path / "pipeline.py"
        path.write_text(source, encoding="utf-8")
        monkeypatch.setitem(sys.modules, "pipeline", loaded(path))
        grader, failed = loaded(KIT / "assignment" / "test_pipeline.py"), []
        for name, test in vars(grader).items():
            if not name.startswith("test_part"):
                continue
            for given in grader.ORDERS if "part_1" in name else [()]:
                try:
                    test(*given)
                except (AssertionError, NotImplementedError, RuntimeError):
                    failed.append(name[5:11])
        return sorted(set(failed))

    return grade


def test_the_solution_passes_and_what_is_handed_out_does_not(
    graded: Callable[[str], list[str]], exercises: ModuleType
) -> None:
    assert graded(SOLVED) == []
    assert graded(exercises.stripped(SOLVED)) == ["part_1", "part_2", "part_3", "part_4"]


@pytest.mark.parametrize(
    ("right", "wrong", "part"),
    [
        ("min(stages - 1 - stage, microbatches)", "min(stages - stage, microbatches)", "part_1"),
        ("min(stages - 1 - stage, microbatches)", "stages - 1 - stage", "part_1"),
        ("return x.grad\n", "self.optimizer.zero_grad()\n        return x.grad\n", None),
        ("x, y = self.kept.pop(microbatch)", "x, y = self.kept[microbatch]", "part_2"),
        (
            "for name, gradient in self.gradients.items():\n            self.weights[name] = "
            "torch.add(self.weights[name]",
            "for name, gradient in self.gradients.items():\n            self.weights[name] = "
            "torch.add(self.read[name].detach()",
            "part_4",
        ),
        ("self.stash.pop(microbatch)", "self.stash[microbatch]", "part_4"),
    ],
)
def test_a_common_error_fails_its_part(
    right: str, wrong: str, part: str | None, graded: Callable[[str], list[str]]
) -> None:
    assert SOLVED.count(right) == 1
    source = SOLVED.replace(right, wrong).replace(
        "weights, x, y = self.stash", "weights, x, y = self.read, *_ = self.stash"
    )
    assert (part or "part_2") in graded(source)


def test_a_backward_at_the_newest_weights_fails_part_4(graded: Callable[[str], list[str]]) -> None:
    newest = """
        x = self.stash.pop(microbatch)[1]
        weights = {name: each.detach().requires_grad_() for name, each in self.weights.items()}
        y = functional_call(self.layers, weights, (x,))
"""
    source = SOLVED.replace("\n        weights, x, y = self.stash.pop(microbatch)\n", newest)
    assert source != SOLVED
    assert graded(source) == ["part_4"]


def test_each_student_has_numbers_and_no_answer(exercises: ModuleType, tmp_path: Path) -> None:
    for student in ("ada", "grace"):
        exercises.write(student, tmp_path)
    sheets = [(tmp_path / "public" / name / "sheet.md").read_text() for name in ("ada", "grace")]
    assert sheets[0] != sheets[1]
    for folder in (tmp_path / "public").iterdir():
        handed = "".join(path.read_text() for path in folder.iterdir())
        assert "# solution" not in handed
        assert "functional_call(self.layers, weights" not in handed
        withheld = (tmp_path / "withheld" / folder.name / "answers.py").read_text()
        for name, answer in re.findall(r"(\w+) = (.+)", withheld):
            digest = exercises.digest(folder.name, name, float(answer))
            assert digest in (folder / "digests.json").read_text()
            assert digest != exercises.digest(folder.name, name, 1.01 * float(answer))


def test_answers_are_the_closed_forms(exercises: ModuleType) -> None:
    for student in ("ada", "grace", "kim"):
        found = {name: (text, answer) for name, text, answer in exercises.exercises(student)}
        text = found["gpipe_slots"][0]
        p, m, b = (
            int(each) for each in re.findall(r"(\d+) stages, (\d+).*backward (\d+)", text)[0]
        )
        assert found["gpipe_slots"][1] == (m + p - 1) * (1 + b)
        assert found["gpipe_bubble"][1] == pytest.approx(100 * (p - 1) / (m + p - 1))
        s = int(re.findall(r"stage (\d+)", found["in_flight"][0])[0])
        assert found["in_flight"][1] == found["versions"][1] == p - s
        assert found["stage_ends"][1] == (m + p - 1) * (1 + b) - s * b
        link = float(re.findall(r"takes ([\d.]+)\. After", found["period"][0])[0])
        period = 1 + b + 2 * link * (p - 1) / p
        assert f"{found['period'][1]:.3g}" == f"{period:.3g}", "as graded"
