"""The planner of PipeDream-2BW (section 4), beside brute force."""
