#!/usr/bin/env bash
# Builds the sdist, and the wheel from it, and uses what the wheel installs outside of the checkout.
#   tests/packaging.sh              base and [scenes] with every python3.10 ... python3.14 on the PATH, [sb3] with 3.11
#   tests/packaging.sh --short      base with one Python, and the types, as in CI
#   tests/packaging.sh --short FILE.whl     the same with a wheel that exists
# Needs the network (pip).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
checkout=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset PYTHONPATH PYTHONDONTWRITEBYTECODE # pip compiles nothing, so that Python has to keep what it compiles
short=$([ "${1:-}" = --short ] && echo yes || true)

pip() { "$1" -m pip --quiet --disable-pip-version-check "${@:2}"; }
build=${PYTHON:-$checkout/.venv/bin/python}
if [ -n "${2:-}" ]; then
  wheel=$(realpath "$2")
else
  "$build" -m build --outdir "$folder/dist" . >"$folder/build.log" 2>&1 || { cat "$folder/build.log"; exit 1; }
  wheel=$(echo "$folder"/dist/*.whl)
fi
cd "$folder" # nothing is imported from the checkout

from_wheel() { # from_wheel PYTHON EXTRAS: a fresh virtual environment with the wheel, named $venv
  venv=$folder/venv-$2
  rm -rf "$venv"
  "$1" -m venv "$venv"
  pip "$venv/bin/python" install --no-compile --constraint "$checkout/constraints.txt" "$wheel${2:+[$2]}"
}

cat >probe.py <<'PY'
import unity_gym
from unity_gym.environment import UnityEnvironment

env: UnityEnvironment = unity_gym.UnityEnvironment("embedded:Basic")
number: str = env.get_steps("Basic")
PY
has_types() { # has_types PYTHON: mypy sees the types of the package that PYTHON imports
  "$build" -m mypy --strict --no-incremental --python-executable "$1" probe.py >types.log 2>&1 && status=0 || status=$?
  [ "$status" = 1 ] && grep -q 'probe.py:5: error: Incompatible types' types.log && grep -q 'Found 1 error' types.log && return
  echo "mypy does not see the types of $1:"
  cat types.log
  return 1
}
has_types "$build"
echo "mypy sees the editable installation"

pythons=(python3.10 python3.11 python3.12 python3.13 python3.14)
[ -z "$short" ] || pythons=("$("$build" -c 'import sys; print(sys._base_executable)')")
for python in "${pythons[@]}"; do
  python=$(command -v "$python") && "$python" -c '' 2>/dev/null || continue # a shim may have nothing behind it
  from_wheel "$python" ""
  pip "$venv/bin/python" download --dest "$folder/downloads" "$wheel"
  size=$(du -sm "$folder/downloads" | cut -f1)
  [ "$size" -lt 60 ] || { echo "the base installation downloads $size MB, 60 are allowed"; exit 1; }
  rm -r "$folder/downloads"
  "$venv/bin/python" - <<'PY'
import importlib.util, unity_gym
from unity_gym.environment import UnityEnvironment
assert importlib.util.find_spec("torch") is None
try:
    import sb3_ext
except ModuleNotFoundError as error:
    assert "unity-gym[sb3]" in str(error) and "\n" not in str(error), error
else:
    raise AssertionError("sb3_ext was imported without torch")
try:
    UnityEnvironment("embedded:PushBlock")
except Exception as error:
    assert "unity-gym[scenes]" in str(error), error
else:
    raise AssertionError("the embedded player started without numba")
PY
  has_types "$venv/bin/python"
  echo "$("$python" --version): the base installation ($size MB) works from the wheel"
  [ -z "$short" ] || continue
  from_wheel "$python" scenes
  "$venv/bin/python" - <<'PY'
import gymnasium as gym, unity_gym
for name in ("3DBall", "PushBlock", "Crawler"):
    with gym.make(f"Unity-{name}-v0") as env:
        env.reset(seed=1)
        for _ in range(20):
            if any(env.step(env.action_space.sample())[2:4]):
                env.reset()
PY
  echo "$("$python" --version): [scenes] plays from the wheel"
done
[ -z "$short" ] || exit 0

from_wheel "$(command -v python3.11)" scenes,sb3
"$venv/bin/python" -c "
from sb3_ext import PPO, UnityVecEnv
env = UnityVecEnv('Unity-3DBall-v0')
PPO('UnityPolicy', env, buffer_size=240, batch_size=60).learn(480)
env.close()"
"$venv/bin/unity-learn" --list | grep -qx ppo/3DBall
cat >script.py <<'PY'
from mlagents_envs.environment import UnityEnvironment
env = UnityEnvironment()
env.reset()
assert list(env.behavior_specs)
env.close()
PY
"$venv/bin/python" -m unity_gym.compat --scene 3DBall script.py
cp "$("$venv/bin/python" -c 'import sb3_ext, pathlib; print(pathlib.Path(sb3_ext.__file__).parent)')/configs/ppo/3DBall.yaml" short.yaml
sed -i 's/max_steps: .*/max_steps: 3000/; s/summary_freq: .*/summary_freq: 1000/' short.yaml
"$venv/bin/unity-learn" short.yaml --env Unity-3DBall-v0 --run-id short --seed 1 >run.log 2>&1 || { cat run.log; exit 1; }
[ -s results/short/3DBall.onnx ]
echo "Python 3.11: [sb3] learns from the wheel"
