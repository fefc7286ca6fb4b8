"""Batches of notebooks: what to run, with which parameters, where, and the record of it."""
