#!/usr/bin/env bash
# Runs tests with every supported Python that is here, and with the newest and the oldest releases of what they need.
#   tests/compatibility.sh            what needs no torch, with those of python3.10 ... python3.14 that are on the PATH
#   tests/compatibility.sh --sb3      all tests, with the extra dev
#   tests/compatibility.sh --short    a few tests with the oldest releases, and with a newer Python than .venv, as in CI
#   PYTHONS="/opt/a/bin/python /opt/b/bin/python" tests/compatibility.sh
# Needs the network (pip). Each row of the table at the end is one fresh virtual environment. The oldest releases have
# wheels for Python 3.10 and 3.11; the torch that belongs to them is that of constraints.txt.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PYTHONDONTWRITEBYTECODE # pip compiles nothing, so that Python has to keep what it compiles
mode=${1:-}
[[ $mode =~ ^(|--sb3|--short)$ ]] || { echo "'$mode' is not an option: --sb3 and --short are" >&2; exit 2; }

wire=(tests/wire tests/test_environment.py)
without_torch=("${wire[@]}" tests/envs/test_{parallel,vector}.py tests/scenes/test_{agents,articulated,basic,embedded_player}.py
  tests/test_{connection,demonstrations,doors,player,side_channels,slots,spaces}.py)
fast=(tests/wire/test_{caller,decode,encode,http2,images}.py tests/test_{player,slots,spaces}.py tests/scenes/test_articulated.py)
fast_sb3=(tests/sb3_ext/test_{distributions,experience,export,networks,replay,settings,vec_env}.py)

constraints() { # constraints PYTHON SET EXTRAS: what the set asks of pip beyond setup.cfg
  case $2 in
    protobuf-*) echo "protobuf==${2#*-}.*" ;;
    oldest)
      "$1" - ${3//,/ } <<'PY'
import configparser, re, sys
config = configparser.ConfigParser()
config.read("setup.cfg")
required = [config["options"]["install_requires"], *(config["options.extras_require"][extra] for extra in sys.argv[1:])]
releases = dict(re.findall(r"^([\w-]+)>=([\w.]+)", "\n".join(required), re.M))
with open("constraints.txt") as constraints:
    releases.update(re.findall(r"^(torch)==(\S+)", constraints.read(), re.M) if "torch" in releases else ())
print(*(f"{name}=={release}" for name, release in releases.items()), sep="\n")
PY
      ;;
  esac
}

table=() failed=0
row() { # row PYTHON SET EXTRAS TESTS…
  local python=$1 name=$2 extras=$3 venv=$folder/venv
  shift 3
  constraints "$python" "$name" "$extras" >"$folder/constraints"
  if "$python" -m venv "$venv" && "$venv/bin/python" -m pip install --no-compile --quiet \
    --disable-pip-version-check --constraint "$folder/constraints" \
    --editable ".[$extras]" grpcio hypothesis pillow psutil pytest pytest-timeout pytest-xdist; then
    "$venv/bin/python" -m pytest -q -p no:cacheprovider "$@" >"$folder/log" 2>&1
    cat "$folder/log"
    result=$(tail -1 "$folder/log")
  else
    result="could not be installed"
  fi
  [[ $result == *passed* && $result != *failed* && $result != *error* ]] || failed=1
  table+=("$("$venv/bin/python" -c 'import platform
from importlib.metadata import PackageNotFoundError, version
print("Python", platform.python_version(), end="")
for name in ("protobuf", "grpcio", "numpy", "numba", "torch"):
    try:
        print(" |", name, version(name), end="")
    except PackageNotFoundError:
        pass' 2>/dev/null || echo "$python") | $name | $result")
  rm -rf "$venv"
}

pythons=() old=
for python in ${PYTHONS:-python3.14 python3.13 python3.12 python3.11 python3.10}; do
  python=$(command -v "$python") && release=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) ||
    continue # a shim may have nothing behind it
  pythons+=("$python")
  [[ $release != 3.11 && ($release != 3.10 || $mode == --sb3) ]] || old=$python
done
[ ${#pythons[@]} -gt 0 ] || { echo "no python3.10 to python3.14 was found" >&2; exit 1; }

case $mode in
  --short)
    if [ "$("${pythons[0]}" -V)" = "$(.venv/bin/python -V 2>/dev/null)" ]; then
      echo "$("${pythons[0]}" -V) is the newest here, and that of .venv, with which scripts/test.sh runs these tests"
    else
      row "${pythons[0]}" newest scenes "${without_torch[@]}" -k test_basic # all of these files are imported
    fi
    oldest=(scenes "${fast[@]}")
    ;;
  --sb3)
    for python in "${pythons[@]}"; do
      row "$python" newest dev -n 2 --dist loadfile --no-loadscope-reorder tests
    done
    oldest=(scenes,sb3,onnx "${fast[@]}" "${fast_sb3[@]}")
    ;;
  *)
    for python in "${pythons[@]}"; do
      row "$python" newest scenes "${without_torch[@]}"
      row "$python" protobuf-6 scenes "${wire[@]}"
      row "$python" protobuf-5 scenes "${wire[@]}"
    done
    # Gymnasium before 1.4 counts same-step resets wrongly, and PettingZoo's tests before 1.27 know no masks but those
    # of a Discrete space: these faults are not ours.
    oldest=(scenes "${without_torch[@]}"
      -k 'not gymnasiums_episode_statistics and not test_parallel_api and not own_tests_pass_where')
    ;;
esac
if [ -n "$old" ]; then
  row "$old" oldest "${oldest[@]}"
else
  table+=("oldest | not tried: this takes Python 3.11, or 3.10 without --sb3") failed=1
fi
printf '%s\n' "${table[@]}"
exit "$failed"
