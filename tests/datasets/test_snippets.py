import pytest
import torch

from pipekit import datasets
from pipekit.datasets.text import library


def test_classes_are_packages_with_equally_many_snippets() -> None:
    data = datasets.python_snippets(sequence=32, classes=4, rows=240, test_rows=80)
    assert data.train_targets.bincount().tolist() == [40] * 4
    assert data.test_targets.bincount().tolist() == [20] * 4
    packages = data.source.partition(": ")[2].split(", ")
    for targets, inputs, part in zip(
        (data.train_targets, data.test_targets),
        (data.train_inputs, data.test_inputs),
        library(),
        strict=True,
    ):
        for row, target in zip(inputs[::9], targets[::9], strict=True):
            package = packages[int(target)]
            assert any(bytes(row.tolist()) in file.text for file in part if file.package == package)


def test_no_snippet_is_there_twice() -> None:
    data = datasets.python_snippets(sequence=64, classes=4, rows=800, test_rows=200, seed=1)
    both = torch.cat([data.train_inputs, data.test_inputs])
    assert len(both.unique(dim=0)) >= 0.97 * len(both)  # licences recur, and blank lines


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: datasets.python_snippets(rows=2401), "use multiples of 8"),
        (lambda: datasets.python_snippets(classes=10**3, rows=10**4, test_rows=10**3), "packages"),
        (lambda: datasets.python_snippets(rows=80_000), r"rows a class must be 1 to \d+"),
    ],
)
def test_impossible_sizes_are_refused_with_the_possible_ones(call: object, message: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=message):
        call()
