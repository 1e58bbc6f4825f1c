#!/bin/sh
# One environment per system under $VENVS (default: .peers in the current folder); a few minutes and about 7 GB.
# PyTorch first wherever it is used; for its CPU build on x86: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
set -eu
VENVS=${VENVS:-.peers}
PYTHON=${PYTHON:-python3}
TORCH=torch==2.13.0

make_environment() { # name, packages...
    name=$1
    shift
    echo "$name: $*"
    "$PYTHON" -m venv "$VENVS/$name"
    "$VENVS/$name/bin/pip" install --quiet --disable-pip-version-check "$@"
}

make_environment torch $TORCH numpy==2.4.6
make_environment pfl $TORCH pfl==0.6.0
make_environment blazefl $TORCH numpy==2.4.6 blazefl==2.0.3  # needs Python 3.12 or newer
make_environment fedjax fedjax==0.0.17 jax==0.10.2
make_environment flwr $TORCH 'flwr[simulation]==1.41.0'
# 1.42.0 asks for a newer certifi than may be there: its code runs on the dependencies of 1.41.0.
"$VENVS/flwr/bin/pip" install --quiet --no-deps flwr==1.42.0
