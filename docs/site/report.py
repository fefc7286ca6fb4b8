"""The newest run's report as a page of the site: its links and pictures are the site's own."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

NO_RUN = (
    '<!doctype html><html lang="en"><title>No report</title>'
    "<main><h1>No run is here yet</h1><p><code>make papers</code> makes one.</p></main></html>"
)
_ADDRESS = re.compile(r'(href|src)="([^"#]+)(#[^"]*)?"')


def page(root: Path, static: Path, gallery: Mapping[str, str]) -> str:
    """Return the report's HTML, for ``report.html`` among the site's static files.

    What the site does not have is no link any more.
    """
    newest = sorted((root / "results/runs").glob("*/report.html"))
    if not newest:
        return NO_RUN
    run = newest[-1].parent

    def target(link: re.Match[str]) -> str:
        path = Path(link[2])
        to: str | None = None
        if path.suffix in (".ipynb", ".html"):
            page = gallery.get(path.stem)
            to = page and f"../gallery/{page}.html"
        elif (run / path).is_file():
            to = Path("report", *path.parts[-2:]).as_posix()
            (static / to).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run / path, static / to)
        return f'{link[1]}="{to}{link[3] or ""}"' if to else ""

    return _ADDRESS.sub(target, newest[-1].read_text(encoding="utf-8"))
