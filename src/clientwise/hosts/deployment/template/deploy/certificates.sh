#!/usr/bin/env bash
# On the server: creates a certificate authority, the key that signs the server's instructions and
# the key that signs releases (once), a certificate for the server (each time; run it again before
# the certificate expires), and the address at which `flwr` finds the SuperLink. The nodes need
# ca.crt, instructions.pub and release.pub of state/certificates.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
mkdir -p "$STATE/certificates" "$FLWR_HOME"
cd "$STATE/certificates"
if [[ ! -e ca.key ]]; then
    openssl ecparam -name secp384r1 -genkey -noout -out ca.key
    openssl req -new -x509 -sha384 -key ca.key -days 3650 -subj "/CN=federation authority" \
        -out ca.crt
fi
for purpose in instructions release; do
    [[ -e $purpose.key ]] || openssl genpkey -algorithm ed25519 -out $purpose.key
    openssl pkey -in $purpose.key -pubout -out $purpose.pub
done
"$APP/deploy/revoke.sh"
[[ "$HOST" =~ ^[0-9.]+$ || "$HOST" == *:* ]] && name="IP:$HOST" || name="DNS:$HOST"
openssl ecparam -name secp384r1 -genkey -noout -out server.key
openssl req -new -sha384 -key server.key -subj "/CN=$HOST" |
    openssl x509 -req -sha384 -CA ca.crt -CAkey ca.key -CAcreateserial -days 730 -out server.crt \
        -extfile <(
            echo "subjectAltName=$name,IP:127.0.0.1,DNS:localhost"
            echo "extendedKeyUsage=serverAuth"
        )
cat > "$FLWR_HOME/config.toml" <<TOML
[superlink]
default = "federation"

[superlink.federation]
address = "$LISTEN:$LINK_PORT"
root-certificates = "$STATE/certificates/ca.crt"
TOML
echo "Wrote certificates to $STATE/certificates. Copy ca.crt, instructions.pub and release.pub to"
echo "every node. Compare their hashes by telephone:"
sha256sum ca.crt instructions.pub release.pub
