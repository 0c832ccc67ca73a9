# feedpub: make, make install, make installcheck (regress and isolation
# suites in private servers).  ./check runs everything; CONTRIBUTING.md has
# the rest.

EXTENSION = feedpub
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" feedpub.control)
MODULE_big = feedpub
PGFILEDESC = "feedpub - feeds that never lose a row"
OBJS = \
	$(WIN32RES) \
	src/admin/attach.o \
	src/admin/capture.o \
	src/admin/capture_trigger.o \
	src/admin/check.o \
	src/admin/check_capture.o \
	src/admin/check_problem.o \
	src/admin/check_trigger.o \
	src/admin/create.o \
	src/admin/detach.o \
	src/admin/lock.o \
	src/admin/repair.o \
	src/base/argument.o \
	src/base/attempt.o \
	src/base/guc.o \
	src/base/json_value.o \
	src/base/leftover.o \
	src/base/role.o \
	src/feed/cache.o \
	src/feed/catalog.o \
	src/feed/durable.o \
	src/feed/floor.o \
	src/feed/foreign.o \
	src/feed/history.o \
	src/feed/horizon.o \
	src/feed/key.o \
	src/feed/key_mark.o \
	src/feed/lost.o \
	src/feed/own_changes.o \
	src/feed/partition.o \
	src/feed/partition_join.o \
	src/feed/partition_list.o \
	src/feed/partition_truncate.o \
	src/feed/registry.o \
	src/feed/registry_write.o \
	src/feed/relation.o \
	src/feed/snapshot.o \
	src/feed/store.o \
	src/feedpub.o \
	src/http/event.o \
	src/http/message.o \
	src/http/lines.o \
	src/http/newest.o \
	src/http/restricted.o \
	src/monitor/stats.o \
	src/job/expire.o \
	src/job/plan.o \
	src/job/process.o \
	src/job/rows.o \
	src/job/stamp.o \
	src/job/step.o \
	src/publish/batch.o \
	src/publish/cursor.o \
	src/publish/cut.o \
	src/publish/merge_batches.o \
	src/publish/notify.o \
	src/publish/publish.o \
	src/publish/run.o \
	src/publish/seed.o \
	src/publish/unpublished.o \
	src/read/access.o \
	src/read/cursor_check.o \
	src/read/entry.o \
	src/read/export.o \
	src/read/fetch.o \
	src/read/flush.o \
	src/read/head.o \
	src/read/initial.o \
	src/read/json.o \
	src/read/listen.o \
	src/read/page.o \
	src/read/page_merge.o \
	src/read/page_rows.o \
	src/read/proof.o \
	src/read/types.o \
	src/read/changes.o \
	src/read/wait.o \
	src/republish/begin_history.o \
	src/republish/republish.o \
	src/retention/policy.o \
	src/retention/purge.o \
	src/retention/retain.o \
	src/server/launcher.o \
	src/server/shmem.o \
	src/server/shmem_delivery.o \
	src/server/shmem_listen.o \
	src/server/shmem_mark.o \
	src/server/shmem_worker.o \
	src/subscription/ack.o \
	src/subscription/delay.o \
	src/subscription/delivery.o \
	src/subscription/lag.o \
	src/subscription/lease.o \
	src/subscription/park.o \
	src/subscription/pass.o \
	src/subscription/poll.o \
	src/subscription/receipt.o \
	src/subscription/repeat.o \
	src/subscription/retry.o \
	src/subscription/shard.o \
	src/subscription/start.o \
	src/subscription/subscribe.o \
	src/subscription/subscription.o \
	src/worker/control.o \
	src/worker/prepared.o \
	src/worker/worker.o \
	src/write/capture.o \
	src/write/change.o \
	src/write/message_id.o \
	src/write/position.o \
	src/write/stamp.o \
	src/write/tombstone.o \
	src/write/truncate.o \
	src/write/wake.o
DATA = feedpub--0.1.sql
SCRIPTS = bin/feedpub
PG_CPPFLAGS = -I$(srcdir)/src -DFEEDPUB_VERSION='"$(EXTVERSION)"'

# pg_regress input is sql/, golden output expected/; isolation specs are
# test/specs with test/expected.  Both run in private servers: they create
# roles, hold transactions open and must see no others.
REGRESS = getting_started create stamping fetch xid_head errors rights \
	rights_owner_code \
	check_repair positions partitions dump_marks views blockers model plans \
	publish read read_columns page cursor wait channel merge read_plans \
	attach attach_repair attach_alter detach republish changes deletes truncate delete_keys loaded_rows \
	lost_changes capture capture_hostile capture_admin change_feed change_read \
	initial consume parallel shards types expire expire_merged retain retain_limits retain_model purge merge_cursors own_rows own_changes \
	json broken page_bytes wait_locks flush restricted newest page_lines page_events page_messages snapshot \
	monitoring delete_types key_rewritten subscriptions nack alter_subscription subscription_types delayed leases groups group_truncate park subscription_rights poll_hidden example_kv table_partitions
REGRESS_OPTS = --temp-instance=tmp_regress \
	--temp-config=$(srcdir)/test/feedpub.conf --no-locale --encoding=UTF8
