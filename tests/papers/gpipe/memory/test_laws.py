import pandas as pd
import pytest

from pipekit.papers.gpipe.memory import laws


def test_all_activations_are_kept_without_recomputation() -> None:
    """Of a row and layer 8 numbers of output and 2 x 32 within; 8 of the model's input."""
    found = laws.counted(rows=4, layers=2, stages=1, microbatches=1, recompute="never")[1]
    assert found.tolist() == [4 * 4 * (8 + 2 * (8 + 64)) + 4]  # and the loss


def test_only_boundaries_are_kept_with_it() -> None:
    assert laws.boundaries_kept(rows=8, layers=2, stages=2, microbatches=4) == [4, 4]


def test_exponents_and_straightness_of_what_is_known() -> None:
    frame = pd.DataFrame(
        [(n, depth, 5 * n**2 * depth) for n in (1, 2, 4) for depth in (3, 6)],
        columns=["N", "L", "bytes"],
    )
    assert laws.exponents(frame) == pytest.approx([2, 1])
    assert laws.straightness([1, 2, 3], [5, 7, 9]) == pytest.approx(1)
    assert laws.straightness([1, 2, 3], [1, 4, 9]) < 0.99


def test_the_formula_explains_the_bytes_with_recomputation() -> None:
    found = laws.with_recomputation(rows=(16,), layers=(4,), stages=(1, 2), microbatches=(2, 4))
    assert len(found) == 4
    assert found["residual"].abs().max() < 0.01
