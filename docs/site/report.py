"""The newest run's report as a page of the site: its links lead to the site's own pages."""

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from pipekit.ledger.report import source

NO_RUN = "<!doctype html><title>No report</title><p>No run is here yet: <code>make papers</code>"
_HREF = re.compile(r'href="([^"#]+)(#[^"]*)?"')


def page(root: Path, static: Path, gallery: Mapping[str, str], code: Callable[[Path], str]) -> str:
    """Return the report's HTML, for ``report.html`` among the site's static files.

    What the site does not have is no link any more.

    Args:
        root: of the checkout.
        static: where the tables that it links to are copied.
        gallery: the notebooks' pages below ``gallery``, by the names that runs give them.
        code: writes the page of a file of the checkout, and returns its name.
    """
    newest = sorted((root / "results/runs").glob("*/report.html"))
    if not newest:
        return NO_RUN
    run = newest[-1].parent

    def target(link: re.Match[str]) -> str:
        path = Path(link[1])
        to = None
        if path.is_relative_to(source.FOLDER):
            here = root / path.relative_to(source.FOLDER).with_suffix("")
            to = here.is_file() and f"../{code(here).removesuffix('.md')}.html"
        elif path.suffix in (".ipynb", ".html"):
            to = path.stem in gallery and f"../gallery/{gallery[path.stem]}.html"
        elif (run / path).is_file():
            to = Path("report", *path.parts[-2:]).as_posix()
            (static / to).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(run / path, static / to)
        return f'href="{to}{link[2] or ""}"' if to else ""

    return _HREF.sub(target, newest[-1].read_text(encoding="utf-8"))
