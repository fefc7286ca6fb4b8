"""A JupyterLab of its own on loopback, in a headless Chromium."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, sync_playwright

START_S, CELLS_S = 300, 300  # they only end a hang
QUIET = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
OPEN = """async ({path, kernel}) => {
    const options = kernel ? {kernel: {id: kernel}} : {};
    const panel = await jupyterapp.commands.execute('docmanager:open', {path, ...options});
    await panel.context.ready;
    await panel.sessionContext.ready;
    jupyterapp.shell.collapseLeft();
    await jupyterapp.commands.execute('notebook:run-all-cells');
    return panel.sessionContext.session.kernel.id;
}"""
EXECUTE = "([command, given]) => jupyterapp.commands.execute(command, given).then(() => null)"
CELLS = """async path => {
    const panel = await jupyterapp.commands.execute('docmanager:open', {path});
    return [...panel.content.model.cells].map(cell => cell.sharedModel.toJSON())
        .filter(cell => cell.cell_type === 'code');
}"""
FRAMES = """() => new Promise(resolve =>
    requestAnimationFrame(() => requestAnimationFrame(resolve)))"""
SETTLED = """notebook => [...notebook.querySelectorAll('.pipekit-timeline, .pipekit-chart')].every(box => {
    const canvas = box.querySelector(':scope > canvas');
    if (!canvas) return box.clientWidth === Number(box.dataset.width);
    return box.clientWidth === Number(canvas.dataset.width)
        && getComputedStyle(box).color === canvas.dataset.color;
})"""
"""Whether every picture was painted as wide as its box is, and in the colour of the page's text."""
WIDTHS = {"laptop": 1280, "phone": 390}
SCREENS = (1440, "light"), (390, "dark")
"""Of pages without a kernel: each theme is tried once."""
PAINTED = ".pipekit-timeline > canvas[data-painted], .pipekit-chart[data-painted]"


class Lab:
    """JupyterLab's page, with what it complained of and whom it asked.

    Attributes:
        page: the only one.
        errors: the console's, and exceptions.
        hosts: that were sent a request.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.errors: list[str] = []
        self.hosts: set[str] = set()
        self._kernel: str | None = None
        self._begun: set[str] = set()
        page.on("console", self._note)
        page.on("pageerror", lambda error: self._fail(error.stack or str(error)))
        page.on("request", lambda request: self._ask(request.url))
        page.on("websocket", lambda socket: self._ask(socket.url))

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url')})")

    def _fail(self, stack: str) -> None:
        # JupyterLab itself may remove a cell's node twice when notebooks change places.
        frames = [line for line in stack.splitlines() if line.strip().startswith("at ")]
        if not frames or not all("/static/lab/" in frame for frame in frames):
            self.errors.append(stack)

    def _ask(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("blob", "data"):
            self.hosts.add(parts.hostname or url)

    def run(self, path: str, *, own_kernel: bool = False) -> None:
        """Open a notebook and run all its cells, without waiting for their end.

        Args:
            path: below the served folder.
            own_kernel: whether it gets one; the others share one, so that torch is loaded once.
        """
        kernel = self.page.evaluate(
            OPEN, {"path": path, "kernel": None if own_kernel else self._kernel}
        )
        self._kernel = self._kernel if own_kernel else kernel

    def show(self, path: str) -> Locator:
        """Bring an opened notebook to the front and return it."""
        self.page.evaluate(EXECUTE, ["docmanager:open", {"path": path}])
        return self.front()

    def front(self) -> Locator:
        """Return the notebook that is seen."""
        return self.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")

    def painted(self, notebook: Locator) -> None:
        """Wait until an explorer has painted something."""
        notebook.locator(PAINTED).first.wait_for(timeout=1000 * CELLS_S)

    def opened(self, name: str) -> Locator:
        """Show an explorer's notebook, run if it has not been yet, with its figures; return it."""
        path = f"{name}.ipynb"
        if path not in self._begun:
            self.run(path)
            self._begun.add(path)
        notebook = self.show(path)
        notebook.locator(".pipekit-chart, .pipekit-timeline").first.wait_for()
        self.painted(notebook)
        return notebook

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of the page."""
        deadline = time.monotonic() + CELLS_S
        while not holds():
            assert time.monotonic() < deadline, "it has not come to be"
            self.page.wait_for_timeout(20)

    def settled(self, notebook: Locator) -> None:
        """Wait until a notebook's pictures are those of the page's width and theme."""
        self.page.evaluate(FRAMES)
        self.until(lambda: notebook.evaluate(SETTLED))

    def photographed(self, name: str, folder: Path) -> None:
        """Take a picture as wide as a laptop's in the dark theme, and as a phone's in the light."""
        notebook, size = self.front(), self.page.viewport_size
        assert size is not None
        for theme, (device, width) in zip(("Dark", "Light"), WIDTHS.items(), strict=True):
            self.theme(theme)
            self.page.set_viewport_size({**size, "width": width})
            self.settled(notebook)
            if device == "phone":
                notebook.locator(PAINTED).first.evaluate("each => each.scrollIntoView()")
            path = folder / f"{name}_{theme.lower()}_{device}.png"
            self.page.screenshot(path=path, scale="css")
        self.page.set_viewport_size(size)
        self.settled(notebook)
        notebook.locator(".jp-Cell").first.scroll_into_view_if_needed()

    def cells(self, path: str) -> list[dict[str, Any]]:
        """Return the code cells with their outputs, when the last of them has run."""
        cells: list[dict[str, Any]] = []

        def ended() -> bool:
            cells[:] = self.page.evaluate(CELLS, path)
            failed = any(o["output_type"] == "error" for cell in cells for o in cell["outputs"])
            return failed or bool(cells[-1]["execution_count"])

        self.until(ended)
        return cells

    def theme(self, name: str) -> None:
        """Change to JupyterLab's "Light" or "Dark" theme."""
        light = "true" if name == "Light" else "false"
        self.page.evaluate(EXECUTE, ["apputils:change-theme", {"theme": f"JupyterLab {name}"}])
        self.page.wait_for_selector(f'body[data-jp-theme-light="{light}"]', state="attached")


