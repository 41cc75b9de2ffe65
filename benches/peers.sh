#!/usr/bin/env bash
# Tollgate beside nginx and haproxy: requests a second at saturation, and CPU time of the proxy for each request.
#
# The proxy has core 0 to itself, the load generator and the upstream (nginx) have core 1; each has one worker and 64
# kept connections. Proxies take turns within a round; the ratio to nginx is taken within each round and then its
# median, as times of different rounds cannot be compared on a machine that others use. With limits in Redis, nginx has its
# Lua module and client, and asks with one EVALSHA for each request; the redis-server is the same, and on core 1.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
Usage: benches/peers.sh [--markdown FILE]

  --markdown FILE   write the table there as well, as Markdown

Environment: ROUNDS (default 5), SECONDS_PER (default 4) for each measurement, CASES and PROXIES to choose some of
"plain limited rejected h2c redis redis-rejected" and "nginx haproxy tollgate". ROUNDS=1 SECONDS_PER=1 is a quick try.
TEXT
}

markdown=
while [ $# -gt 0 ]; do
  case $1 in
    --markdown) markdown=${2:?a file}; shift 2 ;;
    -h | --help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
rounds=${ROUNDS:-5} length=${SECONDS_PER:-4}
read -ra cases <<<"${CASES:-plain limited rejected h2c redis redis-rejected}"
read -ra proxies <<<"${PROXIES:-nginx haproxy tollgate}"

# tool:package
need=()
for pair in nginx:nginx haproxy:haproxy wrk:wrk h2load:nghttp2-client curl:curl python3:python3 redis-server:redis-server; do
  command -v "${pair%%:*}" >/dev/null || need+=("${pair#*:}")
