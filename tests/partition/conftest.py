"""The long matrix of networks runs only where it is asked for."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out tests marked "models" unless ``-m`` names them (``make models``)."""
    if "models" in config.getoption("-m"):
        return
    long = [item for item in items if item.get_closest_marker("models")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if item not in long]
