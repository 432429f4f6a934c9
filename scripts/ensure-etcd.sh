#!/usr/bin/env bash
# The tests of replicated brokers need etcd 3.4 or newer on PATH. If it is missing, root on Debian or Ubuntu installs the
# distribution's package. Otherwise this prints what is missing.
set -euo pipefail

if command -v etcd >/dev/null; then exit 0; fi

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "The tests need etcd: install it (on Debian and Ubuntu: sudo apt-get install etcd-server)." >&2
  exit 1
fi

echo "No etcd found: installing the distribution's etcd-server."
export DEBIAN_FRONTEND=noninteractive # ask nothing
export RUNLEVEL=1                     # start nothing: the tests start their own
apt-get update
apt-get install -y --no-install-recommends etcd-server
