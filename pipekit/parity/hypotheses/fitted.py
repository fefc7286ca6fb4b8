"""The factors with which some gradients add up to a trainer's, by least squares."""

from collections.abc import Callable, Sequence

import torch

from pipekit.parity.evidence import Evidence, Prediction
from pipekit.parity.observed import Entry
from pipekit.parity.plain_loop import Tensors

OVERDETERMINED = 4  # numbers for each factor, at least
DEPENDENT = 3e-5  # share of the largest singular value, below which gradients are no basis
NOTHING = 0.01  # a factor as small as this is none
MISFIT = 0.01  # of the size, above which no factors are said


def fitted(
    e: Evidence,
    entries: Sequence[Entry],
    each: Callable[[int], Sequence[Tensors]],
    beside: Prediction | None = None,
) -> list[float] | None:
    """Return one factor for each of some gradients, the same in all steps, or None.

    Args:
        e: the evidence.
        entries: whose values are to be added up.
        each: the gradients of a step.
        beside: a prediction that counts once in any case.
    """
    columns, sums = [], []
    for step in range(e.steps):
        basis = each(step)
        for entry in entries:
            if all(entry.name in gradients for gradients in basis):
                value = entry.values[step]
                sums.append((value - beside(step)[entry.name] if beside else value).flatten())
                columns.append(torch.stack([g[entry.name].flatten() for g in basis], 1))
    if not sums:
        return None
    matrix, wanted = torch.cat(columns), torch.cat(sums)
    found = torch.linalg.lstsq(matrix, wanted, rcond=DEPENDENT, driver="gelsd")
    factors, size = found.solution, matrix.shape[1]
    if len(matrix) < OVERDETERMINED * size or found.rank < size:
        return None
    if (matrix @ factors - wanted).norm() > MISFIT * wanted.norm():
        return None
    return [float(factor) for factor in factors]
