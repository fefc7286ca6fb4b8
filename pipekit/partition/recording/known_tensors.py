"""The tensors that the steps of a recording name."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pipekit.partition.recording.program import Made
from pipekit.partition.recording.refusal import NotRecordable, caller
from pipekit.partition.recording.templates import NamedWeight, Value


class KnownTensors:
    """Values, by number, in the order in which they are made, and a model's weights, by name."""

    def __init__(self, model: nn.Module) -> None:
        self._values: list[Tensor] = []
        self._made: list[Made] = []  # what they were when they were numbered
        self._storages: dict[int, int] = {}  # by address, the first value in it
        self._versions: dict[int, tuple[int, bool, type]] = {}
        self._references: dict[int, Value | NamedWeight] = {
            id(tensor): NamedWeight(name)
            for name, tensor in (*model.named_parameters(), *model.named_buffers())
        }

    def reference(self, tensor: Tensor) -> Value | NamedWeight | None:
        """Return how steps refer to a tensor, if they can."""
        return self._references.get(id(tensor))

    def add(self, tensor: Tensor, source: str, read: bool = False) -> Value:
        """Number a value.

        A weight that an operation returns keeps its name, unless it is ``read`` as a value.
        """
        if tensor.layout is not torch.strided:
            raise NotRecordable(
                f"a tensor of {tensor.layout} ({source}) cannot be followed from operation to "
                f"operation: use x.to_dense(), or put this part into a block by blocks=[...]"
            )
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            raise NotRecordable(
                f"{source} runs in a function that torch.func transforms (vmap, jvp): let a "
                f"module call torch.func, and make that a block by blocks=[...]"
            )
        value = Value(len(self._values))
        self._values.append(tensor)
        address = tensor.untyped_storage()._cdata
        made = Made(
            source=source,
            shape=tuple(tensor.shape),
            nbytes=tensor.nbytes,
            requires_grad=tensor.requires_grad,
            storage=self._storages.setdefault(address, value.number),
        )
        self._made.append(made)
        if read or not isinstance(self.reference(tensor), NamedWeight):
            self._references[id(tensor)] = value
        self.note(tensor)
        return value

    def note(self, tensor: Tensor) -> None:
        """Take a tensor as it is now for what recorded steps have made of it."""
        if tensor.is_inference():
            raise NotRecordable(
                f"{caller()} makes a tensor in torch.inference_mode(), and no gradient can flow "
                f"past it: use torch.no_grad(), which computes the same"
            )
        self._versions[id(tensor)] = (tensor._version, tensor.requires_grad, type(tensor.grad_fn))

    def is_all_one(self, number: int) -> bool:
        """Return whether a value is ones, as a mask without padding is."""
        tensor = self._values[number]
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
                        f"or gives: register the hook on modules within a block, or name a module "
                        f"around it as a block by blocks=[...]"
                    )
                raise NotRecordable(
                    f"{caller()} uses a tensor that {type(tensor.grad_fn).__name__} has put into "
                    f"autograd's graph anew, unseen by recording: a custom autograd function must "
                    f"run within a module (make that a block by blocks=[...]); call "
                    f"torch.utils.checkpoint with use_reentrant=False"
                )

    def made(self) -> dict[int, Made]:
        """Return what all values were, and forget them: blocks may keep numbers that know us."""
        self._values.clear()
        return dict(enumerate(self._made))
