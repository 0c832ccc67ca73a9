# setup.sh: what ./demo, ./check and the scripts of test/ and bench/ share.
# To be sourced by a POSIX shell that stands at the top of the tree.
#
#   feedpub_packages [more]   installs what is missing (Debian), sets PG_CONFIG
#                             and PG_MAJOR; in more "%" is the major version
#   feedpub_optional_packages name ...
#                             the same, but goes on without what is not to be had
#   feedpub_workdir           makes $WORK, removed at exit, with a copy of the
#                             tree in $WORK/tree, where the shell then stands,
#                             and one of the server in $WORK/pg, whose pg_config
#                             PG_CONFIG is from then on
#   feedpub_install           builds the tree's copy, installs it into the server's
#   feedpub_server [name=value ...]
#                             starts a private server in $WORK, for psql & co.
#   feedpub_stop DIR          ends every process that runs below DIR
#   as_user command...        runs a command as the unprivileged user
#   as_root command...        runs a command as root
#
# Servers refuse to run as root, so root's tests run as user postgres; an
# ordinary user's run as that user, and only packages need sudo.  The tests'
# user may not be able to read where the tree lies, and nothing of ours may
# stay in the server's directories: hence the two copies.
#
# shellcheck shell=sh

# What is printed must not depend on the user's language, nor where psql
# connects to on their settings.
LC_ALL=C LANG=C
export LC_ALL LANG
unset PGHOST PGHOSTADDR PGPORT PGDATABASE PGUSER PGSERVICE PGSERVICEFILE \
	PGPASSWORD PGPASSFILE PGOPTIONS PGAPPNAME PGSSLMODE PGREQUIRESSL \
	PGGSSENCMODE PGCHANNELBINDING PGCONNECT_TIMEOUT PGCLIENTENCODING \
	PGTARGETSESSIONATTRS PGDATA

say() { printf '%s\n' "$*" 2>/dev/null; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# Runs a command with its output in a file, and prints those lines of it that
# match, as they come, and that it is still running when there are none for a
# while.  The command does not write to our output itself:
# it would die of a closed pipe and leave its servers.
watch() { # what it is, file, pattern, command...
	_what=$1 _output=$2 _pattern=$3 _seen=0 _begun=$(date +%s)
	_last=$_begun
	shift 3
	: >"$_output"
	"$@" >"$_output" 2>&1 </dev/null &
	_job=$!
	while :; do
		if kill -0 $_job 2>/dev/null; then _ended=; else _ended=1; fi
		_lines=$(wc -l <"$_output")
		_new=$(head -n "$_lines" "$_output" |
			tail -n "+$((_seen + 1))" | grep -E "$_pattern" || true)
		_seen=$_lines
		_now=$(date +%s)
		if [ -n "$_new" ]; then
			say "$_new"
			_last=$_now
		elif [ $((_now - _last)) -ge 20 ]; then
			say "... $_what has been running for $((_now - _begun)) s"
			_last=$_now
		fi
		[ -z "$_ended" ] || break
		sleep 1
	done
	wait $_job
}

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else
		command -v sudo >/dev/null || die "needs root or sudo"
		sudo "$@"
	fi
}

# Where there is no user postgres, nobody does as well.
as_user() {
	if [ "$(id -u)" != 0 ]; then "$@"; else
		if [ -z "${RUNAS:-}" ]; then
			RUNAS=postgres
			id "$RUNAS" >/dev/null 2>&1 || RUNAS=nobody
		fi
		setpriv --reuid="$RUNAS" --regid="$(id -g "$RUNAS")" --init-groups \
			env HOME="${WORK:-/}" USER="$RUNAS" LOGNAME="$RUNAS" "$@"
	fi
}

# Gives a file or directory to the tests' user.
to_user() { if [ "$(id -u)" = 0 ]; then chown -R "$RUNAS:" "$@"; fi; }

