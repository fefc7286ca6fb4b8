"""PipeDream (SOSP 2019): what its notebooks compute, a folder a notebook."""
