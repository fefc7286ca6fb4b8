"""The grader of the exercise sheet: it knows digests of the answers, to three digits."""

import hashlib
import json
from pathlib import Path

import answers
import pytest

HERE = Path(__file__).parent
STUDENT = (HERE / "student.txt").read_text(encoding="utf-8")
DIGESTS = json.loads((HERE / "digests.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", DIGESTS)
def test_answer(name: str) -> None:
    answer = getattr(answers, name)
    assert answer is not None, f"{name} has no answer yet in answers.py"
    text = f"{STUDENT}/{name}/{float(answer):.3g}"
    right = hashlib.sha256(text.encode()).hexdigest() == DIGESTS[name]
    assert right, f"{name} = {answer} is not right to three digits"
