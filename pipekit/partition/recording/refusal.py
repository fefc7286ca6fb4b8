"""Why a module cannot be recorded, in one sentence that names the place and the remedy."""

import os
import sys
from pathlib import Path

import torch

_OURS = Path(__file__).parents[1]  # this folder's siblings call modules, too
_FOLDERS = (f"{path}{os.sep}" for path in (Path(torch.__file__).parent, _OURS))
_NOT_THE_MODELS = (*_FOLDERS, str(_OURS.parent / "host" / "user_frames.py"))


class NotRecordable(ValueError):
    """A module whose forward cannot be cut into stages; the message says where and what to do."""


class ReadsNumbers(NotRecordable):
    """A forward that reads numbers of a tensor into Python between the blocks."""


def require_plain_operators(error: Exception, what: str) -> None:
    """Refuse what an operator that is given functions makes fail: modes have no rule for it."""
    if "HigherOrderOperator" in str(error):
        raise NotRecordable(
            f"{what} calls an operator of torch's that is given functions, as torch.cond and "
            f"flex_attention are, in which neither random numbers nor operations can be counted: "
            f"use torch.where, or scaled_dot_product_attention"
        ) from error


def caller() -> str:
    """Return ``file:line`` of the model's own code that is running, neither torch's nor ours."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_NOT_THE_MODELS) and not name.startswith("<"):
            return f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return "an unknown place"
