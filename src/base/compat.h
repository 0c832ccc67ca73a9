/*-------------------------------------------------------------------------
 *
 * compat.h
 *	  Differences between the supported servers, PostgreSQL 15 to 18;
 *	  it compiles with 19, too.
 *
 * The code is written for the newest server.  This file defines the newer
 * names for the older servers.  There is no other PG_VERSION_NUM test in the
 * tree, so a version is dropped by deleting lines of this file.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_COMPAT_H
#define FEEDPUB_COMPAT_H

#include "access/genam.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "fmgr.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/wait_event.h"

#if PG_VERSION_NUM < 150000
#error "feedpub needs PostgreSQL 15 or newer"
#endif

#if PG_VERSION_NUM >= 160000
#include "varatt.h"
#include "catalog/pg_class.h"
#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#endif

/* 18: where MAX_BACKENDS is */
#if PG_VERSION_NUM >= 180000
#include "storage/procnumber.h"
#else
#include "postmaster/postmaster.h"
#endif

/* 18: the module's name and version in its magic block */
#if PG_VERSION_NUM < 180000
#define PG_MODULE_MAGIC_EXT(...) PG_MODULE_MAGIC
#endif

/* 18: index_beginscan() takes an instrumentation struct; 19: options */
#if PG_VERSION_NUM < 180000
#define feedpub_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, nkeys, 0)
#elif PG_VERSION_NUM < 190000
#define feedpub_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0)
#else
#define feedpub_index_beginscan(heap, index, snapshot, nkeys) \
	index_beginscan(heap, index, snapshot, NULL, nkeys, 0, SO_NONE)
#endif

/* 19: scans of tables take options */
#if PG_VERSION_NUM < 190000
#define feedpub_table_beginscan(rel, snapshot, nkeys, keys) \
	table_beginscan(rel, snapshot, nkeys, keys)
#define feedpub_table_beginscan_tidrange(rel, snapshot, first, last) \
	table_beginscan_tidrange(rel, snapshot, first, last)
#define feedpub_table_index_fetch_begin(rel) table_index_fetch_begin(rel)
#else
#define feedpub_table_beginscan(rel, snapshot, nkeys, keys) \
	table_beginscan(rel, snapshot, nkeys, keys, SO_NONE)
#define feedpub_table_beginscan_tidrange(rel, snapshot, first, last) \
	table_beginscan_tidrange(rel, snapshot, first, last, SO_NONE)
#define feedpub_table_index_fetch_begin(rel) \
	table_index_fetch_begin(rel, SO_NONE)
#endif

/* 19: a tranche of locks gets its name when it is made */
#if PG_VERSION_NUM < 190000
#define feedpub_new_tranche(name) LWLockNewTrancheId()
#define feedpub_register_tranche(id, name) LWLockRegisterTranche(id, name)
#else
#define feedpub_new_tranche(name) LWLockNewTrancheId(name)
#define feedpub_register_tranche(id, name) ((void) 0)
#endif

/* 18: generated columns that are computed when they are read */
#if PG_VERSION_NUM < 180000
#define feedpub_has_virtual_columns(tupdesc) false
#else
#define feedpub_has_virtual_columns(tupdesc) \
	((tupdesc)->constr != NULL && (tupdesc)->constr->has_generated_virtual)
#endif

/* 17: own wait events; the server returns the same one each time */
#if PG_VERSION_NUM < 170000
#define feedpub_wait_event(name) PG_WAIT_EXTENSION
#else
#define feedpub_wait_event(name) WaitEventExtensionNew(name)
#endif

/* 17: whether a stronger lock counts as well */
#if PG_VERSION_NUM < 170000
#define feedpub_lock_held(tag, mode) LockHeldByMe(tag, mode)
#else
#define feedpub_lock_held(tag, mode) LockHeldByMe(tag, mode, false)
#endif

/* 17: the shared transaction counters got a new name */
#if PG_VERSION_NUM < 170000
#define TransamVariables ShmemVariableCache
#endif

/* 17: where a backend has the id of its transaction */
#if PG_VERSION_NUM < 170000
#define feedpub_own_lxid() (MyProc->lxid)
#else
#define feedpub_own_lxid() (MyProc->vxid.lxid)
#endif

/* 16: what says where a relation's file is got a new name */
#if PG_VERSION_NUM < 160000
#define rd_locator rd_node
#endif

/* 19: the WAL records of sequences got a header of their own */
#if PG_VERSION_NUM >= 190000
#include "commands/sequence_xlog.h"
#endif

/* 16: one ownership check for all kinds of objects */
#if PG_VERSION_NUM < 160000
#define feedpub_owns_relation(relid, roleid) \
	pg_class_ownercheck(relid, roleid)
#define feedpub_owns_database(dbid, roleid) \
	pg_database_ownercheck(dbid, roleid)
#else
#define feedpub_owns_relation(relid, roleid) \
	object_ownercheck(RelationRelationId, relid, roleid)
#define feedpub_owns_database(dbid, roleid) \
	object_ownercheck(DatabaseRelationId, dbid, roleid)
#endif

#endif							/* FEEDPUB_COMPAT_H */
