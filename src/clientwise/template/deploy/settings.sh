# What the scripts share; each of them reads this file. Set what differs in the environment: HOST=fl.example.org ...
APP="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
HOST="${HOST:-127.0.0.1}"          # where the nodes find the SuperLink
PORT="${PORT:-9092}"
LISTEN="${LISTEN:-$HOST}"          # the address the SuperLink listens on
STATE="${STATE:-$APP/state}"       # certificates, keys, database, run: keep it, back it up, show it to nobody
export FLWR_HOME="${FLWR_HOME:-$STATE/flower}"
# Nothing is reported to anybody, and nothing is downloaded while a run begins.
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
umask 077
