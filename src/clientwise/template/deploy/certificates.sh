#!/usr/bin/env bash
# On the server, once: a certificate authority of your own, a certificate for the SuperLink, and how `flwr` finds it.
# The nodes need state/certificates/ca.crt and nothing else of this.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
mkdir -p "$STATE/certificates" "$FLWR_HOME"
cd "$STATE/certificates"
[[ "$HOST" =~ ^[0-9.]+$ || "$HOST" == *:* ]] && name="IP:$HOST" || name="DNS:$HOST"
openssl ecparam -name secp384r1 -genkey -noout -out ca.key
openssl req -new -x509 -sha384 -key ca.key -days 3650 -subj "/CN=federation authority" -out ca.crt
openssl ecparam -name secp384r1 -genkey -noout -out server.key
openssl req -new -sha384 -key server.key -subj "/CN=$HOST" -out server.csr
openssl x509 -req -sha384 -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 730 -out server.crt \
    -extfile <(printf 'subjectAltName=%s,IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n' "$name")
rm server.csr
cat > "$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "federation"

[superlink.federation]
address = "$HOST:$PORT"
root-certificates = "$STATE/certificates/ca.crt"
TOML
echo "certificates in $STATE/certificates; give ca.crt to every node"
