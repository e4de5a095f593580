#!/usr/bin/env sh
# PyFlink in an environment of its own: it pins versions that Spark and Turnback cannot live with.
set -eu
cd "$(dirname "$0")/.."
version=2.3.0
python=${PYTHON:-python3}
test -x .venv-flink/bin/python || "$python" -m venv .venv-flink
.venv-flink/bin/python -m pip install --quiet --disable-pip-version-check "apache-flink==$version"
echo "apache-flink $version is in .venv-flink"
