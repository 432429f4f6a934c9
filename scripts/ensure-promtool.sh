#!/usr/bin/env bash
# The tests of the rules for Prometheus run its promtool 2.42 or newer, which is looked for on PATH; as root on Debian and
# Ubuntu it installs the distribution's. Anywhere else it says what is missing.
set -euo pipefail

if command -v promtool >/dev/null; then exit 0; fi

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "The tests need promtool: install it (on Debian and Ubuntu: sudo apt-get install prometheus)." >&2
  exit 1
fi

echo "No promtool found: installing the distribution's prometheus, which has it."
export DEBIAN_FRONTEND=noninteractive # ask nothing
export RUNLEVEL=1                     # start nothing: promtool is all that the tests need
apt-get update
apt-get install -y --no-install-recommends prometheus
