#!/usr/bin/env bash
# On a node, once: creates its key and a certificate request. The key stays on the node. Send the
# request, NAME.csr, to the server's administrator by a channel that proves who sent it.
#   node-key.sh NAME
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: node-key.sh NAME}"
mkdir -p "$STATE/keys"
cd "$STATE/keys"
ssh-keygen -q -t ecdsa -b 384 -N "" -C "$name" -f "$name"  # the format that Flower reads
cp "$name" "$name.pem"
ssh-keygen -q -p -m PEM -P "" -N "" -f "$name.pem" > /dev/null  # the same key for TLS
openssl req -new -sha384 -key "$name.pem" -subj "/CN=$name" -out "$name.csr"
echo "Send $STATE/keys/$name.csr to the server's administrator."
echo "Copy the certificate that you get to $STATE/keys/$name.crt."