# The server of PG_CONFIG, or of version PG_MAJOR; else the newest one
# that is there, or Debian's default.
feedpub_find_server() {
	if [ -z "${PG_CONFIG:-}" ]; then
		if [ -n "${PG_MAJOR:-}" ]; then return 0; fi
		PG_CONFIG=$(ls -1d /usr/lib/postgresql/*/bin/pg_config 2>/dev/null |
			sort -t/ -k5n | tail -1)
	fi
	if [ -n "$PG_CONFIG" ]; then
		PG_MAJOR=$("$PG_CONFIG" --version | sed 's/^[^0-9]*\([0-9]*\).*/\1/')
	else
		PG_MAJOR=$(apt-cache depends postgresql 2>/dev/null |
			sed -n 's/.*Depends: postgresql-\([0-9][0-9]*\)$/\1/p' | head -1)
	fi
}

# Waits for the lock: a machine that has just started may be busy with its own
# upgrades.  What packages have to say is shown when one fails.
feedpub_apt() {
	if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
		say "needs root or sudo for: apt-get $*" >&2
		return 1
	fi
	_log=$(mktemp)
	_status=0
	watch "apt-get $1" "$_log" '^$' as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get -y -qq -o DPkg::Lock::Timeout=300 "$@" || _status=$?
	[ $_status = 0 ] || cat "$_log" >&2
	rm -f "$_log"
	return $_status
}

feedpub_has_package() {
	dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
}

# Says what is to be installed, and how much apt says that is, and installs it.
feedpub_get_packages() {
	say "installing: $*"
	if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
		say "needs root or sudo for: apt-get install --no-install-recommends $*" >&2
		return 1
	fi
	# once a run
	[ -n "${FEEDPUB_APT_UPDATED:-}" ] || feedpub_apt update || return 1
	FEEDPUB_APT_UPDATED=1
	export FEEDPUB_APT_UPDATED
	apt-get -o Debug::NoLocking=true --assume-no --no-install-recommends \
		install "$@" </dev/null 2>/dev/null |
		grep -E ' newly installed|^Need to get|^After this' || true
	# The server's package makes and starts a cluster; leave none
	# that was not there before.
	_before=$(pg_lsclusters -h 2>/dev/null | awk '{print $1, $2}')
	feedpub_apt install --no-install-recommends "$@" || return 1
	pg_lsclusters -h 2>/dev/null | awk '{print $1, $2}' |
	while read -r _v _c; do
		printf '%s\n' "$_before" | grep -qx "$_v $_c" ||
			as_root pg_dropcluster --stop "$_v" "$_c" </dev/null || true
	done
	# tests run their own
	for _service in pgbouncer nginx varnish varnishncsa etcd patroni; do
		case " $* " in *" ${_service%ncsa} "*|*" $_service-server "*)
			as_root service $_service stop >/dev/null 2>&1 || true
			as_root update-rc.d $_service disable >/dev/null 2>&1 || true ;;
		esac
	done
}

