"""Figure 5 and Table 1 of PipeDream-2BW: training with one update of delay."""
