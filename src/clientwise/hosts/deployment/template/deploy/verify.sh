#!/usr/bin/env bash
# On a node: checks that this folder is a release signed with state/release.pub, and prints the hash
# to compare by telephone.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
cd "$APP"
refuse() { echo "REFUSED: $1"; exit 1; }
openssl pkeyutl -verify -rawin -pubin -inkey "$STATE/release.pub" -in deploy/release \
    -sigfile deploy/release.sig > /dev/null 2>&1 ||
    refuse "deploy/release is not signed with $STATE/release.pub"
sha256sum --check --strict --quiet deploy/release 2> /dev/null ||
    refuse "a file is not the one that was signed"
added="$(find federation deploy ! -type d ! -path '*/__pycache__/*' ! -path deploy/local.sh \
    ! -path deploy/release ! -path deploy/release.sig | LC_ALL=C sort |
    LC_ALL=C comm -23 - <(cut -c 67- deploy/release | LC_ALL=C sort))"
[[ -z "$added" ]] || refuse "not in the signed list: $(tr '\n' ' ' <<< "$added")
If an earlier release left it, delete it. Otherwise ask the signer."
echo "Signed. Compare by telephone: $(sha256sum < deploy/release | cut -d ' ' -f 1)"
