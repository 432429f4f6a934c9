#!/usr/bin/env bash
# Generates the Python code of the wire protocol, and its type stubs, beside the .proto files.
#   generate-proto.sh           replaces the generated files
#   generate-proto.sh --check   changes nothing; fails if the generated files are out of date
# Run it with `make proto` and `make proto-check`, which prepare .venv-proto.
set -euo pipefail
cd "$(dirname "$0")/.."

package=proto/minimq_proto/v1
export PATH="$PWD/.venv-proto/bin:$PATH" # where protoc finds mypy-protobuf's plugins

out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# The source root is the include root, so the generated imports are absolute: `from minimq_proto.v1 import ...`.
python -W ignore -m grpc_tools.protoc -I proto \
  --python_out="$out" --grpc_python_out="$out" --mypy_out="quiet:$out" --mypy_grpc_out="quiet:$out" \
  "$package"/*.proto

if [ "${1:-}" = --check ]; then
  diff -r -x '*.proto' -x __init__.py -x __pycache__ "$package" "$out/minimq_proto/v1" || {
    echo "The generated code does not belong to the .proto files: run 'make proto' and commit the result." >&2
    exit 1
  }
else
  rm -f "$package"/*_pb2.py "$package"/*_pb2.pyi "$package"/*_pb2_grpc.py "$package"/*_pb2_grpc.pyi
  cp "$out"/minimq_proto/v1/* "$package"/
fi
