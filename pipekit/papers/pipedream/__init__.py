"""What the notebooks of PipeDream's tables and figures compute."""
