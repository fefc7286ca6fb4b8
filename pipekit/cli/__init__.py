"""The command line: draw schedules, train with them, run experiments.

Each command imports what it needs when it runs, so that ``--help`` does not wait for torch.
"""

import inspect
import os
import re
from collections.abc import Callable
from copy import copy
from importlib.metadata import version
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperGroup

from pipekit.cli.check import check
from pipekit.cli.claim import claim
from pipekit.cli.cluster import cluster
from pipekit.cli.common.options import SHARED
from pipekit.cli.demo import demo
from pipekit.cli.experiments import report, run
from pipekit.cli.explain import explain
from pipekit.cli.parity import parity
from pipekit.cli.plan import plan
from pipekit.cli.profile import profile
from pipekit.cli.published import published
from pipekit.cli.recommend import recommend
from pipekit.cli.schedule import schedule
from pipekit.cli.search import search
from pipekit.cli.simulate import simulate
from pipekit.cli.train import train
from pipekit.extras import with_remedy


class _Commands(TyperGroup):
    """Turns wrong input into one sentence and exit code 2; any other exception is a bug."""

    def invoke(self, ctx: Any) -> Any:
        ctx.color = False if os.environ.get("NO_COLOR") else None
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # the reader of our output has seen enough, as head does
            raise
        except (ModuleNotFoundError, ValueError, TypeError, OSError, MemoryError) as error:
            if isinstance(error, MemoryError):
                said = "this needs more memory than there is: choose smaller numbers"
            elif isinstance(error, ModuleNotFoundError):
                said = str(with_remedy(error))
            else:
                said = str(error)
            from pipekit.reading import printable

            said = printable(" ".join(said.split()))
            typer.secho(f"error: {said}", fg="red", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=_Commands,
    rich_markup_mode="rich",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)


def _help(function: Callable[..., None]) -> str:
    """Return a command's help from its docstring, and give its options theirs.

    They stand below "Args:", or in :data:`SHARED`.  A paragraph is a line, which the terminal
    breaks; examples, marked by a backspace for click, keep their lines.
    """
    text, _, arguments = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    told = dict(_ARGUMENT.findall(arguments))
    hints: dict[str, Any] = function.__annotations__
    for name, hint in hints.items():
        kind, *given = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        if name in told:
            flag = [f"--{name.replace('_', '-')}"] if kind is bool else []
            option = copy(given[0]) if given else typer.Option(*flag)
            option.help = " ".join(told[name].split())
            hints[name] = Annotated[kind, option]
        elif not given and name in SHARED:
            hints[name] = Annotated[kind, SHARED[name]]
    paragraphs = text.split("\n\n")
    return "\n\n".join(p if p.startswith("\b") else p.replace("\n", " ") for p in paragraphs)


_COMMANDS = (
    *(demo, schedule, check, profile, plan, recommend, simulate, search, train),
    *(explain, parity, published, run, report, claim, cluster),
)
for command in _COMMANDS:
    app.command(help=_help(command))(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pipekit {version('pipekit')}")
        raise typer.Exit


def _pipekit(
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """The laboratory for pipeline-parallel training.

    Begin with [b]demo[/b]. Draw a method ([b]schedule[/b]), train with it ([b]train[/b]), or run an
    experiment's notebooks ([b]run[/b]) and see which of the papers' claims hold ([b]report[/b],
    one of them: [b]claim[/b]).
    Predict the cost of a run ([b]profile[/b], [b]plan[/b], [b]simulate[/b]), find a schedule
    ([b]search[/b]) or a parallelism for it ([b]recommend[/b]), and train over really slow links
    ([b]cluster[/b]). Look at what others made: prove their order of messages ([b]check[/b]), say
    why a recorded run was slow ([b]explain[/b]), judge a trainer's gradients ([b]parity[/b]), and
    see how far predictions of published trainings are off ([b]published[/b]).
    """


app.callback(help=_help(_pipekit))(_pipekit)
