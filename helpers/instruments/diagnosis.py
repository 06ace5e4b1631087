"""Diagnose this machine: what is installed, and whether it can sandbox."""

import os
import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnosis:
    """One line of the report; `remedy` is empty if nothing is missing."""

    subject: str
    state: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.subject:<12}{self.state}" + (f"\n{'':<12}-> {self.remedy}" if self.remedy else "")


def bubblewrap() -> Diagnosis:
    if not shutil.which("bwrap"):
        return Diagnosis("bubblewrap", "missing: there is no sandbox for grading", "apt-get install bubblewrap")
    is_root = os.getuid() == 0
    # As root in namespaces alone: in a user namespace that root made, root would still be root to /proc/sys.
    unshare = "--unshare-ipc --unshare-pid --unshare-net --unshare-uts" if is_root else "--unshare-all"
    command = f"bwrap {unshare} --die-with-parent --ro-bind / / --proc /proc --dev /dev true".split()
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        said = f"it does not end: {error.timeout:.0f} s" if isinstance(error, subprocess.TimeoutExpired) else str(error)
        return Diagnosis(
            "bubblewrap", f"not usable: {said}", "install it again: apt-get install --reinstall bubblewrap"
        )
    if run.returncode == 0:
        return Diagnosis("bubblewrap", "usable" + "; you are root: submissions run as the user nobody" * is_root)
    said = (run.stderr.strip() or f"exit status {run.returncode}").splitlines()[-1]
    if is_root:
        return Diagnosis("bubblewrap", f"not usable by this root: {said}", "grade as another user, who is not root")
    return Diagnosis(
        "bubblewrap",
        f"not usable: {said}",
        "it needs user namespaces: on Ubuntu, sysctl -w kernel.apparmor_restrict_unprivileged_userns=0; a container "
        "must start with --security-opt seccomp=unconfined, apparmor=unconfined, systempaths=unconfined",
    )
