"""What this project's own experiments compute, outside the toolkit: a folder a paper, and tools.

They are imported from a checkout (``make``, or ``pip install -e .``); a wheel has none.
"""
