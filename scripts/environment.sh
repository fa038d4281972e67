# Sourced by the other scripts: makes .venv with the package and what "$1" (an extra) adds, unless it stands already.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
extra=${1:+[$1]}
for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3.10 python3}; do
  if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
if [ -z "${python:-}" ]; then
  echo "unity-gym needs Python 3.10 to 3.14; none was found (set PYTHON to name one)" >&2
  exit 1
fi
[ -x .venv/bin/python ] || "$python" -m venv .venv
# Python compiles what it imports, which is a small part of what is installed. It keeps that for the next process, also
# where the environment says otherwise: compiling torch at every start takes longer than what the process is for.
unset PYTHONDONTWRITEBYTECODE
.venv/bin/python -m pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable ".$extra"
