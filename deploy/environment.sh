#!/bin/sh
# Makes or updates the virtual environment in .venv: `deploy/environment.sh [EXTRA]`, EXTRA being an extra of pyproject.toml.
# Does nothing when pyproject.toml, constraints.txt and the kernels' sources have not changed since the last time.
set -eu
cd "$(dirname "$0")/.."
extra="${1:-}"
venv="${VENV:-.venv}"

say() { printf 'roundhouse: %s\n' "$*"; }
fail() { printf 'roundhouse: %s\n' "$*" >&2; exit 1; }

# `train` and `dev` include what `serve` needs, so one install suffices.
if [ -z "$extra" ]; then
    for wider in train dev; do
        [ ! -e "$venv/.installed-$wider" ] || extra="$wider"
    done
fi
stamp="$venv/.installed-${extra:-serve}"
# Developers' builds keep their objects, of which tests compile some again with faults in them.
compile() {
    "$venv/bin/python" deploy/progress.py "$venv/kernels.log" "$venv/bin/python" -m kernels.build ||
        fail "the kernels do not compile, see $venv/kernels.log"
    touch "$stamp"
}

if [ -e "$stamp" ] && [ "$stamp" -nt pyproject.toml ] && [ "$stamp" -nt constraints.txt ]; then
    [ -n "$(find CMakeLists.txt kernels/csrc -newer "$stamp" -print -quit)" ] || exit 0
    say "compiling the kernels again"
    if [ "$extra" = dev ]; then
        compile
        exit 0
    fi
fi

python=""
for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null 2>&1 &&
        "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
        python="$candidate"
        break
    fi
done
[ -n "$python" ] || fail "Python 3.11, 3.12 or 3.13 is needed. Install it with: sudo apt-get install python3 python3-venv"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "Python's venv module is missing. Install it with: sudo apt-get install python3-venv"

if [ ! -x "$venv/bin/python" ]; then
    say "making the virtual environment in $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi
say "installing some 90 packages, of which torch is the large one, and compiling the kernels; all of it is in $venv/install.log"
# Older pips cannot say how far a download is.
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check ${PIP_ARGS:-} --upgrade "pip>=25.1" ||
    fail "pip could not be updated (see above). Is the package index reachable? Extra arguments: PIP_ARGS=..."
settings=""
[ "$extra" != dev ] || settings="--config-settings=cmake.define.ROUNDHOUSE_BUILD=OFF"
"$venv/bin/python" deploy/progress.py "$venv/install.log" \
    "$venv/bin/python" -m pip install --verbose --progress-bar raw --disable-pip-version-check ${PIP_ARGS:-} $settings \
    --config-settings=build.verbose=true --constraint constraints.txt --editable ".[${extra:-engine,embedder}]" ||
    fail "pip could not install the dependencies (see above, and $venv/install.log). Is the package index reachable? Extra arguments: PIP_ARGS=..."
if [ "$extra" = dev ]; then compile; else touch "$stamp"; fi
say "dependencies are installed"
