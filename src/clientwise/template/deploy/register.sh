#!/usr/bin/env bash
# On the server, once per node: its public key, under the name that flower.clients in experiment.toml gives the client.
#   register.sh NAME PUBLIC_KEY
set -euo pipefail
source "$(dirname "$0")/settings.sh"
flwr supernode register "${2:?usage: register.sh NAME PUBLIC_KEY}" federation --name "$1"
