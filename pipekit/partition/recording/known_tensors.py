"""The tensors that the steps of a recording name, and what their numbers depend on."""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor, nn

from pipekit.partition.recording.program import Made
from pipekit.partition.recording.refusal import NotRecordable, caller
from pipekit.partition.recording.templates import NamedWeight, Value

Origins = frozenset[int | None]  # values of the batch, by number, and None for weights and chance
OTHER: Origins = frozenset([None])


class KnownTensors:
    """Values, by number, in the order in which they are made, and a model's weights, by name."""

    def __init__(self, model: nn.Module) -> None:
        self._values: list[tuple[Tensor, bool]] = []  # and whether one requires gradients
        self._origins: list[Origins] = []  # by number
        self._versions: dict[int, tuple[int, bool, type]] = {}
        self._references: dict[int, Value | NamedWeight] = {
            id(tensor): NamedWeight(name)
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }

    def reference(self, tensor: Tensor) -> Value | NamedWeight | None:
        """Return how steps refer to a tensor, if they can."""
        return self._references.get(id(tensor))

    def add(self, tensor: Tensor, origins: Origins | None = None, read: bool = False) -> int:
        """Number a value; without origins it is the batch's.

        A weight that an operation returns keeps its name, unless it is ``read`` as a value.
        """
        number = len(self._values)
        self._values.append((tensor, tensor.requires_grad))
        self._origins.append(frozenset([number]) if origins is None else origins)
        if read or not isinstance(self.reference(tensor), NamedWeight):
            self._references[id(tensor)] = Value(number)
        self.note(tensor)
        return number

    def note(self, tensor: Tensor) -> None:
        """Take a tensor as it is now for what recorded steps have made of it."""
        if tensor.is_inference():
            raise NotRecordable(
                f"{caller()} makes a tensor in torch.inference_mode(), and no gradient can flow "
                f"past it: use torch.no_grad(), which computes the same"
            )
        self._versions[id(tensor)] = (tensor._version, tensor.requires_grad, type(tensor.grad_fn))

    def origins(self, found: Iterable[Tensor]) -> Origins:
        """Return what the numbers of tensors depend on."""
        references = filter(None, map(self.reference, found))
        return Origins().union(
            *(self._origins[r.number] if isinstance(r, Value) else OTHER for r in references)
        )

    def edit(self, tensor: Tensor, origins: Origins) -> None:
        """Take a tensor as a recorded step has edited it, by what depends on these origins."""
        self.note(tensor)
        if isinstance(known := self.reference(tensor), Value):
            self._origins[known.number] |= origins

    def is_all_one(self, number: int) -> bool:
        """Return whether a value is ones, as a mask without padding is."""
        tensor = self._values[number][0]
        return bool(tensor.dim() and (tensor == 1).all())

    def require_unchanged(self, found: Sequence[Tensor]) -> None:
        """Refuse tensors to which something that is not recorded has happened meanwhile."""
        for tensor in found:
            known = self._versions.get(id(tensor))
            if known is None:
                continue
            if tensor._version != known[0]:
                # A view of it was edited, by a step that is recorded: note it anew.
                self.note(tensor)
            elif (tensor.requires_grad, type(tensor.grad_fn)) != known[1:]:
                if type(tensor.grad_fn).__name__ == "BackwardHookFunctionBackward":
                    raise NotRecordable(
                        f"{caller()} uses a tensor that a module with a full backward hook takes "
                        f"or gives: register the hook on modules deeper within a block, or name "
                        f"a module around it as a block by blocks=[...]"
                    )
                raise NotRecordable(
                    f"{caller()} uses a tensor that {type(tensor.grad_fn).__name__} has put into "
                    f"autograd's graph anew, unseen by recording: a custom autograd function must "
                    f"run within a module (make that a block by blocks=[...]); call "
                    f"torch.utils.checkpoint with use_reentrant=False"
                )

    def made(self, sources: Mapping[int, str]) -> dict[int, Made]:
        """Return all values as they are, and forget them: blocks may keep numbers that know us."""
        storages: dict[int, int] = {}
        found = {
            number: Made(
                source=sources.get(number, "the batch"),
                shape=tuple(tensor.shape),
                nbytes=tensor.nbytes,
                requires_grad=requires_grad,
                storage=storages.setdefault(tensor.untyped_storage()._cdata, number),
            )
            for number, (tensor, requires_grad) in enumerate(self._values)
        }
        self._values.clear()
        return found
