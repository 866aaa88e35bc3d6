#!/usr/bin/env bash
# Puts promtool, which checks metrics and alerts in the tests, into the directory $1 if the machine has none. On a Debian
# it takes it out of the package "prometheus" without installing that: nobody wants a server started by a test run.
# Elsewhere it says what is missing; the tests that need it skip then, or fail where CI is set.
set -euo pipefail
if command -v promtool >/dev/null || [ -x "$1/promtool" ]; then
	exit 0
fi
missing() {
	echo "promtool: $1; tests of metrics and alerts that need it will skip, or fail where CI is set" >&2
	exit 0
}
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	missing "not installed, and this is no Debian"
fi
bin=$(mkdir -p "$1" && cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# Downloads as root, since this directory is closed to the user that apt-get would do it as.
download() { apt-get download -qq -o APT::Sandbox::User=root prometheus; }
download 2>/dev/null || { apt-get update -qq && download; } || missing "cannot be downloaded"
dpkg-deb --extract prometheus_*.deb .
install usr/bin/promtool "$bin/promtool"
