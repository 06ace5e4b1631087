"""Set up the course from the first cell of a notebook opened elsewhere, such as on Colab, and print the GPU's name.

    !git clone --quiet ADDRESS course
    %run course/helpers/colab.py

Installed packages stay as they are, above all PyTorch and its CUDA, so nothing that's running needs a restart. Missing
packages are installed in the version that pyproject.toml pins. After that, notebooks/ is the working folder, and the
lessons' cells run.
"""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib.metadata import distributions
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
VIEW = "application/vnd.jupyter.widget-view+json"
# The server that shows the notebook is already installed; nbval and pytest are for testing notebooks.
NOT_IN_A_KERNEL = {"ipykernel", "jupyterlab", "nbval", "pytest"}


def named(requirement: str) -> str:
    """Return the package in a requirement such as "ml_dtypes==0.6.0", in the form that pip compares:
    "ml-dtypes"."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement)[0]).lower()


def missing(pyproject: str, installed: set[str]) -> list[str]:
    """Return the pinned requirements that a kernel needs but lacks; `installed` has names in the form that pip
    compares.

    Their own dependencies are left to pip, which keeps installed packages.
    """
    pins = tomllib.loads(pyproject)["project"]["dependencies"]
    return [pin for pin in pins if named(pin) not in installed | NOT_IN_A_KERNEL]


def install(requirements: list[str], kept: dict[str, str]) -> None:
    """Install missing packages, without changing those in `kept`, name -> version.

    Raises:
        RuntimeError: pip failed; with the last lines of its output.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("".join(f"{name}=={version}\n" for name, version in kept.items()))
        constraints.flush()
        asked = [[*pip, "-c", constraints.name, *requirements]] if requirements else []
        for command in (*asked, [*pip, "--no-deps", "--editable", str(COURSE)]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError("pip could not install the packages: " + done.stderr.strip()[-1000:])


def show_widgets() -> None:
    """Enable Colab's widgets: it has ipywidgets 7, which shows a widget but exposes no view, and supports custom
    widgets only on request."""
    import ipywidgets

    if not hasattr(ipywidgets.DOMWidget, "_repr_mimebundle_"):
        ipywidgets.DOMWidget._repr_mimebundle_ = lambda self, **_: {
            "text/plain": repr(self),
            VIEW: {"version_major": 2, "version_minor": 0, "model_id": self.model_id},
        }
    if importlib.util.find_spec("google") and importlib.util.find_spec("google.colab"):
        from google.colab import output

        output.enable_custom_widget_manager()


def main() -> None:
    needs = tomllib.loads((COURSE / "pyproject.toml").read_text())["project"]["requires-python"]
    if not (3, 11) <= sys.version_info < (3, 15):
        raise RuntimeError(f"the course needs Python {needs}, and this is {sys.version.split()[0]}")
    kept = {named(each.name): each.version for each in distributions()}
    kept.pop("kernel-fusion-course", None)
    wanted = missing((COURSE / "pyproject.toml").read_text(), set(kept))
    print(f"Installing {', '.join(wanted)}" if wanted else "Everything is installed")
    install(wanted, kept)
    importlib.invalidate_caches()
    sys.path.insert(0, str(COURSE))  # only a new interpreter finds an editable install
    os.chdir(COURSE / "notebooks")
    show_widgets()
    from helpers import doctor

    print(
        "\n".join(str(found()) for found in (doctor.python, doctor.pytorch, doctor.triton, doctor.gpu, doctor.kernels))
    )


if __name__ == "__main__":
    main()
