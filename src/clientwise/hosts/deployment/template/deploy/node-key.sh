#!/usr/bin/env bash
# On a node, once: creates its key and a certificate request. The key stays on the node. Send the
# request, NAME.csr, to the server's administrator by a channel that proves who sent it.
# For secure aggregation it also creates the node's identity key and prints its public half, which belongs
# into flower.identities of the experiment. Compare that list with the other members, not with the server.
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
openssl genpkey -algorithm ed25519 -out "$name.identity"
public="$(openssl pkey -in "$name.identity" -pubout -outform DER | tail -c 32 | od -An -v -tx1 | tr -d ' \n')"
echo "Send $STATE/keys/$name.csr to the server's administrator."
echo "Copy the certificate that you get to $STATE/keys/$name.crt."
echo "Identity for secure aggregation: $name = \"$public\""
