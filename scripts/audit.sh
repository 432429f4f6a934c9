#!/usr/bin/env bash
# Checks the pinned packages of the images for known vulnerabilities. Fails if there is one, or if a package cannot be
# checked. Needs the network; run it with `make audit`.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet pip-audit
for file in docker/requirements.txt docker/requirements-spark.txt docker/requirements-build.txt; do
  echo "$file"
  "$work/tools/bin/pip-audit" --strict --require-hashes --disable-pip --progress-spinner off --requirement "$file"
done
