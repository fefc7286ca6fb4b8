"""The recurrence of PipeDream's planner, over chains and graphs of layers (section 3.2)."""
