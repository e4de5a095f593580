#!/usr/bin/env sh
# Bytewax in an environment of its own: it has wheels up to Python 3.12, Turnback runs on newer ones.
set -eu
cd "$(dirname "$0")/.."
version=0.21.1
arrow=26.0.1
python=${BYTEWAX_PYTHON:-${PYTHON:-python3}}
test -x .venv-bytewax/bin/python || "$python" -c 'import sys
if not (3, 11) <= sys.version_info < (3, 13):
    sys.exit("Bytewax needs Python 3.11 or 3.12 here, this is " + sys.version.split()[0] +
             ": name one in BYTEWAX_PYTHON")'
test -x .venv-bytewax/bin/python || "$python" -m venv .venv-bytewax
.venv-bytewax/bin/python -m pip install --quiet --disable-pip-version-check \
    "bytewax==$version" "pyarrow==$arrow"
echo "bytewax $version is in .venv-bytewax"
