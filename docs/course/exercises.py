"""The exercise sheet: questions with numbers of a student's own, and pipekit's answers.

    python exercises.py NAME [NAME ...] --output FOLDER

writes for each student a folder below ``FOLDER/public`` with the sheet, its grader and the
assignment, and below ``FOLDER/withheld`` the answers and a solution of the assignment.
"""

import hashlib
import json
import random
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path

import typer

from pipekit.clusters import V100, Cluster, Level
from pipekit.profiling import Profile
from pipekit.schedules import Op, check, flush, gpipe, pipedream, slots
from pipekit.simulation import simulate
from pipekit.traces import Trace

HERE = Path(__file__).parent
SOLUTION = re.compile(r"^( *)# solution: (part \d)\n.*?^ *# end\n", re.MULTILINE | re.DOTALL)
Exercise = tuple[str, str, float]  # name, question and answer


def exercises(student: str) -> Iterator[Exercise]:
    """Yield a student's exercises; every answer is computed by pipekit."""
    draw = random.Random(zlib.crc32(student.encode()))
    p, b = draw.randint(3, 6), draw.randint(2, 4)
    m, s = p + draw.randint(1, 4), draw.randint(1, p - 2)
    cost = {Op.FORWARD: 1.0, Op.BACKWARD: float(b)}
    start = f"{p} stages, {m} microbatches; a forward takes 1 slot, a backward {b}."
    whole = Trace.from_schedule(gpipe(p, m).take(1), cost)
    yield "gpipe_slots", f"{start} How many slots does one batch of GPipe take?", whole.makespan_s
    question = f"{start} Which share of them is the bubble, in percent?"
    yield "gpipe_bubble", question, 100 * whole.bubble
    report = check(flush(p, m).take(1))
    question = f"{start} How many microbatches has stage {s} in flight at most, in 1F1B?"
    yield "in_flight", question, report.peak_in_flight[s]
    versions = check(pipedream(p).take(m)).peak_versions[s]
    question = f"PipeDream on {p} stages: how many weight versions does stage {s} keep at most?"
    yield "versions", question, versions
    begin = slots(flush(p, m).take(1), cost)[s][-2, 1]  # its last pass; an update takes no time
    yield "stage_ends", f"{start} When does stage {s} end its last backward, in 1F1B?", begin
    link = draw.choice([0.5, 1.0])
    question = (
        f"1F1B on {p} stages, forwards of 1 slot and backwards of {b}; a message takes {link:g}. "
        "After how many slots does stage 0 end one more microbatch, in the long run?"
    )
    costs = Profile.uniform(p, 1.0, b)
    cluster = Cluster("c", V100, (Level("l", p, 1e18, latency_s=link),))
    few, many = (
        simulate(flush(p, rounds * p).take(1), costs, cluster=cluster).makespan_s
        for rounds in (20, 40)
    )
    yield "period", question, (many - few) / (20 * p)


def digest(student: str, name: str, answer: float) -> str:
    """Return the public grader's form of an answer: to three digits, and not in clear."""
    return hashlib.sha256(f"{student}/{name}/{answer:.3g}".encode()).hexdigest()


def write(student: str, output: Path) -> None:
    """Write a student's folder, and the one that is withheld."""
    public, withheld = output / "public" / student, output / "withheld" / student
    for folder in (public, withheld):
        folder.mkdir(parents=True, exist_ok=True)
    asked = [*exercises(student)]
    questions = [f"{n}. `{name}`: {text}" for n, (name, text, _) in enumerate(asked, start=1)]
    sheet = "\n".join([f"# Exercises for {student}", "", *questions, "", "Write three digits."])
    (public / "sheet.md").write_text(f"{sheet}\n", encoding="utf-8")
    blank = "".join(f"{name} = None\n" for name, _, _ in asked)
    (public / "answers.py").write_text(blank, encoding="utf-8")
    digests = {name: digest(student, name, answer) for name, _, answer in asked}
    (public / "digests.json").write_text(json.dumps(digests, indent=1), encoding="utf-8")
    (public / "student.txt").write_text(student, encoding="utf-8")
    shutil.copy(HERE / "test_answers.py", public)
    shutil.copy(HERE / "assignment" / "test_pipeline.py", public)
    solved = (HERE / "assignment" / "pipeline.py").read_text(encoding="utf-8")
    (public / "pipeline.py").write_text(stripped(solved), encoding="utf-8")
    (withheld / "pipeline.py").write_text(solved, encoding="utf-8")
    answers = "".join(f"{name} = {answer:.3g}\n" for name, _, answer in asked)
    (withheld / "answers.py").write_text(answers, encoding="utf-8")


def stripped(solved: str) -> str:
    """Return a solution without the lines that its marks enclose."""
    return SOLUTION.sub(r'\1raise NotImplementedError("\2")\n', solved)


def main(students: list[str], output: Path = Path("course")) -> None:
    """Write each student's exercise sheet, and pipekit's answers, below a folder."""
    for student in students:
        if not re.fullmatch(r"[\w.-]+", student):
            raise typer.BadParameter(
                f"{student!r} is not a folder's name: use letters, digits, '.', '-' and '_'"
            )
        write(student, output)
    print(f"hand out the folders in {output / 'public'}; keep {output / 'withheld'}")


if __name__ == "__main__":
    typer.run(main)
