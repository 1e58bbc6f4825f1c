#!/usr/bin/env bash
# On the server, once per node: lets it in, under the name that flower.clients in experiment.toml gives the client. The
# certificate it makes goes back to the node. With --renew: a new certificate for the key that is registered already.
#   register.sh NAME REQUEST [--renew]
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: register.sh NAME REQUEST [--renew]}" request="${2:?usage: register.sh NAME REQUEST [--renew]}"
mkdir -p "$STATE/members"
authority="$STATE/certificates/ca" member="$STATE/members/$name"
openssl req -in "$request" -verify -noout 2> /dev/null || { echo "$request: no certificate request, or not signed with its own key"; exit 1; }
subject="$(openssl req -in "$request" -noout -subject -nameopt sname,sep_comma_plus)"
[[ "$subject" == "subject=CN=$name" ]] || { echo "$request is a request of ${subject#subject=}, not of CN=$name"; exit 1; }
key="$(openssl req -in "$request" -noout -pubkey | ssh-keygen -i -m PKCS8 -f /dev/stdin)"
if [[ "${3:-}" == --renew ]]; then
    [[ -e "$member.pub" && "$key" == "$(cat "$member.pub")" ]] ||
        { echo "$request: not the key that is registered for $name; a new key is registered without --renew"; exit 1; }
else
    echo "$key" > "$member.new"
    said="$(flwr supernode register "$member.new" federation --name "$name")"
    mv "$member.new" "$member.pub"
    echo "$said"
    echo "$(grep -oE 'SuperNode [0-9]+' <<< "$said" | cut -d ' ' -f 2) $name" >> "$STATE/members/nodes"  # Flower lists no names
fi
openssl x509 -req -sha384 -in "$request" -CA "$authority.crt" -CAkey "$authority.key" -CAcreateserial -days 730 \
    -out "$member.crt" -extfile <(printf 'extendedKeyUsage=clientAuth\n') 2> /dev/null
echo "send $member.crt to the node"
