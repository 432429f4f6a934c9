#!/usr/bin/env bash
# Tests the cluster in containers from outside and from inside, through kills of masters and over a stop and a start:
# `make compose-test`. It is a project of its own, whose volumes are deleted at the end; those of `make compose-up` are
# not touched, but that cluster has to be stopped, since both publish the same ports.
set -euo pipefail
cd "$(dirname "$0")/.."

messages=100000 # enough for every queue of both brokers
first=40000     # read before anything happens; the rest after it
before=60000    # sent before a master is killed; the rest while it is dead

patience=300 # seconds for anything that is waited for: a busy machine takes much longer than an idle one

project=minimq-test
servers=9
services=$((servers + 1)) # and the console
compose() { ${COMPOSE:-docker compose} -p $project -f docker/docker-compose.yml "$@"; }
minimq() { .venv/bin/minimq --server 127.0.0.1:9876,127.0.0.1:9877 "$@"; }
inside() { compose run --rm -T client "$@" </dev/null; }
spark() { compose run --rm -T spark "$@" </dev/null; }
say() { printf '\n---- %s\n' "$*"; }
fail() { echo "FAILED: $*" >&2; exit 1; }

left_over() {
  docker ps --all --quiet --filter "label=com.docker.compose.project=$project"
  docker volume ls --quiet --filter "label=com.docker.compose.project=$project"
  docker network ls --quiet --filter "label=com.docker.compose.project=$project"
}

temporary=$(mktemp -d)
clean_up() {
  status=$?
  if [ $status != 0 ]; then
    compose ps --all || true
    compose logs --no-color --tail=40 || true
  fi
  compose down --volumes --remove-orphans || true
  rm -rf "$temporary"
  if [ -n "$(left_over)" ]; then
    echo "FAILED: something is left over: $(left_over)" >&2
    status=1
  fi
  if [ $status = 0 ]; then say "passed"; else say "FAILED"; fi
  exit $status
}
trap clean_up EXIT

wait_until() { # COMMAND...
  local deadline=$((SECONDS + patience))
  until "$@"; do
    [ $SECONDS -lt $deadline ] || fail "in vain: $*"
    sleep 0.5
  done
}

running() { docker ps --quiet --filter "label=com.docker.compose.project=$project" "$@"; }
all_healthy() { [ "$(running --filter health=healthy | wc -l)" = $services ]; }

standing() { # a line for each broker that answers: NAME-ID ROLE, and the replicas in sync
  minimq cluster status --output json 2>/dev/null | .venv/bin/python -c '
import json, sys
for broker in json.load(sys.stdin):
    if broker["state"] == "up":
        print("{broker}-{replica} {role}".format(**broker), *broker["in_sync"])' 2>/dev/null
}
master_of() { standing | sed -n "s/^\($1-[01]\) master .*/\1/p"; }
is_master() { [ "$(master_of "${1%-*}")" = "$1" ]; }
no_root() {
  local each user
  for each in $(running); do
    user=$(docker exec "$each" id -u)
    [ "$user" != 0 ] || fail "root runs $(docker inspect --format '{{.Name}}' "$each")"
  done
  echo "no server is run by root"
}
in_sync() { [ "$(standing | grep -c ' master 0 1$')" = 2 ] && [ "$(standing | grep -c ' slave 0 1$')" = 2 ]; }
container() { compose ps --quiet "$1"; }
other() { [ "${1##*-}" = 0 ] && echo "${1%-*}-1" || echo "${1%-*}-0"; }

wait_for_start() { # after `compose up`, which began at the moment `began`
  wait_until all_healthy
  echo "healthy after $((SECONDS - began)) s"
  wait_until in_sync
  minimq cluster status
}

expect_lines() { # WHAT FILE...: all files together are the lines that were sent, each once
  sort "${@:2}" | cmp - "$temporary/sent" || fail "$1: not what was sent"
  echo "$1: all $(wc -l <"$temporary/sent") messages, each once"
}

say "build"
compose down --volumes # of a run that was interrupted
compose build nameserver-1
compose build spark

say "the image has the packages of its bill of materials, and no others"
docker run --rm --interactive minimq python - <<'PYTHON'
import json
from importlib.metadata import distributions
def named(name, version): return name.lower().replace("_", "-"), version
with open("/opt/minimq/sbom.cdx.json") as file:
    bill = json.load(file)
listed = {named(each["name"], each["version"]) for each in (bill["metadata"]["component"], *bill["components"])}
there = {named(each.metadata["Name"], each.version) for each in distributions()}
assert there == listed, f"not listed: {there - listed}, not there: {listed - there}"
print(len(there), "packages")
PYTHON

