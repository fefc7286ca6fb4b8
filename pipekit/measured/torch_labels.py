"""Labels for the passes of torch.distributed.pipelining, in a profile of torch's."""

from typing import Any


def label_actions(*stages: Any) -> None:
    """Let torch.profiler see each pass of some stages, without the wait for its input.

    torch labels the actions of its multi-stage schedules with their waits ("PP:0F0"), and those of
    ``Schedule1F1B`` not at all.  Call it once, before the first step.

    Args:
        stages: of torch.distributed.pipelining, ``PipelineStage(...)``; each is changed.
    """
    for stage in stages:
        for name, letter in (("forward_one_chunk", "F"), ("backward_weight_one_chunk", "W")):
            setattr(stage, name, _labelled(getattr(stage, name), stage.stage_index, letter))
        whole = _labelled(stage.backward_one_chunk, stage.stage_index, "B")
        part = _labelled(stage.backward_one_chunk, stage.stage_index, "I")
        stage.backward_one_chunk = _either(whole, part)


def _labelled(function: Any, stage: int, letter: str) -> Any:
    from torch.profiler import record_function  # here, since torch takes seconds

    def run(chunk: int, *args: Any, **options: Any) -> Any:
        with record_function(f"pass {stage}{letter}{chunk}"):
            return function(chunk, *args, **options)

    return run


def _either(whole: Any, part: Any) -> Any:
    def run(chunk: int, *args: Any, full_backward: bool = True, **options: Any) -> Any:
        which = whole if full_backward else part
        return which(chunk, *args, full_backward=full_backward, **options)

    return run
