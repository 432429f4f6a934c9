#!/usr/bin/env bash
# Tests the cluster in containers from outside and from inside, over a stop and a start: `make compose-test`.
# It is a project of its own, whose volumes are deleted at the end; those of `make compose-up` are not touched, but that
# cluster has to be stopped, since both publish the same ports.
set -euo pipefail
cd "$(dirname "$0")/.."

messages=100000 # enough for every queue of both brokers
first=40000     # read before the stop; the rest after it

compose() { ${COMPOSE:-docker compose} -p minimq-test -f docker/docker-compose.yml "$@"; }
minimq() { .venv/bin/minimq --nameserver 127.0.0.1:9876,127.0.0.1:9877 "$@"; }
inside() { compose run --rm -T client "$@" </dev/null; }
say() { printf '\n---- %s\n' "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

temporary=$(mktemp -d)
clean_up() {
  status=$?
  if [ $status != 0 ]; then
    compose ps --all || true
    compose logs --no-color --tail=40 || true
  fi
  compose down --volumes || true
  rm -rf "$temporary"
  if [ $status = 0 ]; then say "passed"; else say "FAILED"; fi
}
trap clean_up EXIT

wait_until() { # SECONDS COMMAND...
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || fail "in vain: $*"
    sleep 1
  done
}

health() { compose ps --quiet | xargs docker inspect --format '{{.Name}} {{.State.Health.Status}}'; }
all_healthy() { [ "$(health | grep -c ' healthy$')" = 4 ]; }
brokers_up() { [ "$(minimq cluster status --output json 2>/dev/null | grep -c '"state": "up"')" = 2 ]; }

start() {
  compose up --detach "$@"
  wait_until 120 all_healthy
  wait_until 30 brokers_up
  health
}

expect_lines() { # WHAT FILE...: all files together are the lines that were sent, each once
  sort "${@:2}" | cmp - "$temporary/sent" || fail "$1: not what was sent"
  echo "$1: all $(wc -l <"$temporary/sent") messages, each once"
}

say "start"
compose down --volumes # of a run that was interrupted
start --build

say "produce and consume through the published ports"
seq -f 'message %06.0f' $messages >"$temporary/sent"
minimq topic create compose-test --queues 4
minimq produce compose-test "$temporary/sent"
minimq consume compose-test --group outside --max $first >"$temporary/first"
minimq cluster status

say "the same from inside the network"
inside cluster status
inside consume compose-test --group inside --exit-at-end >"$temporary/inside"
expect_lines "inside" "$temporary/inside"

say "stop"
compose stop
compose ps --all --quiet | xargs docker inspect --format '{{.Name}} ended with {{.State.ExitCode}}' | tee "$temporary/ended"
[ "$(grep -c ' with 0$' "$temporary/ended")" = 4 ] || fail "a server did not end by itself when it was told to"
compose down # removes the containers; what stays is in the volumes

say "start again"
start
minimq topic describe compose-test
minimq consume compose-test --group outside --exit-at-end >"$temporary/rest"
expect_lines "outside, before the stop and after it" "$temporary/first" "$temporary/rest"
minimq consume compose-test --group again --exit-at-end >"$temporary/again"
expect_lines "outside, from the beginning" "$temporary/again"
