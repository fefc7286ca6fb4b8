"""Fixtures of pytest for testing fixtures of pytest."""

pytest_plugins = ["pytester"]
