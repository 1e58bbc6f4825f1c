# Settings of all scripts. To change one, write it into deploy/local.sh (HOST=fl.example.org), which
# stays on this machine, or set it in the environment, which takes precedence over that file.
APP="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ -e "$APP/deploy/local.sh" ]]; then
    environment="$(unset PATH; export -p)"  # the file may add to the PATH
    source "$APP/deploy/local.sh"
    eval "$environment"
fi
# Address of the server for the nodes: the proxy, or for a trial on one machine the SuperLink
# itself.
HOST="${HOST:-127.0.0.1}"
PORT="${PORT:-9092}"
# Address of the SuperLink. Everyone who reaches it controls it: keep it local.
LISTEN="${LISTEN:-127.0.0.1}"
LINK_PORT="${LINK_PORT:-$PORT}"
# Address of the SuperLink for the proxy; unix:/path for a socket.
UPSTREAM="${UPSTREAM:-$LISTEN:$LINK_PORT}"
# Environment in which clientwise is installed; without it, the PATH is used. Flower leaves the folder
# .venv out of an app. In a folder of another name, it refuses the deep paths of torch.
VENV="${VENV:-$APP/.venv}"
[[ ! -d "$VENV/bin" ]] || export PATH="$VENV/bin:$PATH"
# Certificates, keys, database and run. Back it up and keep it secret.
STATE="${STATE:-$APP/state}"
# On the server: a command that gets alerts as JSON on its standard input, such as 'logger -t
# federation'.
ALERT="${ALERT:-}"
# On the server: true stores every member's updates in state/superlink.sqlite, as Flower does. By
# default they are in memory only, and deleted when the server has read them.
KEEP_UPDATES="${KEEP_UPDATES:-false}"
export FLWR_HOME="${FLWR_HOME:-$STATE/flower}"
# No usage statistics, no update checks, and no downloads when a run starts.
export FLWR_TELEMETRY_ENABLED=0
export FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
umask 077
refuse_open() {  # refuse_open PATH: other users of this machine must not read it
    [[ -z "$(find "$1" -maxdepth 0 -perm /077)" ]] && return
    echo "$1 can be read by other users of this machine: run chmod -R go= $1"
    exit 1
}
log_as() {  # log_as SERVICE: the output from here on has no control characters; LOG=json: JSON
    exec > >(LOG="${LOG:-}" exec python "$APP/deploy/log.py" "$1") 2>&1
}
