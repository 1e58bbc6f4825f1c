#!/usr/bin/env bash
# On the server: a certificate authority of your own (once), a certificate for the server (again before it ends), and how
# `flwr` finds the SuperLink. The nodes need state/certificates/ca.crt and nothing else of this.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
mkdir -p "$STATE/certificates" "$FLWR_HOME"
cd "$STATE/certificates"
if [[ ! -e ca.key ]]; then
    openssl ecparam -name secp384r1 -genkey -noout -out ca.key
    openssl req -new -x509 -sha384 -key ca.key -days 3650 -subj "/CN=federation authority" -out ca.crt
fi
[[ "$HOST" =~ ^[0-9.]+$ || "$HOST" == *:* ]] && name="IP:$HOST" || name="DNS:$HOST"
openssl ecparam -name secp384r1 -genkey -noout -out server.key
openssl req -new -sha384 -key server.key -subj "/CN=$HOST" |
    openssl x509 -req -sha384 -CA ca.crt -CAkey ca.key -CAcreateserial -days 730 -out server.crt \
        -extfile <(printf 'subjectAltName=%s,IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n' "$name")
cat > "$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "federation"

[superlink.federation]
address = "$LISTEN:$LINK_PORT"
root-certificates = "$STATE/certificates/ca.crt"
TOML
echo "certificates in $STATE/certificates; give ca.crt to every node"
