#!/bin/sh
# Finds the programs that tests use beside the environment's, or gets Debian's packages where root or sudo allows it.
# None of them starts a service: a Redis with TLS comes with `redis-tools`, and Prometheus is unpacked, not installed.
set -eu
cd "$(dirname "$0")/.."
unpacked="${VENV:-.venv}/debian"

found() { for name in "$@"; do command -v "$name" >/dev/null 2>&1 && return; done; return 1; }

missing=""
found chromium-headless-shell chromium chromium-browser google-chrome || missing="$missing chromium-headless-shell"
found redis-check-rdb redis-server || missing="$missing redis-tools"
found faketime || missing="$missing faketime"
found curl || missing="$missing curl"
found jq || missing="$missing jq"
unpack=""
found promtool || [ -x "$unpacked/usr/bin/promtool" ] || unpack="prometheus"
[ -n "$missing$unpack" ] || exit 0

skipped() {
    echo "NOT RUN: what needs one of these is skipped:$missing $unpack. Install them with: sudo apt-get install$missing $unpack"
    exit 0
}
command -v apt-get >/dev/null 2>&1 || skipped
if [ "$(id -u)" = 0 ]; then
    sudo=""
elif sudo -n true 2>/dev/null; then
    sudo="sudo -n"
else
    skipped
fi
echo "getting from Debian, for tests:$missing $unpack"
export DEBIAN_FRONTEND=noninteractive
$sudo apt-get update -qq || skipped
for package in $missing; do
    if $sudo apt-get install -y -qq "$package" >/dev/null; then missing="${missing# "$package"}"; else skipped; fi
done
[ -n "$unpack" ] || exit 0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder" # apt downloads as a user of its own
if (cd "$folder" && apt-get download -qq "$unpack") 2>/dev/null && dpkg-deb -x "$folder"/*.deb "$folder/all"; then
    mkdir -p "$unpacked/usr/bin"
    cp "$folder"/all/usr/bin/* "$unpacked/usr/bin/"
else
    skipped
fi
