"""Whether the loss of a batch is that of its microbatches together."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch

from pipekit.devices import random_states_put_back
from pipekit.losses.mean_over import MeanOver

NEARLY = {torch.float16: 3e-2, torch.bfloat16: 3e-2}
"""By how much of itself a loss may differ by rounding; of other types 1e-3."""


def is_mean(loss: Callable[..., Any]) -> bool:
    """Return whether a loss is a mean over rows: all but those that say that they sum."""
    return getattr(loss, "reduction", "mean") != "sum"


@torch.no_grad()
def warn_of_other_means(
    loss: Callable[[Any, Any], Any],
    whole: tuple[Any, Any],
    parts: list[tuple[Any, Any]],
    rows: list[int],
) -> None:
    """Warn of a loss that is not, over some rows, what its parts are together.

    A copy of the loss is asked, so that one that counts its calls does not count these.  One that
    draws random numbers, that cannot be copied or takes no such parts tells nothing.

    Args:
        loss: as the pipeline has it.
        whole: output and target of some rows.
        parts: the same, cut into parts.
        rows: of each part.

    Warns:
        UserWarning: the two losses, and what to do.
    """
    try:
        asked = copy.deepcopy(loss)
        with random_states_put_back(torch.device("cpu")):
            state = torch.get_rng_state()
            expected = asked(*whole)
            values = [asked(*part) for part in parts]
            if not torch.equal(torch.get_rng_state(), state):
                return
        by_rows = is_mean(loss) and not isinstance(loss, MeanOver)
        shares = [count / sum(rows) if by_rows else 1.0 for count in rows]
        found = sum(share * float(value) for share, value in zip(shares, values, strict=True))
        one, nearly = float(expected), NEARLY.get(expected.dtype, 1e-3)
    except Exception:  # of whatever kind: training itself will say what is wrong
        return
    if not torch.tensor(one).isfinite() or abs(found - one) <= nearly * abs(one) + 1e-7:
        return
    warnings.warn(
        f"the loss of {sum(rows)} rows is {one:.4g}, and that of their parts together {found:.4g}: "
        f"a batch that is cut into microbatches is trained on another loss than the whole one. "
        f"A mean over what rows have unequally (labels that are not ignored, class weights) does "
        f"as a pipekit.MeanOver; a loss that compares rows with one another needs one microbatch a "
        f"batch",
        stacklevel=2,
    )