say "start"
began=$SECONDS
compose up --detach
compose run --rm -T --no-deps --entrypoint cat client /etc/minimq/secrets/admin.minimq </dev/null >"$temporary/admin.minimq"
export MINIMQ_CREDENTIALS="$temporary/admin.minimq"
wait_for_start
no_root

say "the console: it has the certificate of the servers, and asks who is there"
compose run --rm -T --no-deps --entrypoint cat client /etc/minimq/secrets/authority/ca.crt </dev/null >"$temporary/ca.crt"
.venv/bin/python - "$temporary/ca.crt" <<'PYTHON'
import ssl, sys
from urllib.request import Request, urlopen
asked = Request("https://localhost:8088/topics", headers={"Accept": "text/html"})
with urlopen(asked, timeout=10, context=ssl.create_default_context(cafile=sys.argv[1])) as page:
    print(page.status, page.url)
    assert page.url.startswith("https://localhost:8088/sign-in") and "Sign in" in page.read().decode()
PYTHON

# By key, so that each message has one broker: what is sent again is found there, also by the next master.
produce() { minimq produce compose-test --key-field id --by-key --send-timeout 60; }

say "produce and consume through the published ports; kill a master"
seq -f '{"id": "%06.0f"}' $messages >"$temporary/sent"
minimq topic create compose-test --queues 4
head -n $before "$temporary/sent" | produce
minimq consume compose-test --group outside --limit $first >"$temporary/first"
killed=$(master_of broker-a)
{
  docker kill "$(container "$killed")" >&2 & # while the next lines come, over some seconds
  tail -n +$((before + 1)) "$temporary/sent" | awk '{ print } NR % 1000 == 0 { fflush(); system("sleep 0.1") }'
  wait
} | produce
is_master "$(other "$killed")" || fail "$(other "$killed") did not become the master"
minimq cluster status
minimq consume compose-test --group outside --exit-at-end >"$temporary/rest"
expect_lines "outside, before the kill and after it" "$temporary/first" "$temporary/rest"

say "the same from inside the network, and in Spark, with the master still dead"
inside cluster status
inside consume compose-test --group inside --exit-at-end >"$temporary/inside"
expect_lines "inside" "$temporary/inside"
spark compose-test | tee "$temporary/spark"
grep -qx "$messages messages, $messages different bodies" "$temporary/spark" || fail "Spark: not what was sent"

say "without its controller, the cluster serves: all in sync confirm their master"
docker start "$(docker ps --all --quiet --filter "label=com.docker.compose.project=$project" --filter "label=com.docker.compose.service=$killed")"
wait_until in_sync
compose kill etcd-1 etcd-2 etcd-3
sleep 5 # longer than a lease
minimq cluster status
echo '{"id": "alone"}' | produce
echo '{"id": "alone"}' >>"$temporary/sent"
minimq consume compose-test --group outside --exit-at-end | grep -qx '{"id": "alone"}' || fail "it did not come"
compose start etcd-1 etcd-2 # any two will do

say "kill the other one: the one that came back has everything"
wait_until in_sync
minimq cluster status
docker kill "$(container "$(other "$killed")")"
wait_until is_master "$killed"
minimq consume compose-test --group back --exit-at-end >"$temporary/back"
expect_lines "from the one that came back" "$temporary/back"

say "stop"
compose up --detach # the killed one as well
wait_until in_sync
compose stop
compose ps --all --quiet | xargs docker inspect --format '{{.Name}} ended with {{.State.ExitCode}}' | tee "$temporary/ended"
# And what made the secrets; etcd ends with the signal that ends it.
[ "$(grep -v etcd "$temporary/ended" | grep -c ' with 0$')" = $((services + 2 - 3)) ] ||
  fail "a server did not end by itself when it was told to"
compose down # removes the containers; what stays is in the volumes

say "start again"
began=$SECONDS
compose up --detach
wait_for_start
minimq topic describe compose-test
minimq consume compose-test --group outside --exit-at-end >"$temporary/nothing"
[ ! -s "$temporary/nothing" ] || fail "outside: a committed offset was lost"
minimq consume compose-test --group again --exit-at-end >"$temporary/again"
expect_lines "outside, from the beginning" "$temporary/again"

say "the helper for tests, with the same image"
env -u MINIMQ_CREDENTIALS .venv/bin/pytest -q -n 0 -p no:cacheprovider tests/system/test_minimq_container.py | tee "$temporary/helper"
! grep -q skipped "$temporary/helper" || fail "the tests of the helper did not run"
