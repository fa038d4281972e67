#!/usr/bin/env bash
# Installs the oldest releases that setup.cfg allows, and runs fast tests.
#   tests/floors.sh           the environments and embedded scenes, as in CI
#   tests/floors.sh --sb3     learning, too; torch is the release of constraints.txt, whose build for the CPU is here
# Needs the network (pip) and one of python3.10, python3.11 (PYTHON names another); --sb3 needs python3.11.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
candidates="python3.10 python3.11" extras=scenes
tests=(tests/wire/test_{caller,decode,encode,http2,images}.py tests/test_{player,slots,spaces}.py tests/scenes/test_articulated.py)
if [ "${1:-}" = --sb3 ]; then
  candidates=python3.11 extras="scenes sb3 onnx"
  tests+=(tests/sb3_ext/test_{distributions,experience,export,networks,replay,settings,vec_env}.py)
fi
for python in ${PYTHON:-$candidates}; do
  python=$(command -v "$python") && "$python" -c '' 2>/dev/null && break # a shim may have nothing behind it
  python=
done
[ -n "$python" ] || { echo "the oldest dependencies need one of $candidates; none was found" >&2; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PYTHONDONTWRITEBYTECODE # pip compiles nothing, so that Python has to keep what it compiles
"$python" - $extras >"$folder/floors.txt" <<'PY'
import configparser, re, sys
config = configparser.ConfigParser()
config.read("setup.cfg")
required = [config["options"]["install_requires"], *(config["options.extras_require"][extra] for extra in sys.argv[1:])]
floors = dict(re.findall(r"^([\w-]+)>=([\w.]+)", "\n".join(required), re.M))
with open("constraints.txt") as constraints:
    floors.update(re.findall(r"^(torch)==(\S+)", constraints.read(), re.M) if "torch" in floors else ())
print(*(f"{name}=={floor}" for name, floor in floors.items()), sep="\n")
PY
cat "$folder/floors.txt"
"$python" -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --no-compile --quiet --disable-pip-version-check \
  --requirement "$folder/floors.txt" --editable . grpcio hypothesis pillow psutil pytest pytest-timeout
"$folder/venv/bin/python" -m pytest -q -p no:cacheprovider "${tests[@]}"
