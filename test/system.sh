# shellcheck shell=sh disable=SC2154
# system.sh: small Debian systems in directories, for test/matrix and
# test/packages.  To be sourced after setup.sh, as root, in a mount namespace.

# The suites of Debian that have a version, in the order of preference.
suites_of() {
	case $1 in
		15) echo bookworm ;;
		17) echo trixie ;;
		18) echo forky sid ;;
		*) die "no Debian release has PostgreSQL $1" ;;
	esac
}

# Where this machine gets Debian from: the first source of its main archive.
# A mirror list is a file with one address on a line.
find_mirror() {
	if [ -z "$(apt-get indextargets 'Created-By: Packages')" ]; then
		feedpub_apt update
	fi
	mirror=$(apt-get indextargets --format '$(SITE)' \
		'Created-By: Packages' 'Origin: Debian' 'Label: Debian' |
		sort -u | head -1)
	case $mirror in
		mirror+file:*)
			mirror=$(sed -n 's/^\([a-z]*:[^[:space:]]*\).*/\1/p' \
				"${mirror#mirror+file:}" | head -1) ;;
	esac
	[ -n "$mirror" ] || die "apt has no source of Debian packages here"
}

# Every mount below a directory, the deepest first.
unmount_all() {
	awk -v d="$1/" 'index($2 "/", d) == 1 {print $2}' /proc/mounts |
		sort -r | while read -r _m; do umount "$_m" || umount -l "$_m"; done
}

# Nothing is deleted below what is still mounted: /dev is the machine's own.
remove() {
	[ -d "$1" ] || return 0
	unmount_all "$1"
	if grep -q " $1/" /proc/mounts; then
		say "could not unmount all of $1, so it stays" >&2
	else
		rm -rf --one-file-system "$1"
	fi
}

cleanup() {
	_status=$?
	trap - EXIT HUP INT TERM
	unmount_all "$base"
	[ -n "${FEEDPUB_KEEP:-}" ] || remove "$base"
	exit $_status
}

make_system() { # directory suite
	# bookworm's debootstrap does not know forky; sid's recipe does for all
	_script=/usr/share/debootstrap/scripts/$2
	[ -e "$_script" ] || _script=/usr/share/debootstrap/scripts/sid
	_proxy=$(apt-config dump Acquire::http::Proxy |
		sed -n 's/.*"\(.*\)";$/\1/p' | grep -v DIRECT | head -1)
	env ${_proxy:+http_proxy="$_proxy"} debootstrap --variant=minbase \
		"$2" "$1" "$mirror" "$_script" >"$base/debootstrap.log" 2>&1 || {
		tail -20 "$base/debootstrap.log"
		return 1
	}
	# Testing's lists are valid for a week, and a mirror that stands still is
	# good enough here; signatures are verified all the same.
	{
		echo 'Acquire::Check-Valid-Until "false";'
		apt-config dump |
			grep -iE '^Acquire::([a-z]*::)?(proxy|retries|timeout)' || true
	} >"$1/etc/apt/apt.conf.d/90feedpub"
	mkdir -p "$1/etc/postgresql-common"
	echo 'create_main_cluster = false' \
		>"$1/etc/postgresql-common/createcluster.conf"
	printf '#!/bin/sh\nexit 101\n' >"$1/usr/sbin/policy-rc.d"
	chmod 755 "$1/usr/sbin/policy-rc.d"
}

mount_system() { # directory
	cp -L /etc/resolv.conf /etc/hosts "$1/etc/" 2>/dev/null || true
	mount -t proc proc "$1/proc" 2>/dev/null ||
		mount --rbind /proc "$1/proc" || return 1
	mount --bind /dev "$1/dev" || return 1
	# for programs that want a terminal; not all machines have it
	mount --bind /dev/pts "$1/dev/pts" 2>/dev/null || true
	mkdir -p "$1/dev/shm"
	mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm" || return 1
}

# Makes or finds the system that has a version of PostgreSQL; sets $system.
open_system() { # version
	system=
	for _suite in $(suites_of "$1"); do
		system=$base/$_suite
		if [ ! -e "$system.made" ]; then
			say "making a Debian $_suite for PostgreSQL $1"
			remove "$system"
			make_system "$system" "$_suite" || { system=; continue; }
			touch "$system.made"
		fi
		mount_system "$system" || die "could not mount into $system"
		chroot "$system" apt-get -qq update || { system=; continue; }
		chroot "$system" apt-cache show "postgresql-$1" \
			>/dev/null 2>&1 && break
		unmount_all "$system"
		system=
	done
	[ -n "$system" ] || { say "could not get PostgreSQL $1"; return 1; }
}

# Copies the tree into it.
copy_tree() {
	rm -rf "$system/feedpub"
	mkdir "$system/feedpub"
	tar -cf - --exclude=./.git --exclude='*.o' --exclude='*.so' \
		--exclude='*.bc' --exclude="./tmp_*" --exclude=./results \
		--exclude=./log . | tar -xf - --no-same-owner -C "$system/feedpub"
}

close_system() {
	if [ -n "${FEEDPUB_KEEP:-}" ]; then
		unmount_all "$system"
	else
		rm -f "$system.made"
		remove "$system"
	fi
}

# Prepares the machine, and sets $mirror and $base.
begin_systems() {
	command -v apt-get >/dev/null || die "needs a Debian machine"
	command -v debootstrap >/dev/null || feedpub_apt install \
		--no-install-recommends debootstrap debian-archive-keyring
	find_mirror
	case ${FEEDPUB_KEEP:-} in
		'') base=$(mktemp -d "${TMPDIR:-/tmp}/feedpub-matrix.XXXXXX") ;;
		/*) base=$FEEDPUB_KEEP; mkdir -p "$base" ;;
		*) die "FEEDPUB_KEEP must be an absolute path" ;;
	esac
	trap cleanup EXIT
	trap 'exit 129' HUP
	trap 'exit 130' INT
	trap 'exit 143' TERM
}
