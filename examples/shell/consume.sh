#!/bin/sh
# consume.sh: a consumer of a subscription, in shell with psql.
#
#     psql -c "SELECT feed_subscribe('mailer', 'outbox', 'earliest')"
#     consume.sh mailer ./send-mail
#
# Runs the command for each entry, one at a time and in order.  It gets the
# row on its standard input, a line of JSON, and $FEED_OP: upsert, delete,
# truncate; of a delete it gets the key.  If it fails, it is run again for the
# same entry later: nothing is skipped, nothing after it is delivered before.
#
# At least once: what was handled shortly before a crash, or before the
# connection was lost, is handled again.  So is all of a page that was
# delivered to two processes: run one.
#
# SIGTERM and SIGINT: the entry at hand is finished, what has been done is
# acknowledged, and it ends.  Where to connect to is psql's affair: PGHOST,
# PGDATABASE, PGSERVICE and so on.
set -u

[ $# -ge 2 ] || { echo "usage: consume.sh SUBSCRIPTION COMMAND [ARGUMENT ...]" >&2; exit 2; }
name=$1
shift

say() { printf 'consume.sh: %s: %s\n' "$name" "$*" >&2; }

tab=$(printf '\t')
pause=1
stop=
errors=$(mktemp) || exit 1
trap 'rm -f "$errors"' EXIT
trap 'stop=1' TERM INT

# Runs the SQL on standard input; its rows are in $rows, separated by tabs.
# False if it is worth another attempt; ends the program if it is not.
query() {
	if rows=$(psql -XAtqF "$tab" -v ON_ERROR_STOP=1 -v VERBOSITY=verbose \
		-v name="$name" "$@" 2>"$errors")
	then
		return 0
	fi
	[ -z "$stop" ] || return 1	# it was interrupted together with us
	cat "$errors" >&2
	# without a code there is no connection
	case $(sed -n 's/^[^ ]*:  \([0-9A-Z]\{5\}\): .*/\1/p' "$errors") in
		PF001)	# another history: a backup was restored, or a standby that lagged took over
			say "decide where to go on, and then: SELECT feed_seek('$name', ...)"
			exit 1 ;;
		PF002)	# away for too long: deletes in a table feed are forgotten
			say "empty what was made of the feed, and then: SELECT feed_seek('$name', 'earliest')"
			exit 1 ;;
		42???)	# no such subscription, no right to it
			exit 1 ;;
	esac
	return 1
}

# Not strict: what was done before cannot be rolled back, so the only question
# is whether it comes again.
ack() {
	query -v receipt="$done" <<'SQL'
SELECT feed_ack(:'name', :'receipt', strict => false);
SQL
}

# Waits a little longer each time; a signal ends it.
back_off() {
	sleep "$pause" &
	wait $!
	[ "$pause" -ge 30 ] || pause=$((pause * 2))
}

while [ -z "$stop" ]; do
	# The wait is short, because it is what a signal waits for.  A payload of
	# type json may have line breaks, but only between values.
	query <<'SQL' || { back_off; continue; }
SELECT receipt, op, translate(COALESCE(row, key)::text, E'\n\r\t', '   ')
  FROM feed_poll(:'name', timeout => '5 s');
SQL

	done=
	failed=
	while IFS=$tab read -r receipt op entry; do
		[ -n "$receipt" ] || break	# nothing came
		if ! printf '%s\n' "$entry" | FEED_OP=$op "$@"; then
			failed=1
			break
		fi
		done=$receipt
		[ -z "$stop" ] || break
	done <<ROWS
$rows
ROWS

	if [ -n "$done" ]; then
		# the signal that stops us may have met psql too: what is done is done
		ack || { [ -n "$stop" ] && ack; } || { back_off; continue; }
		case $rows in
			t*) pause=1 ;;
			*) say "not acknowledged: is there another one, or was the subscription moved?" ;;
		esac
	fi
	if [ -n "$failed" ] && [ -z "$stop" ]; then
		say "the command failed; again in $pause s"
		back_off
	fi
done
exit 0
