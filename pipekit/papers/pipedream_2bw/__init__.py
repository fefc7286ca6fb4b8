"""PipeDream-2BW (ICML 2021): what its notebooks compute, a folder a notebook."""
