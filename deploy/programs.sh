#!/bin/sh
# Finds the programs that tests use beside the environment's, or gets Debian's packages where root or sudo allows it.
# None of them starts a service: a Redis with TLS comes with `redis-tools`, and Prometheus is unpacked, not installed.
set -eu
cd "$(dirname "$0")/.."
unpacked="${VENV:-.venv}/debian"

found() { for name in "$@"; do command -v "$name" >/dev/null 2>&1 && return; done; return 1; }

missing=""
found chromium chromium-browser google-chrome || missing="$missing chromium"
found chromium-headless-shell || missing="$missing chromium-headless-shell"
found redis-check-rdb || missing="$missing redis-tools"
found faketime || missing="$missing faketime"
found curl || missing="$missing curl"
found jq || missing="$missing jq"
unpack=""
found promtool || [ -x "$unpacked/usr/bin/promtool" ] || unpack="prometheus"
[ -n "$missing$unpack" ] || exit 0

# Says what could not be had, and ends: tests that need it are skipped.
skipped() {
    [ -z "$*" ] || echo "NOT RUN: what needs one of these is skipped: $*. Install them with: sudo apt-get install $*"
    exit 0
}
# shellcheck disable=SC2086
if ! command -v apt-get >/dev/null 2>&1; then
    skipped $missing $unpack
elif [ "$(id -u)" = 0 ]; then
    sudo=""
elif sudo -n true 2>/dev/null; then
    sudo="sudo -n"
else
    skipped $missing $unpack
fi
echo "getting from Debian, for tests:$missing $unpack"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086
$sudo apt-get update -qq || skipped $missing $unpack
lacking=""
for package in $missing; do
    $sudo apt-get install -y -qq "$package" >/dev/null || lacking="$lacking $package"
done
if [ -n "$unpack" ]; then
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    chmod 755 "$folder" # apt downloads as a user of its own
    mkdir -p "$unpacked/usr/bin"
    (cd "$folder" && apt-get download -qq "$unpack" 2>/dev/null && dpkg-deb -x ./*.deb all) &&
        cp "$folder"/all/usr/bin/* "$unpacked/usr/bin/" || lacking="$lacking $unpack"
fi
# shellcheck disable=SC2086
skipped $lacking
