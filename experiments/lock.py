"""Write requirements.lock: each package that an installation takes, with its version and hash.

    make lock

pip resolves ``.[dev]`` for this machine without installing it.  ``pip install --require-hashes -r
requirements.lock`` then takes these very files, and ``pip install --no-deps -e .`` adds pipekit.
"""

import json
import platform
import subprocess
import sys
from pathlib import Path

import typer

LOCK = Path("requirements.lock")


def main() -> None:
    """Resolve an installation on this machine, and write requirements.lock."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    asked = [*command, "--disable-pip-version-check", "--report", "-", ".[dev]"]
    resolved = subprocess.run(asked, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [
        f"{package['metadata']['name']}=={package['metadata']['version']} "
        f"--hash=sha256:{package['download_info']['archive_info']['hashes']['sha256']}"
        for package in json.loads(resolved)["install"]
        if "dir_info" not in package["download_info"]  # pipekit itself
    ]
    where = f"{platform.machine()} {sys.platform}, Python {platform.python_version()}"
    about = f"# The files of a `pip install '.[dev]'` on {where}; made by `make lock`."
    LOCK.write_text("\n".join([about, *sorted(lines, key=str.lower)]) + "\n", encoding="utf-8")
    print(f"{LOCK}: {len(lines)} packages")


if __name__ == "__main__":
    typer.run(main)
