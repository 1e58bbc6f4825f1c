#!/usr/bin/env bash
# On the server, once per node: registers a node's key and makes its certificate. NAME must be in
# flower.clients of experiment.toml. Send the certificate back to the node.
# With --renew: makes a new certificate for the key that is already registered.
# SAMPLES=480: the number of training samples that the node declares. Other numbers are refused in
# a run (flower.max_change); state/members/declared has the declared numbers.
#   register.sh NAME REQUEST [--renew]
set -euo pipefail
source "$(dirname "$0")/settings.sh"
name="${1:?usage: register.sh NAME REQUEST [--renew]}"
request="${2:?usage: register.sh NAME REQUEST [--renew]}"
authority="$STATE/certificates/ca"
member="$STATE/members/$name"
refuse() { echo "$1"; exit 1; }

mkdir -p "$STATE/members"
[[ -r "$request" ]] || refuse "$request: no such file, or $(id -un) cannot read it"
openssl req -in "$request" -verify -noout 2> /dev/null ||
    refuse "$request: not a certificate request, or not signed with its own key"
subject="$(openssl req -in "$request" -noout -subject -nameopt sname,sep_comma_plus)"
[[ "$subject" == "subject=CN=$name" ]] ||
    refuse "$request is a request of ${subject#subject=}, not of CN=$name"
key="$(openssl req -in "$request" -noout -pubkey | ssh-keygen -i -m PKCS8 -f /dev/stdin)"
if [[ "${3:-}" == --renew ]]; then
    [[ -e "$member.pub" && "$key" == "$(cat "$member.pub")" ]] ||
        refuse "$request: not the key that is registered for $name; omit --renew for a new key"
else
    echo "$key" > "$member.new"
    said="$(flwr supernode register "$member.new" federation --name "$name")"
    mv "$member.new" "$member.pub"
    echo "$said"
    node="$(grep -oE 'SuperNode [0-9]+' <<< "$said" | cut -d ' ' -f 2)"
    [[ "$request" -ef "$member.csr" ]] || cp "$request" "$member.csr"  # for restore.sh
    echo "$node $name" >> "$STATE/members/nodes"  # for watch.sh: Flower's list has no names
fi
if [[ -n "${SAMPLES:-}" ]]; then
    echo "$name dataset_size $SAMPLES" >> "$STATE/members/declared"
fi
openssl x509 -req -sha384 -in "$request" -CA "$authority.crt" -CAkey "$authority.key" \
    -CAcreateserial -days 730 -out "$member.crt" \
    -extfile <(echo extendedKeyUsage=clientAuth) 2> /dev/null
issued="$STATE/certificates/issued/$name"  # for revoke.sh
mkdir -p "$issued"
cp "$member.crt" "$issued/$(date +%s%N).crt"
echo "Send $member.crt to the node."
