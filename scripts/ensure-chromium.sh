#!/usr/bin/env bash
# The tests of the console need Chromium with its driver, and nginx as a proxy, on PATH. If they are missing, root on
# Debian or Ubuntu installs the distribution's packages. Otherwise this prints what is missing; the tests that need it
# are skipped.
set -euo pipefail

PATH=$PATH:/usr/sbin
if command -v nginx >/dev/null && command -v chromedriver >/dev/null && { command -v chromium || command -v chromium-browser; } >/dev/null; then exit 0; fi

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "Some tests of the console need Chromium with its driver, and nginx, and are skipped without: install them (on Debian: sudo apt-get install chromium chromium-driver nginx-light)." >&2
  exit 0
fi

echo "No Chromium with a driver, or no nginx, found: installing the distribution's."
export DEBIAN_FRONTEND=noninteractive # ask nothing
apt-get update
apt-get install -y --no-install-recommends chromium chromium-driver fonts-dejavu-core nginx-light
