#!/usr/bin/env sh
# Bytewax in an environment of its own: it has wheels up to Python 3.12, Turnback runs on newer ones.
set -eu
cd "$(dirname "$0")/.."
version=0.21.1
python=${BYTEWAX_PYTHON:-${PYTHON:-python3}}
"$python" -c 'import sys; sys.exit(not (3, 8) <= sys.version_info < (3, 13) and "Bytewax has wheels for Python 3.8 to 3.12, this is " + sys.version.split()[0] + ": set BYTEWAX_PYTHON to one of those")'
test -x .venv-bytewax/bin/python || "$python" -m venv .venv-bytewax
.venv-bytewax/bin/python -m pip install --quiet --disable-pip-version-check "bytewax==$version" pyarrow
echo "bytewax $version is in .venv-bytewax"