# Is it Debian's server, for which there are packages?
feedpub_debian_server() {
	case ${PG_CONFIG:-} in ''|/usr/lib/postgresql/*) true ;; *) false ;; esac
}

# The names of those that are not installed; those with "%" are of Debian's
# server only.
feedpub_missing_packages() {
	for _p in "$@"; do
		case $_p in *%*)
			feedpub_debian_server || continue
			_p=${_p%%%*}$PG_MAJOR${_p#*%} ;;
		esac
		feedpub_has_package "$_p" || printf ' %s' "$_p"
	done
}

feedpub_packages() {
	feedpub_find_server
	if ! command -v apt-get >/dev/null; then
		[ -n "${PG_CONFIG:-}" ] || die "no PostgreSQL found: set PG_CONFIG"
		export PG_CONFIG PG_MAJOR
		return 0
	fi
	if [ -z "$PG_MAJOR" ]; then
		feedpub_apt update
		feedpub_find_server
	fi
	[ -n "$PG_MAJOR" ] || die "no package postgresql to be had"
	[ "$PG_MAJOR" -ge 15 ] || die "needs PostgreSQL 15 or later, not $PG_MAJOR"

	_missing=$(feedpub_missing_packages postgresql-% make gcc libc6-dev perl \
		util-linux "$@")
	if [ -n "$_missing" ]; then
		# shellcheck disable=SC2086
		feedpub_get_packages $_missing || die "could not install$_missing"
	fi
	PG_CONFIG=${PG_CONFIG:-/usr/lib/postgresql/$PG_MAJOR/bin/pg_config}
	export PG_CONFIG PG_MAJOR
}

# What some tests need and are skipped without.
feedpub_optional_packages() {
	command -v apt-get >/dev/null || return 0
	# those that are to be had, even if another is not
	for _p in $(feedpub_missing_packages "$@"); do
		feedpub_get_packages "$_p" ||
			say "could not install $_p: some tests are skipped"
	done
}

# What a server needs to be built for, into the server's copy.  Debian's
# package of that depends on a gigabyte of LLVM, for bitcode that no test
# needs; so where it is not installed, its files are taken out of it.
feedpub_development_files() {
	_header=$("$PG_CONFIG" --includedir-server)/postgres.h
	if [ -e "$("$PG_CONFIG" --pgxs)" ] && [ -e "$_header" ]; then return 0; fi
	feedpub_debian_server && command -v apt-get >/dev/null ||
		die "$PG_CONFIG has no development files: $("$PG_CONFIG" --pgxs), $_header"
	_p=postgresql-server-dev-$PG_MAJOR
	# of the server's own version: a later one's headers may use functions
	# that the server does not have yet
	_v=$(dpkg-query -W -f '${Version}' "postgresql-$PG_MAJOR")
	feedpub_unpack "$_p=$_v" "$WORK/pg" ||
		die "if there is a later one, upgrade postgresql-$PG_MAJOR to it"
}

# The files of a package[=version], without what it depends on.
feedpub_unpack() {
	say "unpacking $1, 1 MB, into the working directory"
	mkdir "$WORK/deb"
	to_user "$WORK/deb"
	(cd "$WORK/deb" &&
		{ as_user apt-get -qq download "$1" >"$WORK/out.log" 2>&1 ||
			{ feedpub_apt update &&
				as_user apt-get -qq download "$1" >"$WORK/out.log" 2>&1; }; } &&
		dpkg-deb -x "${1%%=*}"_*.deb "$2") || {
		cat "$WORK/out.log"
		say "could not get $1"
		return 1
	}
	rm -rf "$WORK/deb"
}

# The parser of feedpub-http: a library, or on Debian 12 its sources, which are
# taken out of a package that depends on all of Node.js.
feedpub_llhttp() {
	if [ -n "${LLHTTP:-}" ] || pkg-config --exists libllhttp ||
		[ -e /usr/share/llhttp/api.c ] || ! command -v apt-get >/dev/null; then
		return 0
	fi
	if apt-cache show libllhttp-dev >/dev/null 2>&1; then
		feedpub_get_packages libllhttp-dev || die "could not install libllhttp-dev"
		return 0
	fi
	feedpub_unpack node-llhttp "$WORK/llhttp" || die "no llhttp to be had"
	LLHTTP=$WORK/llhttp/usr/share/llhttp
	LLHTTP_INCLUDE=$WORK/llhttp/usr/share/include/llhttp
	export LLHTTP LLHTTP_INCLUDE
}

# PostgreSQL finds its files relative to its programs, from the directories
# that it was configured with: below $WORK/pg each has its own name again.
# What a build only reads is a link.  A server that the tests' user cannot
# read, as in root's home, is copied whole.
feedpub_copy_server() {
	_from=$("$PG_CONFIG" --bindir)
	mkdir -p "$WORK/pg$_from"
	for _f in "$_from"/*; do
		case ${_f##*/} in
			postgres|initdb|ecpg|pg*|psql|*db|*user|oid2name|vacuumlo)
				cp -pL "$_f" "$WORK/pg$_from/" ;;
		esac
	done
	for _d in pkglibdir sharedir; do
		_d=$("$PG_CONFIG" --$_d)
		mkdir -p "$WORK/pg$_d"
		cp -Rp "$_d/." "$WORK/pg$_d/"
	done
	for _d in libdir includedir pkgincludedir includedir-server; do
		_d=$("$PG_CONFIG" --$_d)
		[ -e "$_d" ] || continue
		if as_user test -r "$_d/."; then _copy="ln -s"; else _copy="cp -Rp"; fi
		if [ ! -e "$WORK/pg$_d" ]; then
			mkdir -p "$WORK/pg${_d%/*}"
			$_copy "$_d" "$WORK/pg$_d"
		elif [ ! -L "$WORK/pg$_d" ]; then
			for _f in "$_d"/*; do
				[ -e "$WORK/pg$_f" ] || [ ! -e "$_f" ] ||
					$_copy "$_f" "$WORK/pg$_f"
			done
		fi
		if [ "$_copy" != "ln -s" ]; then
			LD_LIBRARY_PATH=$WORK/pg$("$PG_CONFIG" --libdir)
			export LD_LIBRARY_PATH
		fi
	done
	PG_CONFIG=$WORK/pg$_from/pg_config
	export PG_CONFIG
	for _d in pkglibdir sharedir pgxs; do
		_d=$("$PG_CONFIG" --$_d)
		case $_d in "$WORK/pg"/*) [ -e "$_d" ] && continue ;; esac
		die "the server of $_from cannot be copied: it looks in $_d"
	done
	# a feedpub that is installed there is not the one to be tested
	rm -f "$("$PG_CONFIG" --pkglibdir)"/feedpub.so \
		"$("$PG_CONFIG" --sharedir)"/extension/feedpub[.-]*
}

feedpub_workdir() {
	# root's TMPDIR may be closed to others, and a socket's path must be short
	_tmp=${TMPDIR:-/tmp}
	if [ ${#_tmp} -gt 50 ] || ! as_user test -w "$_tmp"; then _tmp=/tmp; fi
	WORK=$(mktemp -d "$_tmp/feedpub.XXXXXX") || exit 1
	trap 'feedpub_cleanup' EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
	trap 'exit 141' PIPE
	mkdir "$WORK/tree" "$WORK/pg" "$WORK/tmp"
	# no build products: another server's objects may lie in the tree
	tar -cf - --exclude=./.git --exclude='*.o' --exclude='*.so' \
		--exclude='*.bc' --exclude="./tmp_*" --exclude=./results \
		--exclude=./log . | (cd "$WORK/tree" && tar -xf - --no-same-owner)
	chmod 755 "$WORK"
	# what tests leave in the temporary directory goes with the rest
	TMPDIR=$WORK/tmp
	export WORK TMPDIR
	as_user true
	to_user "$WORK"
	feedpub_development_files
	feedpub_copy_server
	to_user "$WORK/pg"
	cd "$WORK/tree" || exit 1
}

# Ends what runs below a directory: servers at once, then all else.
feedpub_stop() {
	_dir=$(cd "$1" && pwd -P) || return 0
	_signal=TERM
	for _try in 1 2 3 4 5 6 7 8 9 10 11 12; do
		_pids=$(find /proc/[0-9]*/cwd -maxdepth 0 -lname "$_dir/*" 2>/dev/null |
			cut -d/ -f3 | grep -vx $$ || true)
		[ -n "$_pids" ] || return 0
		for _pid in $_pids; do
			_data=$(readlink "/proc/$_pid/cwd") || continue
			if [ $_signal = TERM ] && [ -s "$_data/postmaster.pid" ]; then
				# its other processes end with it
				[ "$(head -1 "$_data/postmaster.pid")" != "$_pid" ] ||
					kill -QUIT "$_pid" 2>/dev/null || true
			else
				kill -$_signal "$_pid" 2>/dev/null || true
			fi
		done
		[ $_try -lt 10 ] || _signal=KILL
		sleep 1
	done
}

