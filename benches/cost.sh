#!/usr/bin/env bash
# What one request costs the gateway: user instructions and system calls. Both are differences of two counts of
# requests, so that start and end are not in them, and both are steady where times are not.
#
# The load is h2load over 8 kept connections, the config one token-bucket rule on `ip`, the upstream a script that keeps
# its connections. Instructions are counted by valgrind's callgrind, system calls by strace.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
Usage: benches/cost.sh [--case NAME] [--profile NAME] [--max-instructions N] [--max-syscalls N] [--keep DIR]

  --case NAME            forwarded (the default): over HTTP/1.1, never refused; refused: over HTTP/1.1, always refused;
                         h2c: over HTTP/2, 16 streams a connection, never refused
  --profile NAME         the Cargo profile to build and to measure (default: release)
  --max-instructions N   exit 1 if a request takes more user instructions
  --max-syscalls N       exit 1 if a request takes more reads and writes
  --keep DIR             leave callgrind's files there, for callgrind_annotate

Environment: REQUESTS, the larger count of requests (default 4000); the smaller is an eighth of it.
TEXT
}

case=forwarded profile=release most_instructions= most_calls= keep=
while [ $# -gt 0 ]; do
  case $1 in
    --case) case=$2 ;;
    --profile) profile=$2 ;;
    --max-instructions) most_instructions=$2 ;;
    --max-syscalls) most_calls=$2 ;;
    --keep) keep=$2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift 2
done
limit=1000000 window=1s status=2xx load=(--h1)
case $case in
  forwarded) ;;
  refused) limit=1 window=1d status=4xx ;;
  h2c) load=(-m 16) ;;
  *) usage >&2; exit 2 ;;
esac
many=${REQUESTS:-4000}
few=$((many / 8))

# tool:package
need=()
for pair in valgrind:valgrind strace:strace h2load:nghttp2-client curl:curl python3:python3; do
  command -v "${pair%%:*}" >/dev/null || need+=("${pair#*:}")
done
if [ ${#need[@]} -gt 0 ]; then
  apt=(apt-get)
  [ "$(id -u)" -eq 0 ] || apt=(sudo apt-get)
  "${apt[@]}" update -qq
  DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y -qq "${need[@]}" >/dev/null
fi

cargo build --locked --quiet --profile "$profile"
folder=$profile
[ "$profile" != dev ] || folder=debug
tollgate=${CARGO_TARGET_DIR:-target}/$folder/tollgate

work=$(mktemp -d)
started=()
finish() {
  for pid in "${started[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
  wait 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

fail() {
  printf 'cost: %s\n' "$*" >&2
  tail -n 20 "$work"/*.log >&2 || true
  exit 2
}

# until SECONDS COMMAND...: tries it until it succeeds.
until_true() {
  local tries=$(($1 * 20))
  shift
  until "$@"; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || return 1
    sleep 0.05
  done
}

python3 - >"$work/upstream.port" 2>"$work/upstream.log" <<'PY' &
import asyncio

ANSWER = (b"HTTP/1.1 200 OK\r\nServer: script\r\nDate: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: text/plain\r\n"
          b"Content-Length: 3\r\nConnection: keep-alive\r\nETag: \"1\"\r\nAccept-Ranges: bytes\r\n\r\nok\n")


class Upstream(asyncio.Protocol):
    def __init__(self):
        self.seen = b""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.seen += data
        heads = self.seen.split(b"\r\n\r\n")
        self.seen = heads.pop()
        if heads:
            self.transport.write(ANSWER * len(heads))


async def main():
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
PY
started+=($!)
until_true 10 test -s "$work/upstream.port" || fail "the upstream did not start"

cat >"$work/gateway.toml" <<TOML
[server]
listen = ["127.0.0.1:0"]
workers = 1

[admin]
listen = ""

[upstream.api]
targets = ["http://127.0.0.1:$(cat "$work/upstream.port")"]

[[route]]
upstream = "api"

[[rule]]
name = "per-ip"
key = ["ip"]
algorithm = "token-bucket"
limit = $limit
window = "$window"
TOML

# run REQUESTS COMMAND...: the gateway under a tool, with so many requests.
run() {
  local requests=$1 log="$work/gateway.log" pid port
  shift
  : >"$log"
  "$@" "$tollgate" run --config "$work/gateway.toml" 2>"$log" &
  pid=$!
  started+=("$pid")
  until_true 60 grep -q 'listening' "$log" || fail "the gateway did not start"
  port=$(grep -m1 'listening' "$log" | grep -o '127\.0\.0\.1:[0-9]*' | cut -d: -f2)
  # One goes ahead: a limit of 1 is used up then.
  curl -s -o /dev/null -m 10 "http://127.0.0.1:$port/items/1" || fail "no answer"
  timeout 120 h2load "${load[@]}" -c 8 -n "$requests" "http://127.0.0.1:$port/items/1" >"$work/load.log" 2>&1 || fail "no load"
  grep -q "$requests done" "$work/load.log" || fail "requests got no answer"
  grep -Eq "[ ,:]$requests $status" "$work/load.log" || fail "answers are not $status"
  # strace passes no signal on: the gateway is its child.
  kill -TERM "$(cat "/proc/$pid/task/$pid/children" | grep -o '^[0-9]*' || echo "$pid")"
  until_true 60 eval "! kill -0 $pid 2>/dev/null" || fail "the gateway did not end"
}

instructions() {
  run "$1" valgrind --tool=callgrind --callgrind-out-file="$work/callgrind.$1"
  awk '$1 == "summary:" || $1 == "totals:" { total = $2 } END { print total }' "$work/callgrind.$1" >"$work/total.$1"
}

calls() {
  run "$1" strace -f -c -o "$work/strace.$1"
}

# calls_by_request NAME...: system calls of these names for each request.
calls_by_request() {
  awk -v names=" $* " -v requests=$((many - few)) '
    $1 ~ /^[0-9.]+$/ && index(names, " " $NF " ") { sum += (FNR == NR ? -1 : 1) * $4 }
    END { printf "%.2f", sum / requests }' "$work/strace.$few" "$work/strace.$many"
}

for requests in "$few" "$many"; do
  printf 'counting: %s requests\n' "$requests" >&2
  instructions "$requests"
  calls "$requests"
done

per_request=$((($(cat "$work/total.$many") - $(cat "$work/total.$few")) / (many - few)))
reads=$(calls_by_request read readv recvfrom recvmsg)
writes=$(calls_by_request write writev sendto sendmsg)
waits=$(calls_by_request epoll_wait epoll_pwait epoll_pwait2)
printf 'instructions a request: %s\n' "$per_request"
printf 'reads a request: %s, writes: %s, waits: %s\n' "$reads" "$writes" "$waits"
if [ -n "$keep" ]; then
  mkdir -p "$keep"
  cp "$work"/callgrind.* "$work"/strace.* "$keep"
fi

verdict=0
if [ -n "$most_instructions" ] && [ "$per_request" -gt "$most_instructions" ]; then
  printf 'more than %s instructions\n' "$most_instructions" >&2
  verdict=1
fi
if [ -n "$most_calls" ] && awk "BEGIN { exit !($reads + $writes > $most_calls) }"; then
  printf 'more than %s reads and writes\n' "$most_calls" >&2
  verdict=1
fi
exit $verdict
