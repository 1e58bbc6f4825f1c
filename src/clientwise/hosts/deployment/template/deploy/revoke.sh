#!/usr/bin/env bash
# On the server: revokes certificates of a member and reloads the proxy, which then refuses them.
# Without NAME: writes the list of revoked certificates again.
#   revoke.sh [NAME [--old]]      --old: all but the newest, after a new key or certificate
set -euo pipefail
source "$(dirname "$0")/settings.sh"
cd "$STATE/certificates"
touch revoked
[[ -e revoked.number ]] || echo 01 > revoked.number
authority() {  # the list must outlive the authority: nginx refuses everyone once it has expired
    openssl ca -config <(printf '%s\n' '[ca]' 'default_ca = list' '[list]' \
        'database = revoked' 'crlnumber = revoked.number' 'default_md = sha384' \
        'default_crl_days = 3650' 'unique_subject = no') -cert ca.crt -keyfile ca.key "$@" 2> error ||
        { cat error; exit 1; }
}
if [[ -n "${1:-}" ]]; then
    shopt -s nullglob
    issued=("issued/$1"/*.crt)  # named by the time of issue, the newest last
    [[ "${2:-}" != --old || ! -v 'issued[0]' ]] || unset 'issued[-1]'
    if (( ! ${#issued[@]} )); then
        echo "no certificate of $1 to revoke"
        exit 1
    fi
    for certificate in "${issued[@]}"; do
        serial="$(openssl x509 -in "$certificate" -noout -serial)"
        grep -qw "${serial#serial=}" revoked || authority -revoke "$certificate"
        echo "revoked certificate ${serial#serial=} of $1"
    done
fi
authority -gencrl -out ca.crl.new
mv ca.crl.new ca.crl
rm -f error
pid="$(cat "$STATE/proxy/nginx.pid" 2> /dev/null || true)"
[[ -z "$pid" ]] || kill -HUP "$pid" 2> /dev/null || echo "the proxy does not run: it reads the list when it starts"
