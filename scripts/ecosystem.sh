#!/usr/bin/env bash
# Tests unity-gym with other libraries, each in an environment of its own under .ecosystem, on top of .venv.
# Arguments: the libraries to test (default: all). A library whose installation fails is reported and skipped.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" dev
declare -A packages=(
  [agilerl]="agilerl peft"
  [benchmarl]="benchmarl"
  [cleanrl]=""
  [evotorch]="evotorch"
  [minari_collector]="minari[create]"
  [rl_games]="rl-games tensorboardX setproctitle"
  [rl_zoo]="rl_zoo3"
  [rllib]="ray[rllib]"
  [sbx]="sbx-rl"
  [skrl]="skrl"
  [supersuit]="supersuit array-api-compat"
  [tianshou]="tianshou>=2"
  [torchrl]="torchrl>=0.6"
)
ours=$(.venv/bin/python -c 'import site; print(*(f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()), sep="\n")')
failed=()
for library in ${@:-$(printf '%s\n' "${!packages[@]}" | sort)}; do
  environment=.ecosystem/$library
  if [ ! -x "$environment/bin/pip" ]; then
    .venv/bin/python -m venv "$environment"
    purelib=$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
    # What a library needs in another version than .venv has goes into its own environment, which comes first.
    echo "$ours" >"$purelib/zz_unity_gym.pth"
  fi
  if [ -n "${packages[$library]}" ] && ! "$environment/bin/pip" install --quiet --disable-pip-version-check \
    --constraint constraints.txt ${packages[$library]} "gymnasium>=1.1,<2" "pettingzoo>=1.25" "numpy>=1.24"; then
    echo "$library: skipped, its packages cannot be installed together with ours" >&2
    continue
  fi
  "$environment/bin/python" -m pytest -m ecosystem "tests/ecosystem/test_$library.py" || failed+=("$library")
done
[ ${#failed[@]} -eq 0 ] || { echo "failed: ${failed[*]}" >&2; exit 1; }
