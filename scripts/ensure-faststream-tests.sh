#!/usr/bin/env bash
# FastStream's common tests of brokers are in its repository, and not in its packages. Unless FASTSTREAM_TESTS names a
# checkout, this clones the release that is installed. Without a network it prints that these tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(.venv/bin/python -c 'import importlib.metadata; print(importlib.metadata.version("faststream"))')
checkout=.venv/faststream-$version
if [ -n "${FASTSTREAM_TESTS:-}" ] || [ -d "$checkout" ]; then exit 0; fi

rm -rf "$checkout.new"
if timeout 120 git clone --quiet --depth 1 --branch "$version" https://github.com/ag2ai/faststream "$checkout.new"; then
  mv "$checkout.new" "$checkout"
else
  echo "FastStream's own tests cannot be fetched, and are skipped: FASTSTREAM_TESTS may name a checkout of $version." >&2
fi
