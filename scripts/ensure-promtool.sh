#!/usr/bin/env bash
# The tests of the Prometheus rules need promtool 2.42 or newer on PATH. If it is missing, root on Debian or Ubuntu
# installs the distribution's package. Otherwise this prints what is missing.
set -euo pipefail

if command -v promtool >/dev/null; then exit 0; fi

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "The tests need promtool: install it (on Debian and Ubuntu: sudo apt-get install prometheus)." >&2
  exit 1
fi

echo "No promtool found: installing the distribution's prometheus, which has it."
export DEBIAN_FRONTEND=noninteractive # ask nothing
export RUNLEVEL=1                     # do not start Prometheus: the tests only need promtool
apt-get update
apt-get install -y --no-install-recommends prometheus
