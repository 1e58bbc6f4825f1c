#!/usr/bin/env bash
# On a node, once: its key. The private half never leaves the node; send NAME.pub to the server's administrator.
#   node-key.sh NAME
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: node-key.sh NAME}"
mkdir -p "$STATE/keys"
ssh-keygen -q -t ecdsa -b 384 -N "" -C "$name" -f "$STATE/keys/$name"
echo "send $STATE/keys/$name.pub to the server's administrator"
