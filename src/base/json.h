/*-------------------------------------------------------------------------
 *
 * json.h
 *	  What the files that write JSON share.
 *
 *-------------------------------------------------------------------------
 */
#ifndef FEEDPUB_JSON_H
#define FEEDPUB_JSON_H

#include "utils/datetime.h"
#include "utils/hsearch.h"

#include "base/base.h"

/* How values of a type are written. */
typedef enum JsonKind
{
	JSON_BOOL,
	JSON_INT4,
	JSON_INT8,
	JSON_NUMBER,				/* as its output function has it */
	JSON_TIME,
	JSON_JSON,
	JSON_JSONB,
	JSON_TEXT,
	JSON_ARRAY,
	JSON_ROW,
	JSON_STRING,				/* what its output function makes, quoted */
} JsonKind;

struct FeedpubJsonType
{
	Oid			type;			/* must be first */
	bool		is_known;		/* the rest is there */
	JsonKind	kind;
	Oid			base;			/* not a domain */
	int16		len;
	FmgrInfo	output;
	bool		has_time;		/* the last one that was written: rows of a */
	int64		time;			/* transaction often have the same */
	char		time_text[MAXDATELEN + 1];
};

struct FeedpubJsonValues
{
	HTAB	   *types;
	bool		in_utc;			/* times are */
	Size		start;			/* where in its buffer the object begins */
	MemoryContext context;		/* of what is known of types */
};

/* in json_value.c */
extern FeedpubJsonType *feedpub_jsonvalue_type(FeedpubJsonValues *values, Oid typid);
extern void feedpub_jsonvalue_append_as(FeedpubJsonValues *values, StringInfo out,
										FeedpubJsonType *type, Datum value);

#endif							/* FEEDPUB_JSON_H */
