#!/usr/bin/env bash
# Sets everything up in .venv and runs the tests, two files at a time. Arguments go to pytest.
# In the order of their names: xdist's own order puts files of few but long tests last, where one core would be idle.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" dev
exec .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
