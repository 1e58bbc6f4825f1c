#!/usr/bin/env bash
# Where the release key is: signs what members install, after lock.py wrote deploy/requirements.lock.
# Writes deploy/release (the hash of every file of the app, of the lock file and of clientwise) and
# deploy/release.sig, and copies clientwise to deploy/. Send the folder to every member.
#   sign.sh CLIENTWISE.whl      RELEASE_KEY: default state/certificates/release.key
set -euo pipefail
source "$(dirname "$0")/settings.sh"
umask 022  # a release is no secret: the node's user reads it
wheel="$(realpath "${1:?usage: sign.sh CLIENTWISE.whl}")"
cd "$APP"
[[ -e deploy/requirements.lock ]] || { echo "run deploy/lock.py first"; exit 1; }
rm -f deploy/clientwise-*.whl
cp "$wheel" deploy/
python -m clientwise.hosts.deployment.node hash . > deploy/bundle
find federation deploy LICENSE pyproject.toml -type f ! -path '*/__pycache__/*' ! -name local.sh \
    ! -name 'release*' -print0 | sort -z | xargs -0 sha256sum > deploy/release
openssl pkeyutl -sign -rawin -inkey "${RELEASE_KEY:-$STATE/certificates/release.key}" \
    -in deploy/release -out deploy/release.sig
echo "Signed. Tell the members by telephone: $(sha256sum < deploy/release | cut -d ' ' -f 1)"
