"""Runs the steps of a worker on its stages."""
