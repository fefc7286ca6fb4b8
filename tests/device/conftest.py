"""Tests in this folder run in the process of the simulated accelerator; a race fails them."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from pipekit.devices import device_count
from tests.device.kind import KIND, SIMULATED
from tests.device.simulated import build
from tests.device.simulated.process import DeviceProcess

BUILDING_S = 900  # the first test of all builds the accelerator: 15 s, more on a busy machine
MATRIX = "test_matrix.py"
ON_ALL_KINDS = (
    *(MATRIX, "test_pipeline.py", "test_pipelined_module.py", "test_on_an_accelerator.py"),
    *("test_processes.py", "test_gpu_check.py"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests time to build, and let them be last: others run while it builds."""
    here = [item for item in items if "device_process" in getattr(item, "fixturenames", ())]
    for item in here:
        item.add_marker(pytest.mark.timeout(BUILDING_S))
        if not SIMULATED and item.path.name not in ON_ALL_KINDS:
            item.add_marker(pytest.mark.skip(reason="of the simulated accelerator"))
    items[:] = [item for item in items if item not in set(here)] + here


def pytest_collection_finish(session: pytest.Session) -> None:
    """Begin to build, if any test needs it; whoever comes to one waits for the end."""
    needed = any("device_process" in getattr(item, "fixturenames", ()) for item in session.items)
    if SIMULATED and needed and build.missing() is None and not session.config.option.collectonly:
        threading.Thread(target=_build, daemon=True).start()


def _build() -> None:
    with suppress(RuntimeError):  # the first test says so
        build.built()


@pytest.fixture(scope="session")
def device_process() -> Iterator[DeviceProcess]:
    """The process with the simulated accelerator, or whatever the tests are told to run on."""
    if not SIMULATED:
        if not device_count(KIND):
            pytest.skip(f"there is no {KIND} here")
        process = DeviceProcess(None)
        yield process
        process.close()
        return
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests of the matrix passed: a row a feature, a column a schedule."""
    tables: dict[str, dict[str, Counter[tuple[str, str]]]] = {}
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.getreports(outcome):
            if f"/{MATRIX}::" in report.nodeid:
                test, _, values = report.nodeid.partition("[")
                feature, column, *_ = values.split("-")
                table = tables.setdefault(test.rpartition("::")[2], {})
                counts = table.setdefault(feature, Counter())
                counts[column, "all"] += 1
                counts[column, outcome] += 1
    for test, table in tables.items():
        columns = list(dict.fromkeys(column for counts in table.values() for column, _ in counts))
        terminalreporter.section(f"{test}: equal to the bit, without a race")
        rows = [["", *columns]]
        for feature, counts in table.items():
            cells = [
                f"{counts[c, 'passed']}/{n}" if (n := counts[c, "all"]) else "" for c in columns
            ]
            rows.append([feature, *cells])
        for row in rows:
            terminalreporter.write_line(row[0].ljust(16) + "".join(c.rjust(14) for c in row[1:]))
