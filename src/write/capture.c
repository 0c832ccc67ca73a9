/*-------------------------------------------------------------------------
 *
 * capture.c
 *	  The triggers of captured tables, which write changes into change feeds.
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "write/write.h"

PG_FUNCTION_INFO_V1(feedpub_capture_row);
PG_FUNCTION_INFO_V1(feedpub_capture_truncate);

/*
 * feedpub._capture_row() returns trigger
 *
 * AFTER INSERT OR UPDATE OR DELETE, FOR EACH ROW, on a captured table.
 */
Datum
feedpub_capture_row(PG_FUNCTION_ARGS)
{
	(void) feedpub_stamp_trigger(fcinfo, TRIGGER_EVENT_AFTER, FEEDPUB_BY_INSERT | FEEDPUB_BY_UPDATE | FEEDPUB_BY_DELETE, 0,
								 "_capture_row", "row trigger after INSERT, UPDATE or DELETE");
	PG_RETURN_POINTER(NULL);
}

/*
 * feedpub._capture_truncate() returns trigger
 *
 * BEFORE TRUNCATE, FOR EACH STATEMENT, on a captured table or a partition.
 */
Datum
feedpub_capture_truncate(PG_FUNCTION_ARGS)
{
	(void) feedpub_stamp_trigger(fcinfo, TRIGGER_EVENT_BEFORE, 0, FEEDPUB_BY_TRUNCATE,
								 "_capture_truncate", "trigger before TRUNCATE");
	PG_RETURN_POINTER(NULL);
}
