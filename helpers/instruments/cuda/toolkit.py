"""Run NVIDIA's nvcc as a C++ project does: the package's, or the machine's own."""

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path


def cuda_home() -> Path:
    """Return the folder of a CUDA toolkit that has bin/nvcc: the course's package, $CUDA_HOME, or nvcc's on the path.

    Raises:
        FileNotFoundError: there is none.
    """
    package = importlib.util.find_spec("nvidia")
    folders = [Path(root) / "cu13" for root in (package.submodule_search_locations if package else ())]
    folders += [Path(os.environ[name]) for name in ("CUDA_HOME",) if os.environ.get(name)]
    if found := shutil.which("nvcc"):
        folders.append(Path(found).resolve().parents[1])
    for folder in folders:
        if (folder / "bin/nvcc").is_file():
            return folder
    raise FileNotFoundError(
        "no nvcc here: `pip install nvidia-cuda-nvcc nvidia-cuda-runtime`, or install CUDA's toolkit"
    )


def in_toolkit(command: str, folder: Path, hide: Iterable[str] = ("Compile time",)) -> str:
    """Run a shell command in a folder with nvcc on its path, and return what it prints, errors included.

    hide: drop lines that contain one of these words, such as times that differ between runs.

    Raises:
        FileNotFoundError: there is no nvcc, or no C++ compiler, which nvcc calls.
    """
    home = cuda_home()
    if shutil.which("g++") is None:
        raise FileNotFoundError("no g++ here, which nvcc calls for the host's code: install your system's C++ compiler")
    libraries = ":".join(str(home / name) for name in ("lib", "lib64") if (home / name).is_dir())
    environment = os.environ | {"PATH": f"{home / 'bin'}:{os.environ['PATH']}", "LIBRARY_PATH": libraries}
    for name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):  # an outer `make` would make the inner one print its folder
        environment.pop(name, None)
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = done.stdout.splitlines()
    return "\n".join(line for line in lines if not any(words in line for words in hide))
