"""Writes files that are there whole or not at all, whatever ends the process or the machine."""

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace a file by one with this text; one that cannot be written leaves the old one."""
    part = path.with_name(f"{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync(path.parent)


def sync(folder: Path) -> None:
    """Let a rename in a folder reach the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
