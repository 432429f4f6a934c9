#!/usr/bin/env bash
# Writes docker/sbom.cdx.json, the software bill of materials (CycloneDX) of the image of the servers: the packages of
# docker/requirements.txt, installed with their hashes as in the image, and minimq. Run it with `make sbom`.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/tools"
"$work/tools/bin/python" -m pip install --quiet -r docker/requirements-build.txt
"$work/tools/bin/python" -m pip install --quiet cyclonedx-bom
"$work/tools/bin/python" -m hatchling build -t wheel -d "$work/wheels" >/dev/null

"${PYTHON:-python3}" -m venv --without-pip "$work/image"
install() { "$work/tools/bin/python" -m pip --python "$work/image/bin/python" install --quiet "$@"; }
install --require-hashes --only-binary :all: -r docker/requirements.txt
# By name, not by file: pip would record the file's path on this machine.
install --no-deps --no-index --find-links "$work/wheels" minimq

"$work/tools/bin/cyclonedx-py" environment --output-reproducible --spec-version 1.6 --output-format JSON \
  --output-file "$work/found.json" "$work/image/bin/python"
# minimq is the subject of the document, not a component. Links to home pages do not belong there.
"${PYTHON:-python3}" - "$work/found.json" >"$work/sbom.json" <<'PYTHON'
import json, sys
with open(sys.argv[1]) as file:
    bom = json.load(file)
[subject] = [each for each in bom["components"] if each["name"] == "minimq"]
bom["components"].remove(subject)
bom["metadata"]["component"] = {**subject, "type": "application"}
for each in (bom["metadata"]["component"], *bom["components"], *bom["metadata"]["tools"]["components"]):
    each.pop("externalReferences", None)
print(json.dumps(bom, indent=2, sort_keys=True))
PYTHON
mv "$work/sbom.json" docker/sbom.cdx.json
