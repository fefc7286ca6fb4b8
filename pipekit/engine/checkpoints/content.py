"""What a part of a checkpoint holds, and whether a file holds just that."""

from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from torch import Tensor
from typing_extensions import TypedDict

from pipekit.engine.checkpoints.files import Content, PartFile, load

Tensors = dict[str, Tensor]


# Tensors are what they are; the rest is taken strictly.
_ANY_TYPES = ConfigDict(arbitrary_types_allowed=True)


@with_config(_ANY_TYPES)
class About(TypedDict):
    """What all parts of a checkpoint have in common."""

    runs: int
    batches: int
    offset: int
    microbatches: int
    table: str
    balance: list[int]
    rng: Tensor
    training: str
    attempt: str


@with_config(_ANY_TYPES)
class PartContent(TypedDict):
    """One worker's part of a checkpoint, of one stage."""

    format: int
    about: About
    boundary: tuple[int, int, tuple[int, ...]]
    stage: int
    worker: int
    parameters: Tensors
    older: dict[int, Tensors]
    buffers: Tensors
    extra_states: dict[str, Any]
    state: dict[str, Any]
    scales: Any
    losses: list[tuple[int, float]]


def read(part: PartFile) -> Content:
    """Return the content of a file, if it is a part of the checkpoint in whose folder it lies.

    Raises:
        ValueError: it is not; the message names the file and what is wrong.
    """
    content = load(part)
    try:
        TypeAdapter(PartContent).validate_python(content, strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)[0]
        where = ".".join(map(str, wrong["loc"]))
        raise ValueError(
            f"{part.path} is not a part of a checkpoint: {where}: {wrong['msg']}"
        ) from None
    about = content["about"]
    folder = f"batch-{about['batches'] + content['boundary'][0]:08d}-"
    for what, said, found in (
        ("stage", content["stage"], part.stage),
        ("worker", content["worker"], part.worker),
        ("boundary", folder, part.path.parent.name[: len(folder)]),
        ("attempt", about["attempt"], part.path.parent.name[len(folder) :]),
    ):
        if said != found:
            raise ValueError(
                f"{part.path} was written as {what} {said} and lies where {found} belongs: files "
                f"of different checkpoints have been mixed"
            )
    return content


def require_alike(part: PartFile, about: dict[str, Any], others: dict[str, Any]) -> None:
    """Raise ValueError unless a part says the same of the whole as the others do."""
    for key in sorted({*about, *others}):
        here, there = about.get(key), others.get(key)
        if isinstance(here, Tensor) and isinstance(there, Tensor):
            here, there = here.tolist(), there.tolist()
        if here != there:
            raise ValueError(
                f"{part.path} is of another training or run than the files beside it: they differ "
                f"in {key!r}; files of different checkpoints have been mixed"
            )
