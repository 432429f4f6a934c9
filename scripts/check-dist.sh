#!/usr/bin/env bash
# Builds what a release uploads into dist/, checks it, and runs the first program of the README with the wheel alone.
# Run it through `make dist`.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/.venv/bin
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$tools/python" -m hatchling build -t sdist -d dist
# The wheel is built from the sdist, as a packager builds it: a file that the sdist lacks is missed here.
tar -xzf dist/minimq-*.tar.gz -C "$work"
(cd "$work"/minimq-* && "$tools/python" -m hatchling build -t wheel -d "$work/built")
mv "$work"/built/*.whl dist/
"$tools/python" -m twine check --strict dist/*
wheel=$(basename dist/*.whl)
cp docker/sbom.cdx.json "dist/${wheel%.whl}.cdx.json" # by the file it is of

"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet dist/*.whl
sed -n '/^```python$/,/^```$/{/^```$/q;/^```/d;p}' README.md >"$work/ten_lines.py"
# Outside the checkout, so that nothing of it can be imported.
(cd "$work" && venv/bin/python ten_lines.py | tee printed)
grep -qxF "[b'espresso']" "$work/printed"
ls -l dist