feedpub_cleanup() {
	_status=$?
	trap - EXIT HUP INT TERM
	trap '' PIPE
	cd /
	feedpub_stop "$WORK"
	if [ -n "${FEEDPUB_KEEP:-}" ]; then
		say "kept: $WORK"
	else
		rm -rf "$WORK"
	fi
	exit $_status
}

# Output goes to a file, shown when a step fails.
quietly() {
	"$@" >"$WORK/out.log" 2>&1 || { cat "$WORK/out.log"; return 1; }
}

feedpub_install() {
	BINDIR=$("$PG_CONFIG" --bindir)
	export BINDIR
	PATH=$BINDIR:$PATH
	watch "the build" "$WORK/out.log" '^$' as_user make -C "$WORK/tree" -j2 \
		PG_CONFIG="$PG_CONFIG" with_llvm=no all "$@" &&
		as_user make -C "$WORK/tree" PG_CONFIG="$PG_CONFIG" with_llvm=no \
			install >"$WORK/out.log" 2>&1 || {
		cat "$WORK/out.log"
		die "could not build and install feedpub"
	}
}

feedpub_server() {
	mkdir -p "$WORK/sock"
	to_user "$WORK/sock"
	quietly as_user "$BINDIR/initdb" -D "$WORK/data" -U postgres -A trust \
		--no-sync -E UTF8 --locale=C || die "could not make a server"
	{
		echo "listen_addresses = ''"
		echo "unix_socket_directories = '$WORK/sock'"
		echo "port = 5432"
		for _s in "$@"; do echo "$_s"; done
	} | as_user tee -a "$WORK/data/postgresql.conf" >/dev/null
	quietly as_user "$BINDIR/pg_ctl" -D "$WORK/data" -l "$WORK/server.log" \
		-w start || { cat "$WORK/server.log"; die "could not start a server"; }
	export PGHOST="$WORK/sock" PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
}
