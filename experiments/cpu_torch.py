"""Install torch and torchvision for CPUs, where pip finds two that import together.

``make`` calls it before all else: PyPI's torch brings gigabytes of CUDA along.  The user's own pip
settings say where to look.  Without a pair, and where there is a GPU, nothing is changed.
"""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from shutil import which

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
NAMES = "torch", "torchvision"


def main(python: str = sys.executable) -> None:
    """Install the pair for an interpreter, and keep it if it imports."""
    pair = [] if which("nvidia-smi") else found(python)
    if not pair:
        return
    print(f"found for CPUs, and taken in place of PyPI's: {' '.join(pair)}")
    pip(python, "install", *pair)
    if subprocess.run([python, "-c", f"import {', '.join(NAMES)}"], capture_output=True).returncode:
        print("they do not import together: PyPI's it is")
        pip(python, "uninstall", "--yes", *NAMES)


def found(python: str) -> list[str]:
    """Return the newest torch for CPUs with the torchvision that pip sets beside it, if any."""
    wanted = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]["torch"]
    needs = [each for each in wanted if re.match(r"torch(vision)?\b", each)]
    listed = pip(python, "index", "versions", NAMES[0])
    for version in dict.fromkeys(re.findall(r"[\w.]+\+cpu", listed)):
        asked = [*needs, f"{NAMES[0]}=={version}"]
        how = "--quiet", "--dry-run", "--ignore-installed", "--report", "-"
        report = pip(python, "install", *how, *asked)
        chosen = [each["metadata"] for each in json.loads(report or "{}").get("install", [])]
        pair = [f"{each['name']}=={each['version']}" for each in chosen if each["name"] in NAMES]
        if len(pair) == len(NAMES) and all(each.endswith("+cpu") for each in pair):
            return sorted(pair)
    return []


def pip(python: str, *arguments: str) -> str:
    """Return the output of pip for an interpreter, empty if it fails."""
    command = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True).stdout


if __name__ == "__main__":
    main(*sys.argv[1:])
