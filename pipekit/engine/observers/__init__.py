"""What watches a run: memory, events, progress."""
