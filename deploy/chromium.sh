#!/bin/sh
# Finds a Chromium for the page tests, or installs Debian's package where root or sudo allows it.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null 2>&1; then
        echo "browser tests use $(command -v "$name")"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null 2>&1; then
    echo "NOT RUN: browser tests need a chromium on the PATH; install one and run: make unit"
    exit 0
fi
if [ "$(id -u)" = 0 ]; then
    sudo=""
elif sudo -n true 2>/dev/null; then
    sudo="sudo -n"
else
    echo "NOT RUN: browser tests need Chromium. Install it with: sudo apt-get install chromium; then: make unit"
    exit 0
fi
echo "installing Debian's chromium for the browser tests"
if $sudo apt-get update -qq && DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq chromium >/dev/null; then
    echo "browser tests use $(command -v chromium)"
else
    echo "NOT RUN: chromium could not be installed. Install it with: sudo apt-get install chromium; then: make unit"
fi
