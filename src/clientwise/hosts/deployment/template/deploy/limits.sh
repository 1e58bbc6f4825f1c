#!/usr/bin/env bash
# On the server, as root, after every boot (federation-limits.service does it): the kernel refuses
# more than CONNECTIONS connections of one address to the proxy, before any TLS handshake. Addresses
# of IPv6 count by their network (/64). Needs nftables. To undo it: nft delete table inet federation
set -euo pipefail
source "$(dirname "$0")/settings.sh"
most="${CONNECTIONS:-64}"
nft -f - <<NFT
table inet federation
delete table inet federation
table inet federation {
    set addresses { type ipv4_addr; size 65536; flags dynamic; }
    set networks { type ipv6_addr; size 65536; flags dynamic; }
    chain input {
        type filter hook input priority filter;
        tcp dport $PORT ct state new add @addresses { ip saddr ct count over $most } reject with tcp reset
        tcp dport $PORT ct state new add @networks { ip6 saddr & ffff:ffff:ffff:ffff:: ct count over $most } reject with tcp reset
    }
}
NFT
echo "At most $most connections of one address to port $PORT."
