#!/usr/bin/env bash
# Runs the tests that need no torch with every supported Python that is here, and with old and new dependencies.
#   tests/compatibility.sh                                      the python3.10 … python3.14 that are on the PATH
#   PYTHONS="/opt/a/bin/python /opt/b/bin/python" tests/compatibility.sh
#   tests/compatibility.sh tests/wire                           these tests only
#   tests/compatibility.sh --short                              a few tests with a newer Python than .venv, as in CI
# Needs the network (pip). Each row of the table at the end is one fresh virtual environment.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PYTHONDONTWRITEBYTECODE # pip compiles nothing, so that Python has to keep what it compiles

wire=(tests/wire tests/test_environment.py)
without_torch=("${wire[@]}" tests/envs/test_{parallel,vector}.py tests/scenes/test_{agents,basic,embedded_player}.py
  tests/test_{connection,demonstrations,doors,player,side_channels,slots,spaces}.py)
short=
case ${1:-} in
  --short) short=1 without_torch+=(-k test_basic) ;; # all of these files are imported
  ?*) without_torch=("$@") wire=("$@") ;;
esac

constraints() { # what the set "$1" asks of pip beyond setup.cfg
  case $1 in
    lowest) sed -nE 's/^ +([A-Za-z0-9-]+)>=([0-9.]+).*/\1==\2.*/p' setup.cfg ;;
    protobuf-*) echo "protobuf==${1#*-}.*" ;;
  esac
}

table=() failed=0
row() { # row PYTHON SET TESTS…
  local python=$1 name=$2 venv=$folder/venv
  shift 2
  constraints "$name" >"$folder/constraints"
  if "$python" -m venv "$venv" && "$venv/bin/python" -m pip install --no-compile --quiet \
    --disable-pip-version-check --constraint "$folder/constraints" \
    --editable '.[scenes]' grpcio hypothesis pillow psutil pytest pytest-timeout; then
    "$venv/bin/python" -m pytest -q -p no:cacheprovider "$@" >"$folder/log" 2>&1
    cat "$folder/log"
    result=$(tail -1 "$folder/log")
  else
    result="could not be installed"
  fi
  [[ $result == *passed* && $result != *failed* && $result != *error* ]] || failed=1
  table+=("$("$venv/bin/python" -c 'import platform, google.protobuf, grpc, numba, numpy
print("Python", platform.python_version(), "| protobuf", google.protobuf.__version__, "| grpcio", grpc.__version__,
      "| numpy", numpy.__version__, "| numba", numba.__version__)' 2>/dev/null || echo "$python") | $name | $result")
  rm -rf "$venv"
}

for python in ${PYTHONS:-python3.14 python3.13 python3.12 python3.11 python3.10}; do
  python=$(command -v "$python") && "$python" -c '' 2>/dev/null || continue # a shim may have nothing behind it
  if [ -n "$short" ] && [ "$("$python" -V)" = "$(.venv/bin/python -V 2>/dev/null)" ]; then
    echo "$("$python" -V) is the newest here, and that of .venv, with which scripts/test.sh runs these tests"
    exit 0
  fi
  row "$python" newest "${without_torch[@]}"
  [ -z "$short" ] || break
  row "$python" protobuf-6 "${wire[@]}"
  row "$python" protobuf-5 "${wire[@]}"
  if "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 10))'; then # later ones have no wheels of these
    # Gymnasium before 1.4 counts same-step resets wrongly, and PettingZoo's tests before 1.27 know no masks but those
    # of a Discrete space: these faults are not ours.
    row "$python" lowest "${without_torch[@]}" \
      -k 'not gymnasiums_episode_statistics and not test_parallel_api and not own_tests_pass_where'
  fi
done
printf '%s\n' "${table[@]}"
[ ${#table[@]} -gt 0 ] || { echo "no python3.10 to python3.14 was found" >&2; exit 1; }
exit "$failed"
