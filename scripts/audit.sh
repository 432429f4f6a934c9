#!/usr/bin/env bash
# Looks for known vulnerabilities in the packages of the images, by their pinned versions. Fails if one is found, and if a
# package cannot be looked up, so that silence never passes for safety. Needs the network; run it through `make audit`.
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
