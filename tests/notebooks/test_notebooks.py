import ast
import re
from contextlib import suppress
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from experiments.study.notebook import Notebook
from experiments.study.notebook import parameters as given_to
from pipekit.ledger.batches.experiment import GIVEN, SCALES, load
from pipekit.ledger.batches.ranges import Parameter, read

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"^(import|from) (pipekit|experiments)\b")
NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


@pytest.fixture(scope="module")
def notebook(path: Path) -> NotebookNode:
    read: NotebookNode = nbformat.read(path, as_version=4)
    return read


def parameters(notebook: NotebookNode) -> NotebookNode:
    tagged: list[NotebookNode] = [
        cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])
    ]
    assert len(tagged) == 1
    return tagged[0]


def code(notebook: NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_it_is_a_sound_notebook_without_outputs(notebook: NotebookNode) -> None:
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells)
    assert notebook.metadata.kernelspec.name == "python3"


def test_all_that_it_imports_of_ours_is_there(notebook: NotebookNode) -> None:
    statements = [node for source in code(notebook) for node in ast.walk(ast.parse(source))]
    imports = [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)]
    ours = [ast.unparse(node) for node in imports if OURS.search(ast.unparse(node))]
    exec("\n".join(ours), {})


def test_every_test_that_proves_a_claim_is_there(notebook: NotebookNode) -> None:
    known: dict[str, object] = {}
    for statement in ast.parse("\n".join(code(notebook))).body:
        if isinstance(statement, ast.Assign):
            with suppress(Exception):  # what is imported or computed: no name of a test
                exec(ast.unparse(statement), known)
        for node in ast.walk(statement):
            if isinstance(node, ast.JoinedStr) and "_" in (text := ast.unparse(node)):
                value: object = ""
                with suppress(Exception):  # made of what is computed, as above
                    value = eval(text, known)
                for named in str(value).split():
                    path, _, test = named.partition("::")
                    assert not test or f"def {test}" in (ROOT / path).read_text(), named


def test_it_says_at_its_beginning_how_long_it_takes(notebook: NotebookNode) -> None:
    mark = "<!-- number: papers/notebooks.csv, only seconds, where name = "
    assert mark in notebook.cells[0].source


def test_the_first_code_cell_holds_the_parameters(notebook: NotebookNode) -> None:
    assert code(notebook)[0] == parameters(notebook).source


def test_every_parameter_is_a_typed_scalar_with_a_comment(notebook: NotebookNode) -> None:
    source = parameters(notebook).source
    statements = ast.parse(source).body
    assert all(isinstance(statement, ast.AnnAssign) for statement in statements)
    for statement, line in zip(statements, source.splitlines(), strict=True):
        assert isinstance(statement, ast.AnnAssign)
        assert isinstance(statement.value, ast.Constant)
        assert type(statement.value.value).__name__ == ast.unparse(statement.annotation)
        assert "  # " in line
    names = {ast.unparse(s.target) for s in statements if isinstance(s, ast.AnnAssign)}
    assert set(GIVEN) <= names


def test_no_cell_gives_a_parameter_another_value(notebook: NotebookNode) -> None:
    """A later cell that reads the parameter would get what the name means by then."""
    statements = ast.parse(parameters(notebook).source).body
    given = {ast.unparse(s.target) for s in statements if isinstance(s, ast.AnnAssign)}
    others = [
        node.id
        for source in code(notebook)
        if source != parameters(notebook).source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    ]
    assert given.isdisjoint(others)


def test_no_cell_ends_with_a_name_that_jupyter_would_print(notebook: NotebookNode) -> None:
    """What shows a figure returns its file's name, below which it would stand as 'name.svg'."""
    shows = {name for name in vars(Notebook) if name.startswith("show")}
    for source in filter(None, code(notebook)):
        match ast.parse(source).body[-1]:
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("nb"), called))) if called in shows:
                assert source.endswith(";"), f"no semicolon ends {source!r}"


@pytest.mark.parametrize("scale", SCALES)
def test_an_experiment_runs_each(scale: str) -> None:
    jobs = load(*sorted((ROOT / "experiments").glob("*.yaml")), scale=scale).jobs  # in one batch
    assert {job.notebook.resolve() for job in jobs} >= set(NOTEBOOKS)


def outside(parameter: Parameter) -> list[object]:
    """Return some values that a parameter's range does not allow."""
    if not parameter.range:
        return []
    if parameter.ends is None:
        return [-1 if parameter.kind == "int" else "none such"]
    low, high = parameter.ends
    kind = str if parameter.kind == "str" else type(low)
    return [kind(low - 1), kind(high + 1)]


def test_every_parameter_out_of_the_range_in_its_comment_is_refused_at_once(
    path: Path, notebook: NotebookNode
) -> None:
    if path.parent.name == "explore":  # sliders: whatever they begin with, they have ends
        return
    source = parameters(notebook).source
    assert re.search(r"(parameters|begin)\(globals\(\)", code(notebook)[1])
    declared = read(source)
    given = {s.target.id: s.value.value for s in ast.parse(source).body}
    assert set(declared) == set(given)
    assert given_to({**given, "In": ["", source]}) == given
    for name, parameter in declared.items():
        assert parameter.range or parameter.kind in ("bool", "str"), f"{name}: no range"
        for value in outside(parameter):
            with pytest.raises(ValueError, match=f"the parameter {name} "):
                given_to({**given, name: value, "In": ["", source]})


def test_a_papers_notebook_opens_with_what_was_found(notebook: NotebookNode) -> None:
    if not any("nb.claim(" in source for source in code(notebook)):
        return  # it judges no claim
    cells = notebook.cells[1:3]  # what is found appears below the second
    assert "nb = study.begin(globals()" in cells[1].source
    assert [cell.metadata.jupyter.source_hidden for cell in cells] == [True, True]


def test_it_begins_with_its_own_name(path: Path, notebook: NotebookNode) -> None:
    named = re.findall(r'study\.begin\(globals\(\), "(.+?)"', "\n".join(code(notebook)))
    assert set(named) <= {path.relative_to(ROOT / "notebooks").with_suffix("").as_posix()}


def test_the_template_of_ones_own_has_thirty_lines() -> None:
    sources = code(nbformat.read(ROOT / "notebooks/own.ipynb", as_version=4))
    assert sum(bool(line.strip()) for s in sources for line in s.splitlines()) <= 30


def test_no_cell_has_more_than_30_lines(notebook: NotebookNode) -> None:
    assert max(len(source.splitlines()) for source in code(notebook)) <= 30
