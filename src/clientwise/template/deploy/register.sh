#!/usr/bin/env bash
# On the server, once per node: lets it in, under the name that flower.clients in experiment.toml gives the client. The
# certificate it makes goes back to the node. With --renew: a new certificate for a node that is registered already.
#   register.sh NAME REQUEST [--renew]
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: register.sh NAME REQUEST [--renew]}" request="${2:?usage: register.sh NAME REQUEST [--renew]}"
mkdir -p "$STATE/members"
authority="$STATE/certificates/ca" member="$STATE/members/$name"
openssl req -in "$request" -verify -noout 2> /dev/null || { echo "$request: no certificate request, or not signed with its own key"; exit 1; }
openssl req -in "$request" -noout -pubkey > "$member.pem"
ssh-keygen -i -m PKCS8 -f "$member.pem" > "$member.pub"
rm "$member.pem"
if [[ "${3:-}" != --renew ]]; then
    said="$(flwr supernode register "$member.pub" federation --name "$name")"
    echo "$said"
    echo "$(grep -oE 'SuperNode [0-9]+' <<< "$said" | cut -d ' ' -f 2) $name" >> "$STATE/members/nodes"  # Flower lists no names
fi
openssl x509 -req -sha384 -in "$request" -CA "$authority.crt" -CAkey "$authority.key" -CAcreateserial -days 730 \
    -out "$member.crt" -extfile <(printf 'extendedKeyUsage=clientAuth\n') 2> /dev/null
echo "send $member.crt to the node"
