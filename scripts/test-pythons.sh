#!/usr/bin/env bash
# Tests the wheel with every supported Python on this machine: the unit tests, and some integration tests of each area.
# Run it with `make test-pythons`; PYTHONS="python3.13 /opt/py/bin/python" selects other interpreters.
set -euo pipefail
cd "$(dirname "$0")/.."

supported="3.11 3.12 3.13 3.14"
tests=("$@")
if [ ${#tests[@]} = 0 ]; then
  tests=(tests/unit tests/integration/test_{admin,aio_consumers,aio_producer,cli,consumer_group,dropped_clients,forks}.py)
  tests+=(tests/integration/test_{local_cluster,producer,pull_consumer}.py)
  tests+=(tests/features/{listeners/test_push_consumer,transactions/test_transactions}.py)
fi

# One interpreter of each version, from PATH or pyenv.
find_pythons() {
  local version candidate
  for version in $supported; do
    for candidate in "$(command -v "python$version" || true)" "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version".*/bin/python; do
      if [ -x "$candidate" ] && "$candidate" -c 'import venv, ensurepip, sqlite3, ssl' 2>/dev/null; then
        echo "$candidate"
        break
      fi
    done
  done
}

pythons=${PYTHONS:-$(find_pythons)}
[ -n "$pythons" ] || { echo "found none of Python $supported; name one: make test-pythons PYTHONS=..." >&2; exit 1; }
failed=""
for python in $pythons; do
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  venv=.venv-pythons/$version
  echo "---- Python $version: $python"
  "$python" -m venv --clear "$venv"
  PIP_CONSTRAINT=constraints.txt "$venv/bin/python" -m pip install --quiet --use-pep517 -c constraints.txt \
    "$(ls dist/minimq-*.whl)[spark,etcd,secure,schemas,dev,demo]"
  # The source roots are not on the path, so the wheel is imported.
  PYSPARK_PYTHON=$PWD/$venv/bin/python "$venv/bin/python" -P -m pytest -o pythonpath=tests -p no:cacheprovider \
    -n "${WORKERS:-4}" --no-loadscope-reorder "${tests[@]}" || failed="$failed $version"
done
echo "---- tested: Python $(for python in $pythons; do "$python" -c 'import platform; print(platform.python_version(), end=" ")'; done)"
[ -z "$failed" ] || { echo "---- FAILED with Python$failed" >&2; exit 1; }
