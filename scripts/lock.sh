#!/usr/bin/env bash
# Writes constraints.txt: the version of every package that `make setup` installs, resolved anew from pyproject.toml.
# Run it through `make lock`, with the oldest supported Python, so that the result fits the newer ones too.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=$work/venv/bin/python

"${PYTHON:-python3}" -m venv "$work/venv"
# hatchling builds minimq; setuptools builds the dependencies that come as source.
"$python" -m pip install --use-pep517 --upgrade setuptools hatchling -e '.[spark,etcd,secure,console,schemas,dev,demo]'

{
  echo "# Every version that is tested, for every install. Written by 'make lock' on $("$python" --version)."
  "$python" -m pip freeze --all --exclude-editable --exclude pip --exclude wheel
} >"$work/constraints.txt"
mv "$work/constraints.txt" constraints.txt
