"""Backwards in two parts, so that the part for the weights fills bubbles."""
