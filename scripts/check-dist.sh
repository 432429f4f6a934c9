#!/usr/bin/env bash
# Builds the files of a release in dist/, checks them, and runs the first program of the README with only the wheel
# installed. Run it with `make dist`.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/.venv/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$tools/python" -m hatchling build -t sdist -d dist
# The wheel is built from the sdist, as packagers do: this detects files that are missing in the sdist.
tar -xzf dist/minimq-*.tar.gz -C "$work"
(cd "$work"/minimq-* && "$tools/python" -m hatchling build -t wheel -d "$work/built")
mv "$work"/built/*.whl dist/
"$tools/python" -m twine check --strict dist/*
wheel=$(basename dist/*.whl)
cp docker/sbom.cdx.json "dist/${wheel%.whl}.cdx.json" # named after the wheel

"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet dist/*.whl
sed -n '/^```python$/,/^```$/{/^```$/q;/^```/d;p}' README.md >"$work/ten_lines.py"
# Outside the checkout, so that nothing can be imported from it.
(cd "$work" && venv/bin/python ten_lines.py | tee printed)
grep -qxF "[b'espresso']" "$work/printed"
ls -l dist
