"""Claims as lists of findings, in notebooks that experiments.study has not reached yet."""
