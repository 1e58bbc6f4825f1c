#!/usr/bin/env bash
# On a node: verifies the release, then installs clientwise and the locked packages into .venv/.
#   install.sh [PIP_OPTION...]      such as --index-url URL
set -euo pipefail
source "$(dirname "$0")/settings.sh"
umask 022  # root installs, the node's user runs it
"$APP/deploy/verify.sh"
[[ -d "$VENV/bin" ]] || python3 -m venv "$VENV"
"$VENV/bin/python" -m pip install --quiet --require-hashes --no-deps "$@" \
    -r "$APP/deploy/requirements.lock"
"$VENV/bin/python" -m pip install --quiet --no-deps --no-index "$APP"/deploy/clientwise-*.whl
