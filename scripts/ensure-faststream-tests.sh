#!/usr/bin/env bash
# FastStream's common tests of brokers are in its repository, and not in its packages. Unless FASTSTREAM_TESTS names a
# checkout, this clones the release that is installed. Without a network it prints that these tests are skipped.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(.venv/bin/python -c 'import importlib.metadata; print(importlib.metadata.version("faststream"))')
checkout=.venv/faststream-$version
if [ -n "${FASTSTREAM_TESTS:-}" ] || [ -d "$checkout" ]; then exit 0; fi

source=https://github.com/ag2ai/faststream
export GIT_TERMINAL_PROMPT=0
rm -rf "$checkout.new"
if timeout 15 git ls-remote --quiet --exit-code "$source" "refs/tags/$version" >/dev/null &&
  timeout 120 git clone --quiet --depth 1 --branch "$version" "$source" "$checkout.new"; then
  mv "$checkout.new" "$checkout"
else
  echo "FastStream's own tests cannot be fetched, and are skipped: FASTSTREAM_TESTS may name a checkout of $version." >&2
fi
