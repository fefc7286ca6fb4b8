"""The user's model, which a pipeline has copied: edits of it have no effect, and are noticed."""

import warnings

import torch
from torch import nn


class WatchedModel:
    """The parameters of the user's model, as they were when the pipeline copied them."""

    def __init__(self, model: nn.Module) -> None:
        self._model, self._before = model, _trained(model)
        self._versions = _versions(model)

    def compare(self, own: nn.Module | None) -> None:
        """Warn, once for each change, of what the pipeline's copy does not have.

        Args:
            own: the copy, before its first run; None: later, when the user's model may well be
                given other weights, those that were trained among them.
        """
        trained, before = _trained(self._model), self._before
        changed = [f"{n}.requires_grad" for n in trained if trained[n] != before.get(n, trained[n])]
        self._before = trained
        if own is not None and (versions := _versions(self._model)) != self._versions:
            self._versions, kept = versions, dict(own.named_parameters())
            for name, weight in self._model.named_parameters():
                if name in kept and not torch.equal(weight.to(kept[name].device), kept[name]):
                    changed.append(name)
        if changed:
            warnings.warn(
                f"the model has changed since Pipeline(model) copied it, {changed[0]} say, and the "
                f"copy has not: build the pipeline afterwards, or give it weights by its "
                f"load_state_dict()",
                stacklevel=7,
            )


def _trained(model: nn.Module) -> dict[str, bool]:
    return {name: weight.requires_grad for name, weight in model.named_parameters()}


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    """Return numbers that an edit of a weight, or another tensor in its place, changes."""
    weights = [each for each in model.parameters() if not each.is_inference()]
    return [(id(each), each._version) for each in weights]
