#!/usr/bin/env bash
# Writes constraints.txt: the version of every package that `make setup` installs, resolved anew from pyproject.toml. Then
# docker/requirements*.txt: the packages of the images, with the hash of every file that the index has of these versions.
# Run it with `make lock` and the oldest supported Python, so that the result fits newer ones, too.
#   scripts/lock.sh --images    only writes docker/requirements*.txt, with the versions in constraints.txt
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python=$work/venv/bin/python

if [ "${1:-}" != --images ]; then
  "${PYTHON:-python3}" -m venv "$work/venv"
  # hatchling builds minimq; setuptools builds the dependencies that are distributed as source.
  "$python" -m pip install --use-pep517 --upgrade setuptools hatchling -e '.[spark,faststream,etcd,secure,otel,console,schemas,docs,dev,demo]'

  {
    echo "# Every version that is tested, for every install. Written by 'make lock' on $("$python" --version)."
    "$python" -m pip freeze --all --exclude-editable --exclude pip --exclude wheel
  } >"$work/constraints.txt"
  mv "$work/constraints.txt" constraints.txt
fi

"${PYTHON:-python3}" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet pip-tools

hashed() { # FILE WHAT: reads requirements, and writes them with their dependencies to docker/FILE
  {
    echo "# $2"
    echo "# Written by 'make lock': pip takes no file whose SHA-256 is not listed, and no package that is not."
    "$work/tools/bin/pip-compile" - --quiet --generate-hashes --allow-unsafe --strip-extras --no-header --no-annotate \
      --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --constraint constraints.txt --output-file -
  } >"$work/hashed"
  mv "$work/hashed" "docker/$1"
}

needed() { # EXTRA...: the requirements of minimq itself and of each extra
  "${PYTHON:-python3}" - "$@" <<'PYTHON'
import sys, tomllib
with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)["project"]
print(*project["dependencies"], *(line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]), sep="\n")
PYTHON
}

needed etcd secure console | hashed requirements.txt "The packages of the image of the servers: minimq[etcd,secure,console], but for minimq itself."
needed spark | hashed requirements-spark.txt "The packages of the image of the Spark job: minimq[spark], but for minimq itself."
printf '%s\n' hatchling setuptools | hashed requirements-build.txt "The packages that build the wheels of minimq and of PySpark."
