#!/usr/bin/env bash
# Spark needs Java 17 or newer in JAVA_HOME or on PATH. If it is missing, root on Debian or Ubuntu installs the
# distribution's default. Otherwise this prints what is missing.
set -euo pipefail

needed=17

java_version() { # the major version of the Java that Spark would use; 0 if there is none
  local java=java
  if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java; fi
  # 'openjdk version "17.0.15"' -> 17; Java 8 reports 1.8 and counts as 1. Other lines may precede this one.
  "$java" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | grep . || echo 0
}

fail() {
  echo "Spark needs Java $needed or newer: $1" >&2
  exit 1
}

found=$(java_version)
if [ "$found" -ge "$needed" ]; then exit 0; fi

if [ -n "${JAVA_HOME:-}" ]; then
  fail "JAVA_HOME is $JAVA_HOME, which is not one; point it to one or unset it."
fi
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  fail "install it (on Debian and Ubuntu: sudo apt-get install default-jre-headless), or set JAVA_HOME."
fi

echo "No Java $needed or newer found: installing the distribution's default-jre-headless."
export DEBIAN_FRONTEND=noninteractive # ask nothing
apt-get update
apt-get install -y --no-install-recommends default-jre-headless

found=$(java_version)
if [ "$found" -lt "$needed" ]; then
  fail "this distribution's default is older; install a newer one and set JAVA_HOME."
fi
