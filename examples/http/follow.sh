#!/bin/sh
# follow.sh: follows a feed over HTTP, with curl.
#
#     follow.sh http://localhost:8080/feeds/outbox cursor.txt | while read -r entry; do ...
#
# Prints each entry, a line of JSON, and then writes its cursor into the file,
# from where it goes on when it is started again.  If it is killed in between,
# that entry is printed again; none is left out.
#
# If the connection is lost, or the server cannot answer, it connects again.  It
# ends if that does not help: 410 says that the cursor is not accepted any more
# (remove the file to begin again), 401, 403 and 404 that there is nothing to
# read.  More arguments are curl's, as -H "Authorization: Bearer $JWT".
set -u

[ $# -ge 2 ] || { echo "usage: follow.sh URL FILE [CURL-ARGUMENT ...]" >&2; exit 2; }
url=$1 file=$2
shift 2

while :; do
	cursor=$(cat "$file" 2>/dev/null)
	# the head of the response comes first; a heartbeat comes within 90 s
	curl -sSiN --speed-limit 1 --speed-time 90 --connect-timeout 10 "$@" \
		-H 'Accept: text/event-stream' \
		${cursor:+-H "Last-Event-ID: $cursor"} "$url" |
	while read -r field value; do
		case $field in
			HTTP/*)
				case $value in 4*)
					printf 'follow.sh: %s: %s\n' "$url" "$value" >&2
					exit 4 ;;
				esac ;;
			id:) id=$value ;;
			data:)
				printf '%s\n' "$value" || exit 4
				printf '%s\n' "$id" >"$file.new" && mv "$file.new" "$file" || exit 4 ;;
		esac
	done
	[ $? != 4 ] || exit 1
	sleep 1
done
