"""Figure 5 of PipeDream: what layers hold, and how steady a profile is."""