done
modules=/usr/lib/nginx/modules
[ -e $modules/ngx_http_lua_module.so ] || need+=(libnginx-mod-http-lua)
[ -e /usr/share/lua/5.1/nginx/redis.lua ] || need+=(lua-nginx-redis)
if [ ${#need[@]} -gt 0 ]; then
  apt=(apt-get)
  [ "$(id -u)" -eq 0 ] || apt=(sudo apt-get)
  "${apt[@]}" update -qq
  DEBIAN_FRONTEND=noninteractive "${apt[@]}" install -y -qq "${need[@]}" >/dev/null
fi
cargo build --locked --quiet --release
tollgate=${CARGO_TARGET_DIR:-target}/release/tollgate

proxy_core=0 load_core=1
[ "$(nproc)" -gt 1 ] || load_core=0
work=$(mktemp -d)
chmod 755 "$work"
upstream= proxy= redis=
finish() {
  for pid in $proxy $upstream $redis; do stop "$pid"; done
  rm -rf "$work"
}
# stop PID: a process of ours and its children.
stop() {
  local children
  children=$(cat /proc/"$1"/task/*/children 2>/dev/null || true)
  kill -KILL "$1" $children 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}
trap finish EXIT

fail() {
  printf 'peers: %s\n' "$*" >&2
  tail -n 20 "$work"/*.log >&2 || true
  exit 1
}

read -r upstream_port port redis_port < <(python3 -c '
import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(s.getsockname()[1] for s in held))')

# answers STATUS [CURL ARGUMENT...]: waits until the proxy gives that status.
answers() {
  local status=$1 seen= tries=200
  shift
  while [ $tries -gt 0 ]; do
    seen=$(curl -s -o /dev/null -m 2 -w '%{http_code}' "$@" || true)
    [ "$seen" != "$status" ] || return 0
    tries=$((tries - 1))
    sleep 0.05
  done
  fail "$* answers $seen, not $status"
}

nginx_common() {
  cat <<CONF
daemon off; worker_processes 1; pid $work/$1.pid; error_log $work/$1.log crit;
events { worker_connections 1024; }
CONF
}

start_upstream() {
  {
    nginx_common upstream
    cat <<CONF
http {
  access_log off; keepalive_requests 1000000000; default_type text/plain;
  server { listen 127.0.0.1:$upstream_port; location / { return 200 "0123456789abcdef0123456789abcdef"; } }
}
CONF
  } >"$work/upstream.conf"
  taskset -c $load_core nginx -c "$work/upstream.conf" -e "$work/upstream.log" &
  upstream=$!
  answers 200 "http://127.0.0.1:$upstream_port/"
}

# What nginx asks Redis: a fixed window, the least that such a script can do.
WINDOW='local used = redis.call("INCRBY", KEYS[1], 1)
if used == 1 then redis.call("PEXPIRE", KEYS[1], ARGV[2]) end
return { used, redis.call("PTTL", KEYS[1]) }'

start_redis() {
  taskset -c $load_core redis-server --bind 127.0.0.1 --port "$redis_port" --save '' --dir "$work" --maxmemory-policy noeviction \
    >"$work/redis.log" 2>&1 &
  redis=$!
  local tries=100
  until window=$(redis-cli -p "$redis_port" SCRIPT LOAD "$WINDOW" 2>/dev/null) && [ ${#window} = 40 ]; do
    tries=$((tries - 1))
    [ $tries -gt 0 ] || fail "redis-server does not answer"
    sleep 0.05
  done
}

# nginx_lua LIMIT MILLISECONDS: what decides a request in nginx.
nginx_lua() {
  cat <<LUA
access_by_lua_block {
  local redis = require("nginx.redis"):new()
  redis:set_timeout(1000)
  if not redis:connect("127.0.0.1", $redis_port) then return ngx.exit(503) end
  local found = redis:evalsha("$window", 1, "limit:" .. ngx.var.binary_remote_addr, $1, $2)
  redis:set_keepalive(60000, 256)
  if not found then return ngx.exit(503) end
  ngx.header["X-RateLimit-Limit"] = $1
  ngx.header["X-RateLimit-Remaining"] = math.max(0, $1 - found[1])
  ngx.header["X-RateLimit-Reset"] = math.ceil(ngx.now() + found[2] / 1000)
  if found[1] > $1 then
    ngx.header["Retry-After"] = math.ceil(found[2] / 1000)
    return ngx.exit(429)
  end
}
LUA
}

nginx_config() {
  local zone= limit= http2=
  case $1 in
    redis*) printf 'load_module %s;\n' $modules/ndk_http_module.so $modules/ngx_http_lua_module.so ;;
  esac
  case $1 in
    redis) limit=$(nginx_lua 1000000000 3600000) ;;
    redis-rejected) limit=$(nginx_lua 1 3600000) ;;
    limited) zone='limit_req_zone $binary_remote_addr zone=ip:10m rate=1000000r/s;' limit='limit_req zone=ip burst=1000000 nodelay;' ;;
    rejected) zone='limit_req_zone $binary_remote_addr zone=ip:10m rate=1r/m;' limit='limit_req zone=ip;' ;;
    h2c) http2=' http2' ;;
  esac
  nginx_common nginx
  cat <<CONF
http {
  access_log off; keepalive_requests 1000000000; $zone limit_req_status 429; limit_req_log_level info;
  upstream api { server 127.0.0.1:$upstream_port; keepalive 128; keepalive_requests 1000000000; }
  server {
    listen 127.0.0.1:$port$http2;
    location / { $limit proxy_pass http://api; proxy_http_version 1.1; proxy_set_header Connection ""; }
  }
}
CONF
}

haproxy_config() {
  local rules= proto=
  case $1 in
    limited | rejected)
      local most=4000000000
      [ "$1" = limited ] || most=0
      rules="stick-table type ip size 100k expire 60s store http_req_rate(10s)
  http-request track-sc0 src
  http-request deny deny_status 429 if { sc_http_req_rate(0) gt $most }"
      ;;
    h2c) proto=' proto h2' ;;
  esac
  cat <<CONF
global
  nbthread 1
  maxconn 4096
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 2s
  http-reuse always
frontend in
  bind 127.0.0.1:$port$proto
  $rules
  default_backend api
backend api
  server one 127.0.0.1:$upstream_port pool-max-conn 128
CONF
}

tollgate_config() {
  cat <<TOML
[server]
listen = ["127.0.0.1:$port"]
workers = 1

[admin]
listen = ""

[upstream.api]
targets = ["http://127.0.0.1:$upstream_port"]

[[route]]
upstream = "api"
TOML
  local limit=1000000 window=1s
  case $1 in
    *limited | redis) ;;
    *rejected) limit=1 window=1h ;;
    *) return 0 ;;
  esac
  case $1 in
    redis*) printf '\n[store]\nkind = "redis"\nshards = ["redis://127.0.0.1:%s"]\n' "$redis_port" ;;
  esac
  cat <<TOML

[[rule]]
name = "per-ip"
key = ["ip"]
algorithm = "token-bucket"
limit = $limit
window = "$window"
TOML
}

start_proxy() {
  local name=$1 case=$2 ask=()
  "${name}_config" "$case" >"$work/$name.conf"
  case $name in
    nginx) taskset -c $proxy_core nginx -c "$work/nginx.conf" -e "$work/nginx.log" & ;;
    haproxy) taskset -c $proxy_core haproxy -db -f "$work/haproxy.conf" >"$work/haproxy.log" 2>&1 & ;;
    tollgate) taskset -c $proxy_core "$tollgate" run --config "$work/tollgate.conf" >"$work/tollgate.log" 2>&1 & ;;
  esac
  proxy=$!
  [ "$case" != h2c ] || ask=(--http2-prior-knowledge)
  case $case in
    *rejected) answers 429 "http://127.0.0.1:$port/items/1" ;;
    *) answers 200 "${ask[@]}" "http://127.0.0.1:$port/items/1" ;;
  esac
}

# Nanoseconds that the proxy and its children have run.
run_time() {
  local pid total=0 ran
  for pid in $proxy $(cat /proc/"$proxy"/task/*/children); do
    for ran in /proc/"$pid"/task/*/schedstat; do
      total=$((total + $(cut -d' ' -f1 "$ran")))
    done
  done
  echo $total
}

# load CASE SECONDS: prints the requests that were answered, and how many of them not as the case wants.
load() {
  local url="http://127.0.0.1:$port/items/1" bound=$(($2 + 20))
  if [ "$1" = h2c ]; then
    timeout $bound taskset -c $load_core h2load -c 8 -m 16 -D "$2" "$url" >"$work/load.log" 2>&1 || fail "h2load"
    awk '/^requests:/ { done = $8; bad = $10 + $12 + $14 } END { print done, bad + 0 }' "$work/load.log"
  else
    timeout $bound taskset -c $load_core wrk -t 1 -c 64 -d "${2}s" "$url" >"$work/load.log" 2>&1 || fail "wrk"
    awk '/requests in/ { done = $1 } /Non-2xx/ { odd = $NF } END { print done, odd + 0 }' "$work/load.log"
  fi
}

measure() {
  local round=$1 case=$2 name=$3 before after from to answered odd
  case $name:$case in haproxy:redis*) return 0 ;; esac
  redis-cli -p "$redis_port" FLUSHDB >/dev/null
  start_proxy "$name" "$case"
  load "$case" 1 >/dev/null
  before=$(run_time) from=$(date +%s%N)
  read -r answered odd < <(load "$case" "$length")
  to=$(date +%s%N) after=$(run_time)
  stop "$proxy"
  proxy=
  [ "${answered:-0}" -gt 0 ] || fail "$name answered nothing"
  [[ "$case" = *rejected ]] && odd=$((answered > odd ? answered - odd : 0))
  [ $((odd * 100)) -le "$answered" ] || fail "$name, $case: $odd of $answered answers are not what was asked for"
  awk -v r="$round" -v c="$case" -v n="$name" -v a="$answered" -v t=$((to - from)) -v cpu=$((after - before)) \
    'BEGIN { printf "%d %s %s %.0f %.2f\n", r, c, n, a * 1e9 / t, cpu / a / 1000 }' | tee -a "$work/measured" |
    awk '{ printf "round %d  %-14s %-9s %7d requests/s  %6.2f CPU-µs\n", $1, $2, $3, $4, $5 }' >&2
}

start_upstream
start_redis
for ((round = 1; round <= rounds; round++)); do
  for case in "${cases[@]}"; do
    for name in "${proxies[@]}"; do
      measure $round "$case" "$name"
    done
  done
done

MARKDOWN=$markdown python3 - "$work/measured" <<'PY'
import os
import sys
from statistics import median

TITLES = {"plain": "plain", "limited": "limit by address, never reached", "rejected": "all rejected (429)",
          "h2c": "HTTP/2, 8 × 16 streams", "redis": "limit in Redis, never reached",
          "redis-rejected": "all rejected by Redis (429)"}
found = {}
for line in open(sys.argv[1]):
    turn, case, name, rate, cpu = line.split()
    found.setdefault(case, {}).setdefault(name, {})[int(turn)] = (float(rate), float(cpu))

rows = []
for case, proxies in found.items():
    base = proxies.get("nginx", {})
    for name, turns in proxies.items():
        ratios = [cpu / base[turn][1] for turn, (_, cpu) in turns.items() if turn in base]
        rows.append((TITLES[case], name, f"{median(rate for rate, _ in turns.values()):,.0f}",
                     f"{median(cpu for _, cpu in turns.values()):.1f}", f"{median(ratios):.2f}" if ratios else "–"))
head = ("case", "proxy", "requests/s", "CPU-µs a request", "CPU ÷ nginx's")
widths = [max(len(row[i]) for row in [head, *rows]) for i in range(5)]
align = lambda row: [cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))]
print(*("  ".join(align(row)).rstrip() for row in [head, *rows]), sep="\n")
if os.environ["MARKDOWN"]:
    with open(os.environ["MARKDOWN"], "w") as file:
        rule = ["-" * w if i < 2 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
        for row in [align(head), rule, *map(align, rows)]:
            print("| " + " | ".join(row) + " |", file=file)
PY
