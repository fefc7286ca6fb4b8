"""What a run needs beyond the table: steps, weight slots, sums, and where it can be cut."""
