"""Start JupyterLab set up for learners: the course's map, a kernel chosen for each notebook, no pop-ups, and nothing
loaded from the network."""

import json
import os
import secrets
import shutil
import sys
import webbrowser
from pathlib import Path

COURSE = Path(__file__).resolve().parent.parent
FIRST_LESSON = "notebooks/00_welcome.ipynb"
# JupyterLab's saved layout. On a small screen, the file list would take a third of the width, so a click opens it.
FOLDED = {"collapsed": True, "visible": True, "current": None, "widgets": []}
FIRST_LAYOUT = {
    "data": {"layout-restorer:data": {"main": {"dock": None}, "left": FOLDED, "right": FOLDED}},
    "metadata": {"id": "default"},
}
SETTINGS = Path(__file__).parent / "jupyterlab"
# The settings that adapt JupyterLab to the course, however it is started.
OF_COURSE = {
    "ServerApp.contents_manager_class": "helpers.course_contents.CourseContents",
    "ServerApp.kernel_websocket_connection_class": "helpers.prompt_websocket.PromptConnection",
    "LabApp.app_settings_dir": str(SETTINGS),
    "LabApp.custom_css": True,
    # A guess's input field runs the cells that answer it.
    "LabApp.expose_app_in_browser": True,
}


def open_lab(port: int = 8888, browser: bool = True, options: list[str] | None = None) -> None:
    """Serve the course until Control-C, on `port` or the next free one, and open its map.

    port: the first port to try, 1 to 65535.
    browser: open one, if this machine has one; the address is printed either way, on a line of its own.
    options: further options for JupyterLab; they override the course's own.
    Raises FileNotFoundError if the lessons are not next to the package, ValueError for an invalid port.
    """
    if not 1 <= port <= 65535:
        raise ValueError(f"port {port} is invalid: choose one from 1024 to 65535")
    if not (COURSE / FIRST_LESSON).is_file():
        raise FileNotFoundError(
            f"no lessons in {COURSE}: install the course from its own folder (pip install -e .), "
            "or, if a lesson is gone, build it again (make notebooks)"
        )
    # Keep the learner's own Jupyter settings, extensions, kernels and open tabs apart from the course's.
    # These are read when jupyterlab is imported.
    home = Path(sys.prefix) / "share" / "kernel-fusion-course"
    os.environ["JUPYTER_CONFIG_DIR"] = str(home / "config")
    os.environ["JUPYTER_DATA_DIR"] = str(home / "data")
    os.environ["JUPYTER_RUNTIME_DIR"] = str(home / "runtime")
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"
    # Lessons use `fusion check ...`, so JupyterLab's terminals must find it. A login shell would overwrite PATH.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    shell = os.environ.get("SHELL") or shutil.which("sh")
    for name in ("JUPYTER_PATH", "JUPYTER_CONFIG_PATH"):
        os.environ.pop(name, None)
    custom = home / "config" / "custom"
    custom.mkdir(parents=True, exist_ok=True)
    shutil.copy(SETTINGS / "custom.css", custom)
    from jupyterlab.labapp import LabApp
    from jupyterlab_server.workspaces_handler import WorkspacesManager

    workspaces = WorkspacesManager(str(home / "workspaces"))
    if all(each["metadata"]["id"] != FIRST_LAYOUT["metadata"]["id"] for each in workspaces.list_workspaces()):
        workspaces.save(FIRST_LAYOUT["metadata"]["id"], json.dumps(FIRST_LAYOUT))

    has_browser = browser and browser_found()
    settings = {
        "ServerApp.root_dir": COURSE,
        "ServerApp.port": port,
        # Containers run as root.
        "ServerApp.allow_root": True,
        "ServerApp.open_browser": has_browser,
        "Application.log_level": "WARN",
        "ServerApp.terminado_settings": {"shell_command": [shell]},
        # Set it, so that the server doesn't announce its own.
        "IdentityProvider.token": secrets.token_hex(24),
        "LabApp.default_url": f"/lab/tree/{first_page()}",
        "LabApp.user_settings_dir": home / "settings",
        "LabApp.workspaces_dir": home / "workspaces",
        **OF_COURSE,
        # An extension from elsewhere isn't part of the tested versions.
        "LabApp.extension_manager": "readonly",
    }
    options = options or []
    given = {option.removeprefix("--").split("=")[0] for option in options}
    server = LabApp.initialize_server(
        [f"--{name}={value}" for name, value in settings.items() if name not in given] + options
    )

    def announce() -> None:
        if server.port != port:
            print(f"Port {port} is busy: using {server.port}.")
        if has_browser:
            print("JupyterLab opens in your browser. If it does not, open this address:")
        else:
            print("Open this address in your browser:")
        print(f"{server.connection_url.rstrip('/')}/lab/tree/{first_page()}?token={server.identity_provider.token}")
        print("Stop JupyterLab with Control-C, twice.", flush=True)

    # Schedule it in the loop: the server starts first, so it's listening by then.
    server.io_loop.add_callback(announce)
    server.start()


def first_page() -> str:
    """Return the map, or the first lesson if the course's folder is not writable."""
    from helpers.course_contents import MAP, write_map

    try:
        write_map(COURSE)
    except OSError:
        return FIRST_LESSON
    return MAP


def browser_found() -> bool:
    """Return whether a browser can open a window here; one that would run inside the terminal does not count."""
    if not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True
