"""What this project's own experiments compute, outside the toolkit: a folder a paper, and tools.

Notebooks and scripts import it from a checkout, whose root ``make`` (or ``pip install -e .``) puts
on Python's path; an installed wheel has no experiments.
"""
