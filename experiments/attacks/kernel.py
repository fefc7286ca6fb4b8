"""Interrupts of cells in a real Jupyter kernel, as by a notebook's stop button.

The kernel gets SIGINT while a cell trains.  Afterwards another cell tells what is left in the
kernel, whose last traceback still holds the whole training.
"""

import ast
import json
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

from experiments.attacks.interrupts import Row, drawn
from pipekit.ledger.batches.execution import ThisInterpreter

ANSWER_S = 60.0  # in which a kernel has answered, also on a busy machine


class Kernel:
    """A kernel that trains in one way.

    Args:
        way: how.
        temporary: its folder for temporary files.
    """

    def __init__(self, way: str, temporary: Path) -> None:
        self._manager: Any = ThisInterpreter(connection_file=str(temporary / "kernel.json"))
        (own := temporary / "own").mkdir()
        self._manager.start_kernel(env={**os.environ, "TMPDIR": str(own)}, cwd=os.getcwd())
        self._client: Any = self._manager.client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=ANSWER_S)
        self._interrupt("import time; time.sleep(60)", 0.5)  # what a kernel itself opens then
        self.run(f"from experiments.attacks.interrupts import Trainings; t = Trainings({way!r})")
        self.seconds = float(self.value("t.seconds"))

    def interrupted(self, moment: float, again: bool) -> Row:
        """Run a cell that trains, and interrupt the kernel at a moment."""
        try:
            answer = self._interrupt("t.run()", moment * self.seconds)
        except Empty:
            # ipykernel drops the request that it is just taking up or answering.  The kernel must
            # answer the next one, and nothing may be left.
            return self._judged(moment, "interrupted", again)._replace(outcome="unanswered")
        outcome = {"ok": "ended", "KeyboardInterrupt": "interrupted"}.get(
            answer.get("ename", answer["status"]), f"{answer.get('ename')}: {answer.get('evalue')}"
        )
        return self._judged(moment, outcome, again)

    def _judged(self, moment: float, outcome: str, again: bool) -> Row:
        row = self.value(f"__import__('json').dumps(t.judged({moment}, {outcome!r}, {again}))")
        return Row(*json.loads(row))

    def run(self, code: str) -> None:
        """Run a cell that must succeed."""
        answer = self._answer(self._client.execute(code))
        if answer["status"] != "ok":
            raise RuntimeError("\n".join(answer["traceback"]))

    def value(self, expression: str) -> Any:
        """Return the value of an expression, a literal."""
        request = self._client.execute("", user_expressions={"value": expression})
        found = self._answer(request)["user_expressions"]["value"]
        if found["status"] != "ok":
            raise RuntimeError("\n".join(found["traceback"]))
        return ast.literal_eval(found["data"]["text/plain"])

    def close(self) -> None:
        """End the kernel."""
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def _interrupt(self, code: str, seconds: float) -> dict[str, Any]:
        """Run a cell, interrupt the kernel after so many seconds, and return its answer."""
        # Else the kernel throws away what is asked next, if that comes soon.
        request = self._client.execute(code, stop_on_error=False)
        time.sleep(seconds)
        self._manager.interrupt_kernel()
        return self._answer(request)

    def _answer(self, request: str) -> dict[str, Any]:
        while True:
            message = self._client.get_shell_msg(timeout=ANSWER_S)
            if message["parent_header"].get("msg_id") == request:
                return dict(message["content"])


def attack(way: str, tries: int, seed: int) -> Iterator[Row]:
    """Yield a row for each of so many interrupts of cells that train in one way."""
    done = 0
    while done < tries:
        draw = random.Random(seed + done)
        with tempfile.TemporaryDirectory(prefix="pipekit-attacks-") as temporary:
            kernel = Kernel(way, Path(temporary))
            try:
                while done < tries:
                    moment, again = drawn(draw, way)
                    try:
                        row = kernel.interrupted(moment, again)
                    except Exception as error:  # no answer, say
                        row = Row(way, moment, "failed", f"{type(error).__name__}: {error}")
                    done += 1
                    yield row._replace(way=f"{way}, in a kernel")
                    if row.failure:
                        break
            finally:
                kernel.close()
