"""Figures 1 and 2 of PipeDream: what data parallelism pays for communication."""
