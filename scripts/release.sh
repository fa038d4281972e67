#!/usr/bin/env bash
# Builds and checks what a release consists of; with --publish, tags it and uploads it to the package index.
#   scripts/release.sh                a dry run: wheel and sdist in dist/, their checks, and the release notes
#   scripts/release.sh --publish      the release; needs a token of the index in TWINE_PASSWORD (TWINE_USERNAME=__token__)
# The version is that of setup.cfg, the release notes are its section of docs/changelog.md.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh" dev
python=.venv/bin/python
version=$("$python" -c 'import configparser; c = configparser.ConfigParser(); c.read("setup.cfg"); print(c["metadata"]["version"])')
notes=$(awk -v version="$version" '/^## / {found = $2 == version; if (found) print; next} found' docs/changelog.md)
stop() { echo "scripts/release.sh: error: $1" >&2; exit 1; }

[ -n "$notes" ] || stop "docs/changelog.md has no section '## $version': add one, or correct the version in setup.cfg"
if [ "${1:-}" = --publish ]; then
  [[ $notes != *"(unreleased)"* ]] || stop "docs/changelog.md calls $version unreleased: write the date instead and commit it"
  [ -z "$(git status --porcelain)" ] || stop "the working tree has changes: commit them first"
  ! git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null || stop "the tag v$version exists: raise the version in setup.cfg"
  [ -n "${TWINE_PASSWORD:-}" ] || stop "TWINE_PASSWORD must be a token of the package index"
fi

rm -rf dist
"$python" -m build --outdir dist . >/dev/null
"$python" -m twine check --strict dist/*
bash tests/packaging.sh --short dist/*.whl
echo "$notes"
if [ "${1:-}" = --publish ]; then
  "$python" -m twine upload --non-interactive dist/*
  git tag --annotate "v$version" --cleanup=whitespace --message "$notes"
  echo "published $version: push its tag with 'git push origin v$version'"
else
  echo "dry run: nothing was published"
fi
