"""Tests in this folder run in the process of the simulated accelerator; a race fails them."""

from collections.abc import Iterator

import pytest

from tests.device import build
from tests.device.process import DeviceProcess

BUILDING_S = 900  # the first test of all builds the accelerator: 20 s, more on a busy machine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests time to build."""
    for item in items:
        if "device_process" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(BUILDING_S))


@pytest.fixture(scope="session")
def device_process() -> Iterator[DeviceProcess]:
    """The process with the simulated accelerator."""
    if reason := build.missing():
        pytest.skip(reason)
    process = DeviceProcess(build.built())
    yield process
    process.close()


@pytest.fixture(autouse=True)
def _in_device_process(device_process: DeviceProcess) -> None:
    """Have it started for every test here."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool:
    """Run the test there, with its parameters; fixtures must be picklable."""
    process = pyfuncitem.funcargs["device_process"]
    assert isinstance(process, DeviceProcess)
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    process.run(pyfuncitem.module.__name__, pyfuncitem.originalname, arguments)
    return True
