#!/usr/bin/env bash
# On a node, once: its key, and a request for a certificate. The key never leaves the node; send NAME.csr to the server's
# administrator, by a way that tells who sent it.
#   node-key.sh NAME
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: node-key.sh NAME}"
mkdir -p "$STATE/keys"
cd "$STATE/keys"
ssh-keygen -q -t ecdsa -b 384 -N "" -C "$name" -f "$name"           # as Flower reads it,
cp "$name" "$name.pem"
ssh-keygen -q -p -m PEM -P "" -N "" -f "$name.pem" > /dev/null      # and the same key as TLS does
openssl req -new -sha384 -key "$name.pem" -subj "/CN=$name" -out "$name.csr"
echo "send $STATE/keys/$name.csr to the server's administrator, and put the certificate you get beside it"