ISOLATION = \
	change-moments \
	drop-against-capture \
	drop-against-open \
	drop-against-rename \
	drop-against-subscribe \
	early-xid-late-position \
	every-interleaving \
	first-feeds-at-once \
	flush \
	index-rebuilt \
	jobs-at-once \
	key-order-inverted \
	late-committer \
	other-database-writer \
	page-boundary \
	prepared-transaction \
	published-against-drop \
	published-all-cancelled \
	published-all-against-drop \
	published-all-goes-on \
	published-by-worker \
	published-cursor-locked \
	published-deleted-rows \
	published-early-xid \
	published-every-interleaving \
	published-head \
	published-index-rebuilt \
	published-key-order \
	published-late-committer \
	published-long-transaction \
	published-old-snapshot \
	published-many-feeds \
	published-merged \
	published-open-writers \
	published-own-rows \
	published-page-boundary \
	published-partition-locked \
	published-prepared-transaction \
	published-publisher-defaults \
	published-rewritten \
	published-savepoints \
	published-serializable \
	published-three-transactions \
	published-two-publishers \
	reader-altered-table \
	reader-begin-history \
	reader-own-rows \
	reader-serializable \
	reader-snapshot \
	reindex-against-captures \
	reindex-against-readers \
	republish-against-writers \
	retention-against-publishers \
	retention-against-subscribers \
	retention-old-snapshot \
	retention-open-transactions \
	savepoints \
	set-default-at-once \
	subscribe-against-ddl \
	subscription-acks subscription-altered \
	subscription-delayed \
	subscription-detached \
	subscription-hidden \
	subscription-history \
	subscription-moved \
	subscription-parked \
	subscription-polls subscription-shards-of-role \
	subscription-takeover \
	subscription-types \
	table-attach-busy \
	table-attach-open-writers \
	table-attach-twice \
	table-attached-again \
	table-delete-reinsert \
	table-detach \
	table-detach-deadlock \
	table-initial-pages \
	table-initial-rewritten \
	table-key-change \
	table-key-retyped \
	table-old-snapshot \
	table-partition-attached \
	table-partition-detached \
	table-partition-moves \
	table-partition-snapshot \
	table-partition-truncated \
	table-policy-lookup \
	table-prepared \
	table-relcache-reset \
	table-sequence-set-back \
	table-serializable \
	table-trigger-restored \
	table-truncate \
	table-truncate-restart \
	table-update-order \
	three-transactions \
	unrelated-writer \
	update-refused \
	waiters-against-drop \
	xid-head-open-writer
# Each run begins with no-worker, also one of a single spec.
ISOLATION_OPTS = --inputdir=$(srcdir)/test --outputdir=test \
	--temp-instance=tmp_isolation \
	--temp-config=$(srcdir)/test/feedpub.conf --no-locale --encoding=UTF8 \
	--load-extension=feedpub no-worker
PROVE_TESTS ?= test/t/*.pl
EXTRA_CLEAN = tmp_check/ tmp_regress/ tmp_isolation/ log/ results/ test/results/ output_iso/ \
	regression.diffs regression.out image/ feedpub-*.zip

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# After PGXS, which resets it.
PROVE_FLAGS += -I $(srcdir)/test/perl $(if $(PROVE_JOBS),-j $(PROVE_JOBS))

# Which header which file needs is not worth the upkeep: all of them.
HEADERS = $(wildcard $(srcdir)/src/*/*.h)
SOURCES = $(wildcard $(srcdir)/src/*.c $(srcdir)/src/*/*.c)
$(OBJS): $(HEADERS)

# The man page of bin/feedpub; PGXS installs the rest.
.PHONY: install-man uninstall-man
install: install-man
install-man:
	$(MKDIR_P) '$(DESTDIR)$(mandir)/man1'
	$(INSTALL_DATA) $(srcdir)/bin/feedpub.1 '$(DESTDIR)$(mandir)/man1/'
# PGXS looks for bin/feedpub where it has installed feedpub.
uninstall: uninstall-man
uninstall-man:
	rm -f '$(DESTDIR)$(bindir)/feedpub' '$(DESTDIR)$(mandir)/man1/feedpub.1'

.PHONY: format format-check headerscheck
FORMATTED = $(SOURCES) $(HEADERS) $(wildcard $(addprefix $(srcdir)/, \
	http/*.[ch] http/*/*.[ch] relay/*.[ch] relay/*/*.[ch] common/*/*.[ch]))
format:
	perl test/format $(FORMATTED)
format-check:
	perl test/format --check $(FORMATTED)
# Each header must compile with nothing but postgres.h before it.
headerscheck:
	set -e; for h in $(HEADERS); do \
		printf '#include "postgres.h"\n#include "%s"\n' "$$h" | \
		$(CC) $(CPPFLAGS) $(CFLAGS) -fsyntax-only -x c -; done

# What PGXN takes: the last commit, less what .gitattributes leaves out.
# And a directory for PostgreSQL 18's extension_control_path (image/share) and
# dynamic_library_path (image/lib), as volumes of container images have it.
.PHONY: dist image
DISTVERSION = $(EXTVERSION).0
IMAGE = image
dist:
	git archive --prefix=feedpub-$(DISTVERSION)/ -o feedpub-$(DISTVERSION).zip HEAD
image: all
	rm -rf '$(IMAGE)'
	$(MKDIR_P) '$(IMAGE)/lib' '$(IMAGE)/share/extension'
	$(INSTALL_SHLIB) $(shlib) '$(IMAGE)/lib/'
	$(INSTALL_DATA) $(addprefix $(srcdir)/, feedpub.control $(DATA)) \
		'$(IMAGE)/share/extension/'

# The two parts of installcheck, each by itself; and the TAP tests, which write
# into the server's directories, so that pgxn check cannot run them.
.PHONY: installcheck-regress installcheck-isolation installcheck-tap
installcheck installcheck-regress installcheck-isolation: | test/results
test/results:
	$(MKDIR_P) $@
installcheck-regress:
	$(pg_regress_installcheck) $(REGRESS_OPTS) $(REGRESS)
installcheck-isolation:
	$(pg_isolation_regress_installcheck) $(ISOLATION_OPTS) $(ISOLATION)
installcheck-tap:
	$(prove_installcheck)
