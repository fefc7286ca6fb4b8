"""Build the site from the pages, the methods, the notebooks and the docstrings of a checkout.

``make site`` calls it; nothing is fetched. Sphinx's sources go to ``build/site-source`` and
the pages to ``build/site``; notebooks are shown as the newest run below ``results/runs`` has left
them, or without outputs.
"""

import importlib
import inspect
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import gallery
import pandas as pd
import play

import pipekit
from pipekit import plots, schedules
from pipekit.ledger import claims
from pipekit.oracle.versions import VERSION_READ, Reads
from pipekit.schedules.methods.by_name import METHODS, PER_MINIBATCH
from pipekit.traces import Trace, describe_bubbles

ROOT = Path(__file__).parents[2]
SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
PAGES = ("train", "your_model", "cost", "methods", "staleness", "papers", "from_other_tools")
PAGES += ("about",)
PAPERS = {
    "gpipe": "gpipe",
    "flush": "pipedream-2bw",
    "2bw": "pipedream-2bw",
    "pipedream": "pipedream",
}
LINK = re.compile(r"\]\((?!#|https?:|mailto:)([^)#\s]+)(#[^)]*)?\)")


def main() -> int:
    """Write the sources, build the pages, and check that every link leads somewhere."""
    from sphinx.cmd.build import build_main  # here, since tests look at the rest without it

    shutil.rmtree(SOURCE, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    shutil.copy(ROOT / "docs/site/conf.py", SOURCE)
    shutil.copytree(ROOT / "results/reference", SOURCE / "reference")
    notebooks = gallery.pages(ROOT, SOURCE)
    report()
    write("play", play.page(SOURCE / "_static"))
    methods = [method_page(name) for name in METHODS]
    write("methods/index", index("A page a method", methods))
    write("api/index", index("API reference", [api_page(), *map(api_module, api_modules())]))
    for page in PAGES:
        write(page, linked((ROOT / f"docs/{page}.md").read_text(), ROOT / "docs", ""))
    write("contributing", linked((ROOT / "CONTRIBUTING.md").read_text(), ROOT, ""))
    write("index", front())
    shown = gallery.front(SOURCE, notebooks)
    write("gallery/index", f"# The notebooks\n\n{shown}\n\n{toctree(notebooks)}")
    done = build_main(["-q", "-j", "auto", "-b", "html", str(SOURCE), str(SITE)])
    broken = list(broken_links(SITE))
    for page, link in broken:
        print(f"{page}: {link} leads nowhere", file=sys.stderr)
    print(f"site: {SITE / 'index.html'}")
    return int(bool(done or broken))


def write(page: str, text: str) -> None:
    """Write a page's source."""
    path = SOURCE / f"{page}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def index(title: str, pages: list[str]) -> str:
    """Return a page that lists others, which lie beside it."""
    return f"# {title}\n\n" + toctree(pages)


def toctree(pages: list[str], caption: str = "") -> str:
    """Return the list of pages as Sphinx takes it."""
    told = f":caption: {caption}\n" if caption else ""
    return "```{toctree}\n:maxdepth: 1\n" + told + "\n" + "\n".join(pages) + "\n```\n"


def front() -> str:
    """Return the first page: README's, with the site's contents."""
    text = linked((ROOT / "README.md").read_text(), ROOT, "")
    text = text.replace("results/reference/", "reference/")
    pages = toctree(["train", "your_model", "cost", "methods"], "Use it")
    see = ["play", "methods/index", "gallery/index", "staleness", "papers"]
    pages += toctree(see, "See it")
    pages += toctree(["api/index", "from_other_tools", "contributing", "about"], "Look it up")
    report = '<a href="_static/report.html">The report</a> has every claim beside what we found.'
    return f"{text}\n{report}\n\n{pages}"


def linked(text: str, folder: Path, depth: str) -> str:
    """Return a page whose links to the checkout's files lead to pages of the site.

    Args:
        text: Markdown.
        folder: that its links are relative to.
        depth: from the page to the site's top, as ``../``.
    """

    def target(found: re.Match[str]) -> str:
        path = (folder / found[1]).resolve()
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".md" and (path.parent.name == "docs" or path.name == "CONTRIBUTING.md"):
            return f"]({depth}{path.stem.lower()}.md)"
        if path.suffix == ".svg":
            return f"]({depth}{name.removeprefix('results/')})"
        if name.startswith("notebooks"):
            page = name.removeprefix("notebooks/") if path.is_file() else "index.md"
            return f"]({depth}gallery/{page})"
        if path.is_dir():
            return f"]({depth}about.md)"
        return f"]({depth}{code_page(path)})"

    return LINK.sub(target, text)


def code_page(path: Path) -> str:
    """Write the page that shows a file of the checkout; return its name."""
    name = path.relative_to(ROOT).as_posix()
    page = f"source/{name}.md"
    language = {".py": "python", ".yaml": "yaml", ".yml": "yaml"}.get(path.suffix, "text")
    shown = f"``````{language}\n{path.read_text(encoding='utf-8')}\n``````\n"
    write(f"source/{name}", f"---\norphan: true\n---\n# {name}\n\n{shown}")
    return page


def row(name: str) -> tuple[str, ...] | None:
    """Return a method's row in the table of docs/methods.md, but for its title."""
    title = re.escape(METHODS[name](4, 8, 2).name)
    cells = rf"^\| {title} \| (.+) \| (.+) \| (.+) \| (\[.+\.py\]\(.+\).*) \|$"
    found = re.search(cells, (ROOT / "docs/methods.md").read_text(), re.MULTILINE)
    return found and found.groups()


def method_page(name: str) -> str:
    """Write a method's page: picture, facts, table, equation, the oracle's line, claims."""
    stages, microbatches = 4, 8
    counts = (1, microbatches) if name in PER_MINIBATCH else (microbatches, 1 + (name == "2bw"))
    schedule = METHODS[name](stages, *counts)
    trace, checked = Trace.from_schedule(schedule), schedules.check(schedule)
    paths = plots.save(plots.timeline(trace), SOURCE / "methods" / name, trace.frame)
    text = [f"# {schedule.title}", f"![{schedule.title}]({paths['svg'].name})"]
    text += [
        f"{describe_bubbles(trace.bubbles())}; at most, a worker: weight slots "
        f"{', '.join(map(str, checked.peak_versions))}; microbatches in flight "
        f"{', '.join(map(str, checked.peak_in_flight))} (exact)."
    ]
    if cells := row(name):
        weights, versions, paper, file = cells
        text += [f"**Source:** {paper}. **A microbatch reads** {weights}; versions: {versions}."]
        text += [f"**File:** {linked(file, ROOT / 'docs', '../')}"]
    text += ["## The table", f"```text\n{schedule}\n```"]
    text += [
        "## In words",
        inspect.cleandoc(_function(name).__doc__ or "").partition("\n\nArgs")[0],
    ]
    line = VERSION_READ.get(name.replace("-", "_"), VERSION_READ["sequential"])
    judge = inspect.getsource(line)
    if name in ("paci", "pipedream-no-stashing"):  # forward and backward read different weights
        judge += "\n\n" + inspect.getsource(Reads)
    text += ["## The judge's line", f"```python\n{judge}```"]
    if name in PAPERS:
        theirs = [c for c in claims.load().values() if c.paper == PAPERS[name]]
        stated = [c for c in theirs if c.kind == "equation"]
        text += [f"## Equations of its paper, checked ({len(stated)} of {len(theirs)} claims)"]
        table = pd.DataFrame([(c.where, c.claim, c.value) for c in stated])
        lines = ["| where | claim | value |", "|---|---|---|"]
        cells = table.map(lambda cell: str(cell).replace("|", "\\|"))
        text += ["\n".join([*lines, *(f"| {' | '.join(line)} |" for line in cells.to_numpy())])]
    write(f"methods/{name}", "\n\n".join(text) + "\n")
    return name


def _function(name: str) -> object:
    special = {"2bw": "two_bw"}
    stem = special.get(name, name.replace("-", "_"))
    return getattr(schedules, stem, None) or schedules.pipedream


def api_modules() -> list[str]:
    """Return the public modules."""
    return sorted(pipekit._MODULES.values())


def api_page() -> str:
    """Write the page of what stands in the package itself."""
    text = ["# pipekit"]
    for name in sorted(pipekit._HOMES):
        thing = getattr(pipekit, name)
        kind = "autoclass" if inspect.isclass(thing) else "autofunction"
        members = "   :members:\n" if inspect.isclass(thing) else ""
        where = f"{thing.__module__}.{name}"
        text.append(f"```{{eval-rst}}\n.. {kind}:: {where}\n   :no-index:\n{members}```")
    write("api/pipekit", "\n\n".join(text) + "\n")
    return "pipekit"


def api_module(name: str) -> str:
    """Write a module's page."""
    module = f"pipekit.{name}"
    gathers = hasattr(importlib.import_module(module), "__all__")  # what its parts export
    auto = f".. automodule:: {module}\n   :members:\n" + "   :imported-members:\n" * gathers
    write(f"api/{name}", f"# {module}\n\n```{{eval-rst}}\n{auto}```\n")
    return name


def report() -> None:
    """Put the newest run's report where the site's first page links to, or a page that says how."""
    newest = sorted((ROOT / "results/runs").glob("*/report.html"))
    into = SOURCE / "_static/report.html"
    into.parent.mkdir(parents=True, exist_ok=True)
    if newest:
        shutil.copy(newest[-1], into)
    else:
        into.write_text("<!doctype html><title>No report</title>No run is here: make papers")


def broken_links(site: Path) -> Iterator[tuple[str, str]]:
    """Yield each page of a built site with its links that lead to no file."""
    for page in site.rglob("*.html"):
        if page.name == "report.html":  # its links lead to the run's own files
            continue
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists():
                yield page.relative_to(site).as_posix(), link


if __name__ == "__main__":
    sys.exit(main())
