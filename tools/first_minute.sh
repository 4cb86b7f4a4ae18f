#!/bin/sh
# Record the first minute with a graph: an empty environment, one command, one answer.
#
#     tools/first_minute.sh model_repository/text_encoder/1/model.onnx
#
# Each line begins with the seconds since the start. The folder of the environment is removed.
set -eu
graph=$(realpath "$1")
project=$(realpath "$(dirname "$0")/..")
folder=$(mktemp -d)
start=$(date +%s.%N)
trap 'kill "$server" 2>/dev/null || true; wait; rm -rf "$folder"' EXIT INT TERM
cd "$folder"
stamped() { while IFS= read -r line || [ -n "$line" ]; do printf '%6.1f  %s\n' "$(echo "$(date +%s.%N) - $start" | bc)" "$line"; done; }
run() { echo "\$ $*" | stamped; "$@" 2>&1 | stamped; }

run python3 -m venv .venv
PATH="$folder/.venv/bin:$PATH"
run pip install -qq "$project" "$project/plugin[serve]"
echo "\$ ge-runtime serve $(basename "$graph")" | stamped
ge-runtime serve "$graph" >out 2>&1 &
server=$!
tail -f --pid=$server out | stamped &
until grep -q '^curl' out; do sleep 0.2; done
request=$(grep '^curl' out)
run sh -c "$request"
