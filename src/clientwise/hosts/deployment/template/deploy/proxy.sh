#!/usr/bin/env bash
# On the server, keeps running: nginx, the only service that members reach. It requires a
# certificate made by register.sh and not revoked by revoke.sh, and forwards the fleet API to the
# SuperLink, nothing else. After the server got a new certificate, reload it: kill -HUP.
set -euo pipefail
source "$(dirname "$0")/settings.sh"
folder="$STATE/proxy" certificates="$STATE/certificates"
mkdir -p "$folder"
[[ -e "$certificates/ca.crl" ]] || "$APP/deploy/revoke.sh"
[[ "$HOST" == *:* ]] && address="[$HOST]" || address="$HOST"
cat > "$folder/nginx.conf" <<NGINX
$( (( EUID )) || echo "user root;")  # as root, workers must be able to read state/
daemon off;
pid $folder/nginx.pid;
error_log stderr warn;
worker_processes 1;
# A connection that does not complete its TLS handshake is held for client_header_timeout. There is
# room for 400 new ones in every second.
worker_rlimit_nofile 16384;
events { worker_connections 8192; }
http {
    client_header_timeout 20s;  # handshake and header
    client_body_timeout 30s;    # between two parts of a message
    lingering_time 10s;         # the rest of a message that was refused is read no longer
    send_timeout 30s;
    reset_timedout_connection on;
    limit_conn_zone \$binary_remote_addr zone=addresses:1m;
    limit_conn addresses 64;    # calls at the same time; a node makes two
    log_format member escape=json '{"time":"\$time_iso8601","member":"\$ssl_client_s_dn",'
        '"from":"\$remote_addr","request":"\$request","status":\$status,'
        '"bytes":\$request_length}';
    access_log $folder/access.log member;
    client_body_temp_path $folder/body;
    proxy_temp_path $folder/answers;
    fastcgi_temp_path $folder/unused;
    uwsgi_temp_path $folder/unused;
    scgi_temp_path $folder/unused;
    server_tokens off;
    client_max_body_size 256m;
    upstream superlink {
        server $UPSTREAM;
        keepalive 8;
    }
    server {
        listen ${PROXY_LISTEN:-$address:$PORT} ssl backlog=4096;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_certificate $certificates/server.crt;
        ssl_certificate_key $certificates/server.key;
        ssl_session_tickets off;  # a revoked certificate must not continue a session
        ssl_client_certificate $certificates/ca.crt;
        ssl_crl $certificates/ca.crl;
        ssl_verify_client on;
        location / { return 404; }
        location ~ ^/v1/fleet/((?:de)?activate-node|send-node-heartbeat|(?:pull|push)-(?:messages|object)|get-run|get-fab|confirm-message-received)\$ {
            limit_except POST { deny all; }
            proxy_pass https://superlink/v1/fleet/\$1;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host localhost;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate $certificates/ca.crt;
            proxy_ssl_name localhost;
            proxy_read_timeout 120s;
        }
    }
}
NGINX
log_as proxy
"$APP/deploy/rotate.sh" $$ &
exec "$(PATH="$PATH:/usr/sbin" command -v nginx)" -c "$folder/nginx.conf"
