#!/usr/bin/env bash
# A real Slurm of one node with accounting, on loopback: munge, mariadb, slurmdbd, slurmctld, slurmd.
#   tests/cluster/lab.sh up DIR      then: export SLURM_CONF=DIR/slurm.conf
#   tests/cluster/lab.sh down DIR
# No systemd, no cgroups, nothing in /etc is touched; all files lie in DIR. Debian's packages are
# installed when they aren't there (that alone needs root). An ordinary user may start it too.
set -euo pipefail

[ $# = 2 ] || { echo "usage: lab.sh up|down DIR"; exit 2; }
lab="$(realpath -m "$2")"
me="$(id -un)"
cpus="$(env -u OMP_NUM_THREADS nproc)"
memory_mb="$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)"
# A controller that isn't there would keep a client waiting for minutes.
ask() { timeout 20 "$@"; }

install() {
    command -v slurmctld slurmdbd munged mariadbd >/dev/null && return
    local sudo=""
    [ "$(id -u)" = 0 ] || sudo=sudo
    echo "lab: installing Slurm, munge and MariaDB"
    # They would start daemons of their own, with settings of their own.
    local policy=/usr/sbin/policy-rc.d kept=""
    if [ -e "$policy" ]; then kept=yes; else printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null; $sudo chmod +x "$policy"; fi
    local packages="slurm-wlm slurmdbd munge mariadb-server"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    { $sudo apt-get -qq update && $sudo apt-get -qq install --yes --no-install-recommends $packages; } \
        >"$lab/log/apt.log" 2>&1 || { tail -5 "$lab/log/apt.log"; exit 1; }
    [ -n "$kept" ] || $sudo rm -f "$policy"
}

configure() {
    [ -s "$lab/munge/key" ] || head -c 1024 /dev/urandom >"$lab/munge/key"
    chmod 400 "$lab/munge/key"
    cat >"$lab/slurmdbd.conf" <<CONF
AuthType=auth/munge
AuthInfo=socket=$lab/run/munge.socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=6819
CommunicationParameters=NoInAddrAny
SlurmUser=$me
PidFile=$lab/run/slurmdbd.pid
LogFile=$lab/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=$me
StorageLoc=slurm_acct_db
CONF
    chmod 600 "$lab/slurmdbd.conf" # slurmdbd refuses it otherwise
    cat >"$lab/slurm.conf" <<CONF
ClusterName=lab
SlurmctldHost=localhost(127.0.0.1)
# Without this the daemons listen on every interface.
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=$me
SlurmdUser=$me
AuthType=auth/munge
AuthInfo=socket=$lab/run/munge.socket
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerParameters=batch_sched_delay=0,sched_interval=2
ReturnToService=2
StateSaveLocation=$lab/state
SlurmdSpoolDir=$lab/spool
SlurmctldPidFile=$lab/run/slurmctld.pid
SlurmdPidFile=$lab/run/slurmd.pid
SlurmctldLogFile=$lab/log/slurmctld.log
SlurmdLogFile=$lab/log/slurmd.log
SlurmctldPort=6817
SlurmdPort=6818
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort=6819
# Not a password: where the controller finds the private munge for slurmdbd.
AccountingStoragePass=$lab/run/munge.socket
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
# There are no cgroups here that would kill. Processes share pages: each counts once.
JobAcctGatherParams=OverMemoryKill,UsePss
MaxArraySize=1001
MinJobAge=3600
KillWait=5
DefMemPerCPU=1024
NodeName=localhost NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory_mb State=UNKNOWN
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
CONF
}

within() { # within TENTHS COMMAND…: until it succeeds
    local left="$1"
    shift
    until "$@" >/dev/null 2>&1; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || { echo "lab: gave up on: $*"; tail -n 5 "$lab"/log/*.log; exit 1; }
        sleep 0.1
    done
}
sql() { mariadb --no-defaults -S "$lab/run/db.socket" -e "$1"; }
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1"); }
node_is_ready() { ask sinfo -h -o %T | grep -qE 'idle|mixed'; }

up() {
    mkdir -p "$lab"/{state,spool,log,munge,run,db}
    chmod 755 "$lab" "$lab/run" # munged wants its socket where all may look
    chmod 700 "$lab/munge"
    for port in 6817 6818 6819; do
        ! listens $port 2>/dev/null || { echo "lab: port $port is taken: another Slurm runs here"; exit 1; }
    done
    install
    configure
    munged --key-file="$lab/munge/key" --socket="$lab/run/munge.socket" --num-threads=2 \
        --pid-file="$lab/run/munged.pid" --log-file="$lab/log/munged.log" --seed-file="$lab/munge/seed"
    [ -d "$lab/db/mysql" ] || mariadb-install-db --no-defaults --user="$me" --datadir="$lab/db" \
        --auth-root-authentication-method=socket --skip-test-db >"$lab/log/db.log" 2>&1
    mariadbd --no-defaults --user="$me" --datadir="$lab/db" --socket="$lab/run/db.socket" \
        --skip-networking --pid-file="$lab/run/mariadbd.pid" --innodb-buffer-pool-size=64M \
        --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 \
        >"$lab/log/mariadbd.log" 2>&1 </dev/null &
    disown
    within 300 sql 'select 1'
    sql 'create database if not exists slurm_acct_db'
    export SLURM_CONF="$lab/slurm.conf"
    MYSQL_UNIX_PORT="$lab/run/db.socket" slurmdbd
    within 300 listens 6819
    ask sacctmgr -i add cluster lab >/dev/null 2>&1 || true # it may be there already
    slurmctld
    slurmd -N localhost
    within 300 node_is_ready
    within 100 ask sacct
    echo "lab: $(ask sinfo -h -o '%D node, %C CPUs (used/idle/other/all), %m MB')"
}

# What has ended and only waits for its parent to look doesn't live.
lives() { grep -q '^State:[[:space:]]*[^Z[:space:]]' "/proc/$1/status" 2>/dev/null; }
queue_is_empty() { [ -z "$(ask squeue -h)" ]; }

down() {
    local daemon file pid
    # Jobs outlive the daemons that started them.
    export SLURM_CONF="$lab/slurm.conf"
    if [ -s "$lab/run/slurmctld.pid" ] && ask scancel --user="$me"; then
        for _ in $(seq 20); do queue_is_empty && break; sleep 1; done
    fi
    for daemon in slurmd slurmctld slurmdbd mariadbd munged; do
        file="$lab/run/$daemon.pid"
        [ -s "$file" ] || continue
        pid="$(cat "$file")"
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 150); do lives "$pid" || break; sleep 0.1; done
        ! lives "$pid" || { echo "lab: $daemon doesn't stop, killed"; kill -9 "$pid"; }
    done
    echo "lab: stopped"
}

case "${1:-}" in
up) up ;;
down) down ;;
*) echo "usage: lab.sh up|down DIR"; exit 2 ;;
esac
