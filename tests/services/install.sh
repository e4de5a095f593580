#!/bin/sh
# Installs what tests need of the system: on Debian, as root. Elsewhere it says what is missing,
# and the tests that need it are skipped with a reason.
set -eu
packages=""
need() { command -v "$1" >/dev/null 2>&1 || packages="$packages $2"; }
need chromium chromium
need strace strace
need node nodejs
need npm npm
need mariadbd mariadb-server
need redis-server redis-server
need rabbitmq-server rabbitmq-server
# Debian keeps PostgreSQL's programs off the path
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || need initdb postgresql
[ -n "$packages" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$packages"
    apt-get -qq update
    # RUNLEVEL=1: packages start no servers of the system; tests start their own
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $packages >/dev/null
else
    echo "not on this machine:$packages; the tests that need them are skipped"
fi
