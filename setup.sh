#!/usr/bin/env bash
# Makes .venv, the course's own Python environment, where it is missing or stale.
#   ./setup.sh        for learners
#   ./setup.sh dev    for authors too: what the tests and the build need
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

fail() {
    echo "setup: $*" >&2
    exit 2
}

[ "$(uname -s)" = Linux ] || fail "Triton runs on Linux only: open this folder in its dev container, or on Windows in WSL2 (see README.md)"

# Two of us at once would each remove the other's half-made environment.
exec 9<pyproject.toml
flock 9

extras=${1:-}
gpu=no
if nvidia-smi -L >/dev/null 2>&1 || [ -e /dev/nvidiactl ]; then gpu=yes; fi

# What .venv was made from, written when it is complete. The folder is in it because an environment cannot be moved.
stamp=.venv/made-from
wanted="$PWD $(cat pyproject.toml requirements.lock | sha256sum)"
made_from='' made_gpu='' made_extras=''
if [ -e "$stamp" ]; then
    { read -r made_from && read -r made_gpu && read -r made_extras; } <"$stamp" || true
fi

course_python='import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))'

stale() {
    [ "$made_from" = "$wanted" ] || return 0
    # The CUDA build serves a machine without a GPU too, but not the other way round.
    [ "$gpu" = no ] || [ "$made_gpu" = gpu=yes ] || return 0
    ! .venv/bin/python -c "$course_python" >/dev/null 2>&1
}

make_venv() {
    local candidate python='' without_venv=''
    for candidate in python3 python3.11 python3.12 python3.13 python3.14; do
        # A name on PATH may be a version manager's empty shell, so each is run.
        "$candidate" -c "$course_python" >/dev/null 2>&1 || continue
        if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            python=$candidate
            break
        fi
        without_venv=${without_venv:-$candidate}
    done
    if [ -z "$python" ]; then
        [ -z "$without_venv" ] || fail "$without_venv has no venv module; on Debian or Ubuntu: apt-get install" \
            "python$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
        fail "no Python 3.11 to 3.14 found; on Debian or Ubuntu: apt-get install python3 python3-venv"
    fi
    echo "Making .venv with $("$python" --version) ($(command -v "$python"))"
    rm -rf .venv
    "$python" -m venv .venv
}

if stale; then
    make_venv
elif [ -z "$extras" ] || [ "$made_extras" = "extras=$extras" ]; then
    exit 0
fi

torch=$(sed -n 's/^ *"torch==\([^"]*\)".*/\1/p' pyproject.toml)
pip() { .venv/bin/python -m pip --disable-pip-version-check "$@"; }
if [ "$gpu" = yes ]; then
    echo "GPU found: PyTorch $torch with CUDA (several GB to download)"
    # === does not match a local version: torch 2.13.0+cpu is refused.
    build="torch===$torch"
elif pip install --quiet --dry-run --no-deps --only-binary :all: "torch==$torch+cpu" >/dev/null 2>&1; then
    echo "No GPU found: PyTorch $torch for the CPU"
    build="torch==$torch+cpu"
else
    echo "No GPU found, but pip finds no CPU build of PyTorch $torch here: the build with CUDA (several GB to download)"
    build="torch===$torch"
fi

log=.venv/setup.log
echo "Installing the course and its packages (some minutes; progress in $log)"
if ! pip install --no-input --progress-bar off --no-compile --constraint requirements.lock \
    --editable ".${extras:+[$extras]}" "$build" >"$log" 2>&1; then
    tail -n 15 "$log" >&2
    fail "pip could not install the packages (above: the end of $log); mend this, then run the same command again"
fi
# To bytecode on all processors; pip would take one. What is left, such as the packages' own tests, is compiled when it is
# imported.
.venv/bin/python -m compileall -qq -j 0 -x '/tests/' .venv/lib >>"$log" 2>&1 || true

printf '%s\ngpu=%s\nextras=%s\n' "$wanted" "$gpu" "$extras" >"$stamp"
echo "Set up in $SECONDS s"