@contextmanager
def chromium(path: str) -> Iterator[Browser]:
    """Start a headless Chromium."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"] if os.geteuid() == 0 else []
        )
        yield browser
        browser.close()


@contextmanager
def jupyterlab(folder: Path, browser: Browser, scratch: Path) -> Iterator[Lab]:
    """Serve a folder by a JupyterLab that reads and writes no settings of the user's.

    Args:
        folder: with the notebooks.
        browser: that opens it.
        scratch: for settings and logs.
    """
    settings = scratch / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(QUIET))
    folders = {
        name: str(scratch / name)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", f"--ServerApp.root_dir={folder}"]
    command += ["--LabApp.expose_app_in_browser=True"]
    with open(scratch / "jupyterlab.log", "w") as log:
        server = subprocess.Popen(
            command,
            env={
                **os.environ,
                **folders,
                "JUPYTERLAB_SETTINGS_DIR": str(scratch / "settings"),
                "OMP_NUM_THREADS": "1",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        page = browser.new_page(viewport={"width": WIDTHS["laptop"], "height": 1400})
        page.set_default_timeout(1000 * START_S)
        lab = Lab(page)
        address = _address(Path(folders["JUPYTER_RUNTIME_DIR"]), server)
        page.goto(f"{address['url']}lab?token={address['token']}")
        page.wait_for_function("window.jupyterapp")
        page.evaluate("jupyterapp.restored.then(() => null)")
        yield lab
        page.close()
    finally:
        server.terminate()  # its kernels with it
        server.wait(timeout=20)


def _address(runtime: Path, server: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Return what the server has written about itself, when it answers."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError, ValueError, StopIteration):  # it is still starting
            found: dict[str, Any] = json.loads(next(runtime.glob("jpserver-*.json")).read_text())
            with urlopen(f"{found['url']}api", timeout=START_S):
                return found
        time.sleep(0.05)
    raise RuntimeError(f"JupyterLab has not started: see {runtime.parent / 'jupyterlab.log'}")
