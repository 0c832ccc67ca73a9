# feedpub: make, make install, make installcheck (regress and isolation
# suites in private servers).  ./check runs everything; CONTRIBUTING.md has
# the rest.

EXTENSION = feedpub
EXTVERSION = $(shell sed -n "s/^default_version *= *'\(.*\)'/\1/p" feedpub.control)
MODULE_big = feedpub
PGFILEDESC = "feedpub - feeds that never lose a row"
OBJS = \
	$(WIN32RES) \
	src/argument.o \
	src/attach.o \
	src/attempt.o \
	src/batch.o \
	src/catalog.o \
	src/begin_history.o \
	src/change.o \
	src/check.o \
	src/check_sequence.o \
	src/check_trigger.o \
	src/cursor.o \
	src/entry.o \
	src/feed.o \
	src/feedpub.o \
	src/fetch.o \
	src/flush.o \
	src/guc.o \
	src/history.o \
	src/horizon.o \
	src/initial.o \
	src/json.o \
	src/jsonvalue.o \
	src/key.o \
	src/launcher.o \
	src/maintenance.o \
	src/maintenance_plan.o \
	src/page.o \
	src/partition.o \
	src/partition_list.o \
	src/publish.o \
	src/read.o \
	src/registry.o \
	src/registry_write.o \
	src/relation.o \
	src/repair.o \
	src/republish.o \
	src/restamp.o \
	src/retention.o \
	src/role.o \
	src/run.o \
	src/shmem.o \
	src/shmem_mark.o \
	src/shmem_worker.o \
	src/stamp.o \
	src/start.o \
	src/stats.o \
	src/store.o \
	src/subscription.o \
	src/subscription_ack.o \
	src/subscription_delivery.o \
	src/subscription_lag.o \
	src/subscription_lease.o \
	src/subscription_park.o \
	src/subscription_poll.o \
	src/subscription_receipt.o \
	src/subscription_retry.o \
	src/subscription_start.o \
	src/tombstone.o \
	src/wait.o \
	src/worker.o \
	src/worker_control.o
DATA = feedpub--0.1.sql
PG_CPPFLAGS = -I$(srcdir)/src -DFEEDPUB_VERSION='"$(EXTVERSION)"'

# pg_regress input is sql/, golden output expected/; isolation specs are
# test/specs with test/expected.  Both run in private servers: they create
# roles, hold transactions open and must see no others.
REGRESS = getting_started create stamping fetch xid_head errors rights \
	rights_owner_code \
	check_repair partitions dump_marks views blockers model plans \
	publish read read_columns page cursor wait channel merge read_plans \
	attach attach_repair attach_alter republish changes deletes truncate delete_keys \
	initial consume shards expire expire_merged merge_cursors own_rows own_changes \
	json broken page_bytes wait_locks flush \
	monitoring delete_types subscriptions nack leases groups park subscription_rights example_kv table_partitions
REGRESS_OPTS = --temp-instance=tmp_check/regress \
	--temp-config=$(srcdir)/test/feedpub.conf --no-locale --encoding=UTF8
ISOLATION = \
	drop-against-open \
	drop-against-rename \
	drop-against-subscribe \
	early-xid-late-position \
	every-interleaving \
	first-feeds-at-once \
	flush \
	index-rebuilt \
	key-order-inverted \
	late-committer \
	other-database-writer \
	page-boundary \
	prepared-transaction \
	published-against-drop \
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
	published-merged \
	published-open-writers \
	published-own-rows \
	published-page-boundary \
	published-prepared-transaction \
	published-publisher-defaults \
	published-rewritten \
	published-savepoints \
	published-serializable \
	published-three-transactions \
	published-two-publishers \
	reader-own-rows \
	reader-serializable \
	reader-snapshot \
	republish-against-writers \
	savepoints \
	set-default-at-once \
	subscription-acks \
	subscription-detached \
	subscription-moved \
	subscription-parked \
	subscription-polls subscription-shards-of-role \
	subscription-takeover \
	table-attach-busy \
	table-attach-open-writers \
	table-attach-twice \
	table-attached-again \
	table-delete-reinsert \
	table-detach \
	table-initial-pages \
	table-initial-rewritten \
	table-key-change \
	table-old-snapshot \
	table-partition-attached \
	table-partition-moves \
	table-partition-snapshot \
	table-policy-lookup \
	table-prepared \
	table-serializable \
	table-truncate \
	table-truncate-restart \
	table-update-order \
	three-transactions \
	unrelated-writer \
	update-refused \
	xid-head-open-writer
ISOLATION_OPTS = --inputdir=$(srcdir)/test --outputdir=test \
	--temp-instance=tmp_check/isolation \
	--temp-config=$(srcdir)/test/feedpub.conf --no-locale --encoding=UTF8 \
	--load-extension=feedpub
TAP_TESTS = 1
PROVE_TESTS ?= test/t/*.pl
EXTRA_CLEAN = tmp_check/ log/ results/ test/results/ output_iso/ \
	regression.diffs regression.out

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# After PGXS, which resets it.
PROVE_FLAGS += -I $(srcdir)/test/perl $(if $(PROVE_JOBS),-j $(PROVE_JOBS))

$(OBJS): src/feedpub.h src/compat.h
src/check.o src/check_sequence.o src/check_trigger.o: src/check.h
src/partition.o src/partition_list.o: src/partition.h
src/shmem.o src/shmem_mark.o src/shmem_worker.o: src/shmem.h

.PHONY: format format-check headerscheck
format:
	perl test/format src/*.c src/*.h
format-check:
	perl test/format --check src/*.c src/*.h
# Each header must compile with nothing but postgres.h before it.
headerscheck:
	set -e; for h in src/*.h; do \
		printf '#include "postgres.h"\n#include "%s"\n' "$$h" | \
		$(CC) $(CPPFLAGS) $(CFLAGS) -I. -fsyntax-only -x c -; done

# The three parts of installcheck, each by itself.
.PHONY: installcheck-regress installcheck-isolation installcheck-tap
installcheck-regress:
	$(MKDIR_P) tmp_check
	$(pg_regress_installcheck) $(REGRESS_OPTS) $(REGRESS)
installcheck-isolation:
	$(MKDIR_P) tmp_check test/results
	$(pg_isolation_regress_installcheck) $(ISOLATION_OPTS) $(ISOLATION)
installcheck-tap:
	$(prove_installcheck)
