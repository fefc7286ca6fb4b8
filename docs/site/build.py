"""Build the site from the pages, the methods, the notebooks and the docstrings of a checkout.

``make site`` calls it; nothing is fetched.  Notebooks are shown as the newest run below
``results/runs`` has left them, or without outputs.
"""

import importlib
import inspect
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import costs
import course
import gallery
import methods

import pipekit
from pipekit.ledger import claims, report
from pipekit.schedules.methods.by_name import TABLES

ROOT = Path(__file__).parents[2]
SOURCE, SITE = ROOT / "build" / "site-source", ROOT / "build" / "site"
CONTENTS = {
    "Use it": (
        *("start", "train", "your_model", "cost", "methods", "ops", "hang", "why_slow"),
        *("predictions", "gradients", "own_notebook"),
    ),
    "See it": (
        *("why_pipelines_idle", "course/index", "course/readme", "course/errors"),
        *("methods/index", "gallery/index", "staleness", "papers"),
    ),
    "Look it up": (
        *("api/index", "from_other_tools", "core", "contributing", "about", "artifact", "audit"),
    ),
}
"""The pages by headings; those that no function makes are texts below docs/."""
LINK = re.compile(r"\]\((?!#|/|https?:|mailto:)([^)#\s]+)(#[^)]*)?\)")
"""A link to a file of the checkout; one that begins with / is the site's own already."""


def main() -> int:
    """Write the sources, build the pages, and check that every link leads somewhere."""
    from sphinx.cmd.build import build_main  # here, since tests look at the rest without it

    for folder in (SOURCE, SITE):  # pages that are gone would stay
        shutil.rmtree(folder, ignore_errors=True)
    SOURCE.mkdir(parents=True)
    shutil.copy(ROOT / "docs/site/conf.py", SOURCE)
    static = SOURCE / "_static"
    static.mkdir()
    for name in ("site.css", "site.js", "scorer.js", "favicon.svg"):
        shutil.copy(ROOT / "docs/site" / name, static)
    shutil.copytree(ROOT / "results/reference", SOURCE / "reference")
    shutil.copytree(ROOT / "docs/pictures", SOURCE / "pictures")
    notebooks = gallery.pages(ROOT, SOURCE, linked)
    report.write(claims.outcomes(ROOT / "results/reference/papers"), static)
    method_pages()
    texts = {f"course/{path.stem.lower()}": path for path in (ROOT / "docs/course").glob("*.md")}
    texts |= {path.stem: path for path in (ROOT / "docs").glob("*.md")}
    texts["contributing"] = ROOT / "CONTRIBUTING.md"
    made = {page: linked(path.read_text(), path.parent) for page, path in texts.items()}
    for page, text in (made | course.pages(made["why_pipelines_idle"], static)).items():
        write(page, text)
    reference = [api_page(), *map(api_module, sorted(pipekit._MODULES.values()))]
    write("api/index", f"# API reference\n\n{toctree(reference)}")
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


def toctree(pages: Iterable[str], caption: str = "") -> str:
    """Return the list of pages as Sphinx takes it."""
    told = f":caption: {caption}\n" if caption else ""
    return "```{toctree}\n:maxdepth: 1\n" + told + "\n" + "\n".join(pages) + "\n```\n"


def front() -> str:
    """Return the first page: README's, with the site's contents."""
    text = linked((ROOT / "README.md").read_text(), ROOT)
    text = text.replace("results/reference/", "reference/")
    pages = "".join(toctree(names, heading) for heading, names in CONTENTS.items())
    every = '<a href="_static/report.html">The report</a> has every claim beside what we found.'
    return f"{text}\n{every}\n\n{pages}"


def linked(text: str, folder: Path) -> str:
    """Return a page whose links to the checkout's files lead to pages of the site."""

    def target(found: re.Match[str]) -> str:
        path = (folder / found[1]).resolve()
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".md" and path.parent == ROOT / "docs/course":
            return f"](/course/{path.stem.lower()}.md)"
        if path.suffix == ".md" and (path.parent.name == "docs" or path.name == "CONTRIBUTING.md"):
            return f"](/{path.stem.lower()}.md{found[2] or ''})"
        if path.suffix in (".svg", ".png", ".gif"):
            return f"](/{name.removeprefix('results/').removeprefix('docs/')})"
        if name.startswith("notebooks"):
            page = name.removeprefix("notebooks/") if path.is_file() else "index.md"
            return f"](/gallery/{page})"
        if path.is_dir():
            return "](/about.md)"
        return f"](/{code_page(path)})"

    return LINK.sub(target, text)


def code_page(path: Path) -> str:
    """Write the page that shows a file of the checkout; return its name."""
    name = path.relative_to(ROOT).as_posix()
    page = f"source/{name}.md"
    language = {".py": "python", ".yaml": "yaml", ".yml": "yaml"}.get(path.suffix, "text")
    code = f"``````{language}\n{path.read_text(encoding='utf-8')}\n``````\n"
    write(f"source/{name}", f"---\norphan: true\n---\n# {name}\n\n{code}")
    return page


def method_pages() -> None:
    """Write a page a method, and the one that sets them side by side."""
    guide, all_costs = (ROOT / "docs/methods.md").read_text(), costs.table()
    for name in TABLES:
        write(
            f"methods/{name}",
            linked(methods.page(name, guide, SOURCE / "methods"), ROOT / "docs"),
        )
    choice = linked(methods.choice(all_costs, guide), ROOT / "docs")
    write("methods/index", f"{choice}\n\n{toctree(TABLES)}")


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
    gathers = hasattr(importlib.import_module(module), "__path__")  # what its parts export
    auto = f".. automodule:: {module}\n   :members:\n" + "   :imported-members:\n" * gathers
    write(f"api/{name}", f"# {module}\n\n```{{eval-rst}}\n{auto}```\n")
    return name


def broken_links(site: Path) -> Iterator[tuple[str, str]]:
    """Yield each page of a built site with its links that lead to no file."""
    for page in site.rglob("*.html"):
        for link in re.findall(r'(?:href|src)="([^"#?]+)', page.read_text(encoding="utf-8")):
            if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists():
                yield page.relative_to(site).as_posix(), link


if __name__ == "__main__":
    sys.exit(main())
