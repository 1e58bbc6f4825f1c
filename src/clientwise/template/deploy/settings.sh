# What the scripts share; each of them reads this file. Write what differs into deploy/local.sh (HOST=fl.example.org),
# which stays on this machine, or set it in the environment, which counts before that file.
APP="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [[ -e "$APP/deploy/local.sh" ]]; then
    environment="$(unset PATH; export -p)"  # the file may add to the PATH
    source "$APP/deploy/local.sh"
    eval "$environment"
fi
HOST="${HOST:-127.0.0.1}"            # where the nodes find the server: the proxy, or on one machine the SuperLink itself
PORT="${PORT:-9092}"
LISTEN="${LISTEN:-127.0.0.1}"        # where the SuperLink listens: whoever reaches it controls it, so nobody else may
LINK_PORT="${LINK_PORT:-$PORT}"
UPSTREAM="${UPSTREAM:-$LISTEN:$LINK_PORT}"  # where the proxy finds the SuperLink; unix:/path for a socket
VENV="${VENV:-$APP/venv}"            # where clientwise is installed; if it is not there, what is on the PATH is used
[[ ! -d "$VENV/bin" ]] || export PATH="$VENV/bin:$PATH"
STATE="${STATE:-$APP/state}"         # certificates, keys, database, run: keep it, back it up, show it to nobody
ALERT="${ALERT:-}"                   # server: a command that is given what needs a person, as JSON: 'logger -t federation'
export FLWR_HOME="${FLWR_HOME:-$STATE/flower}"
# Nothing is reported to anybody, and nothing is downloaded while a run begins.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
umask 077
log_as() {  # log_as SERVICE: with LOG=json, what it says from here on is JSON
    [[ "${LOG:-}" != json ]] || exec > >(exec python "$APP/deploy/log.py" "$1") 2>&1
}
