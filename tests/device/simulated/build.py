"""Builds the simulated accelerator once for each version of its source and of torch."""

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import torch
from filelock import FileLock

SOURCE = Path(__file__).with_name("sim.cpp")
# NDEBUG as in torch itself: without it, some of its classes have other fields.
FLAGS = ("-O1", "-std=c++20", "-fPIC", "-shared", "-w", "-DNDEBUG", "-DTORCH_EXTENSION_NAME=_sim")
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pipekit-tests"


def compiler() -> str | None:
    """Return the C++ compiler: what CXX names, or else c++; None if there is none."""
    return shutil.which(os.environ.get("CXX", "c++"))


def missing() -> str | None:
    """Return why the accelerator can be neither built nor loaded here; None if it can."""
    if library().exists():
        return None
    if compiler() is None:
        name = os.environ.get("CXX", "c++")
        return f"the simulated accelerator needs a C++ compiler: {name} is not here (CXX names one)"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    if not header.exists():
        return f"the simulated accelerator needs Python's headers: there is no {header}"
    return None


def library() -> Path:
    """Return where the built module is, or will be: outside of the repository."""
    what = f"{torch.__version__} {torch.compiled_with_cxx11_abi()} {sysconfig.get_platform()}"
    what += " ".join(FLAGS) + sysconfig.get_config_var("SOABI")
    key = hashlib.sha256(SOURCE.read_bytes() + what.encode()).hexdigest()[:16]
    return CACHE / key / "_sim.so"


def built() -> Path:
    """Build the module unless it is there; other processes wait meanwhile. Return its path.

    Raises:
        RuntimeError: if it does not compile, with what the compiler says.
    """
    path = library()
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.exists():  # by another process, which held the lock
            return path
        unfinished = path.with_suffix(f".{os.getpid()}")
        home = Path(torch.__file__).parent
        folders = [home / "include", home / "include/torch/csrc/api/include"]
        folders.append(Path(sysconfig.get_paths()["include"]))
        command = [str(compiler()), *FLAGS, str(SOURCE), "-o", str(unfinished)]
        command += [f"-I{folder}" for folder in folders]
        command += [f"-L{home / 'lib'}", "-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{SOURCE.name} does not compile:\n{done.stderr[-5000:]}")
        unfinished.rename(path)
    return path
