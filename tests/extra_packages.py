"""Install an extra from pyproject.toml into its own folder, leaving the tests' environment unchanged."""

import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]


def folder_with(extra: str) -> Path:
    """Return a folder that holds the extra and those of the packages it needs that are not installed.

    Skips the test where pip cannot install them.
    """
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    key = hashlib.sha256(LOCK.read_bytes() + " ".join(wanted).encode()).hexdigest()[:8]
    folder = ROOT / ".pytest_cache" / f"{extra}-{key}"
    if not folder.is_dir():
        report = json.loads(_pip("--dry-run", "--report", "-", "--constraint", str(LOCK), *wanted))
        missing = [f"{each['metadata']['name']}=={each['metadata']['version']}" for each in report["install"]]
        _pip("--no-deps", "--target", str(folder), *missing)
    return folder


def folder_with_alone(*packages: str) -> Path:
    """Return a folder that holds these packages, "name==version", without what they need.

    Skips the test where pip cannot install them.
    """
    folder = ROOT / ".pytest_cache" / f"alone-{hashlib.sha256(' '.join(packages).encode()).hexdigest()[:8]}"
    made = folder / "complete"
    if not made.is_file():
        _pip("--no-deps", "--upgrade", "--target", str(folder), *packages)
        made.touch()
    return folder


def _pip(*arguments: str) -> str:
    done = subprocess.run([*PIP, *arguments], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"pip could not install {arguments[-1]}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout
