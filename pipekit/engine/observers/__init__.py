"""What watches a run: memory, events, progress."""

from pipekit.engine.observers.memory_tracker import StageMemory

__all__ = ["StageMemory"]
