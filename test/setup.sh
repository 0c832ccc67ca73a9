# setup.sh: what ./demo, ./check and the scripts of test/ and bench/ share.
# To be sourced by a POSIX shell that stands at the top of the tree.
#
#   feedpub_packages [more]   installs what is missing (Debian), sets PG_CONFIG
#                             and PG_MAJOR; in more "%" is the major version
#   feedpub_optional_packages name ...
#                             the same, but goes on without what is not to be had
#   feedpub_workdir           makes $WORK, removed at exit, with a copy of the
#                             tree in $WORK/tree that $RUNAS may write
#   feedpub_install           builds the copy and installs it into the server
#   feedpub_server [name=value ...]
#                             starts a private server in $WORK, for psql & co.
#   as_user command...        runs a command as the unprivileged user
#   as_root command...        runs a command as root
#
# Servers refuse to run as root, so root's tests run as user postgres; an
# ordinary user's run as himself, and only packages and the installation of
# the build are done through sudo.
#
# shellcheck shell=sh

# What is printed must not depend on the user's language, nor where psql
# connects to on his settings.
LC_ALL=C LANG=C
export LC_ALL LANG
unset PGHOST PGHOSTADDR PGPORT PGDATABASE PGUSER PGSERVICE PGSERVICEFILE \
	PGPASSWORD PGPASSFILE PGOPTIONS PGAPPNAME PGSSLMODE PGREQUIRESSL \
	PGGSSENCMODE PGCHANNELBINDING PGCONNECT_TIMEOUT PGCLIENTENCODING \
	PGTARGETSESSIONATTRS PGDATA

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"; else
		command -v sudo >/dev/null || die "needs root or sudo"
		sudo "$@"
	fi
}

as_user() {
	if [ "$(id -u)" != 0 ]; then "$@"; else
		setpriv --reuid=postgres --regid=postgres --init-groups \
			env HOME="${WORK:-/}" USER=postgres LOGNAME=postgres "$@"
	fi
}

# The server of PG_CONFIG, or of version PG_MAJOR; else the newest one whose
# development files are there, or Debian's default.
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
	_log=$(mktemp)
	_status=0
	as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y \
		-o DPkg::Lock::Timeout=300 "$@" </dev/null >"$_log" 2>&1 || _status=$?
	[ $_status = 0 ] || cat "$_log" >&2
	rm -f "$_log"
	return $_status
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

	_missing=
	case ${PG_CONFIG:-} in
		''|/usr/lib/postgresql/*)
			set -- "postgresql-$PG_MAJOR" "postgresql-server-dev-$PG_MAJOR" "$@" ;;
	esac
	for _p in make gcc libc6-dev perl util-linux "$@"; do
		case $_p in *%*) _p=${_p%%%*}$PG_MAJOR${_p#*%} ;; esac
		dpkg-query -W -f '${Status}' "$_p" 2>/dev/null |
			grep -q 'ok installed' || _missing="$_missing $_p"
	done
	if [ -n "$_missing" ]; then
		say "installing:$_missing"
		_before=$(pg_lsclusters -h 2>/dev/null | awk '{print $1, $2}')
		feedpub_apt update
		# shellcheck disable=SC2086
		feedpub_apt --no-install-recommends install $_missing ||
			die "could not install$_missing"
		# The server's package makes and starts a cluster; leave none behind
		# that was not there before.
		pg_lsclusters -h 2>/dev/null | awk '{print $1, $2}' |
		while read -r _v _c; do
			printf '%s\n' "$_before" | grep -qx "$_v $_c" ||
				as_root pg_dropcluster --stop "$_v" "$_c" </dev/null || true
		done
	fi
	PG_CONFIG=${PG_CONFIG:-/usr/lib/postgresql/$PG_MAJOR/bin/pg_config}
	export PG_CONFIG PG_MAJOR
}

# What some tests need and are skipped without.
feedpub_optional_packages() {
	command -v apt-get >/dev/null || return 0
	for _p in "$@"; do
		dpkg-query -W -f '${Status}' "$_p" 2>/dev/null |
			grep -q 'ok installed' && continue
		say "installing: $_p"
		{ feedpub_apt update &&
			feedpub_apt --no-install-recommends install "$_p"; } >/dev/null 2>&1 ||
			say "could not install $_p: some tests are skipped"
		# tests run their own; leave no service behind that was not there before
		case $_p in pgbouncer)
			as_root service "$_p" stop >/dev/null 2>&1 || true
			as_root update-rc.d "$_p" disable >/dev/null 2>&1 || true ;;
		esac
	done
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
	mkdir "$WORK/tree"
	# no build products: another server's objects may lie in the tree
	tar -cf - --exclude=./.git --exclude='*.o' --exclude='*.so' \
		--exclude='*.bc' --exclude=./tmp_check --exclude=./results \
		--exclude=./log . | (cd "$WORK/tree" && tar -xf - --no-same-owner)
	mkdir "$WORK/tmp"
	chmod 755 "$WORK"
	if [ "$(id -u)" = 0 ]; then chown -R postgres: "$WORK"; fi
	# what tests leave in the temporary directory goes with the rest
	TMPDIR=$WORK/tmp
	export WORK TMPDIR
}

feedpub_cleanup() {
	_status=$?
	trap - EXIT HUP INT TERM
	if [ -s "$WORK/data/postmaster.pid" ]; then
		as_user "$BINDIR/pg_ctl" -D "$WORK/data" -m immediate -w stop \
			>/dev/null 2>&1 || true
	fi
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
	(cd "$WORK/tree" &&
		quietly as_user make PG_CONFIG="$PG_CONFIG" with_llvm=no "$@" &&
		quietly as_root make PG_CONFIG="$PG_CONFIG" with_llvm=no install) ||
		die "could not build and install feedpub"
}

feedpub_server() {
	mkdir -p "$WORK/sock"
	if [ "$(id -u)" = 0 ]; then chown postgres: "$WORK/sock"; fi
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
