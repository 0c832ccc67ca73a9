-- Keys of many types and their deletes: kept as texts that do not depend on
-- settings, and delivered as values of the types.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS json LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "[^"]*", |, "xid": [^,]*, "published_at": ("[^"]*"|null)', '', 'g')::json
$$;
-- Here batches are made by hand: no worker, and reads do not wait for one.
SELECT feed_stop_worker() IS NOT NULL AS stopped;
DO $$
BEGIN
	WHILE EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'feedpub worker' AND datname = current_database()) LOOP
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SET feedpub.read_wait = 0;
\set odd '"Odd ""Name"", with a comma"'
SET timezone = 'UTC';
CREATE TYPE colour AS ENUM ('red', 'it''s "odd", {too}');
CREATE DOMAIN code AS text CHECK (value ~ '^[a-z]+$');
CREATE COLLATION ignoring_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
-- One table a type, each with the same row twice but for the key
CREATE TABLE types (n serial, type text, one text, other text);
INSERT INTO types (type, one, other) VALUES
	('text', E'it''s, "odd" {too}\n\\ \t', ''), ('text', repeat('long ', 500), 'NULL'), ('varchar(20)', ' x ', 'X'), ('char(5)', 'a', 'b'), ('"char"', 'a', 'b'), ('name', 'n', 'm'),
	('text COLLATE "C"', 'ä', 'Ä'), ('text COLLATE ignoring_case', 'a', 'B'), ('code', 'a', 'b'),
	('bool', 't', 'f'), ('int2', '-1', '1'), ('int', '2147483647', '-2147483648'), ('int8', '9223372036854775807', '0'), ('numeric', '1.50', 'NaN'), ('numeric(10,2)', '12345678.90', '-0.01'),
	('float8', '0.1', '1e-300'), ('float4', '0.1', 'Infinity'), ('oid', '4294967295', '1'), ('uuid', '00000000-0000-0000-0000-000000000001', 'ffffffff-ffff-ffff-ffff-ffffffffffff'),
	('bytea', '\x00ff5c27', '\x'), ('date', '2026-02-01', '0044-03-15 BC'), ('timestamptz', '2026-02-01 12:00:00.123456+05:30', '-infinity'), ('timestamp', '2026-02-01 12:00', 'infinity'),
	('time', '23:59:59.999999', '00:00'), ('timetz', '23:00+02', '22:00+02'), ('interval', '-1 mon +2 days -03:00:00', '1 year'), ('inet', '10.0.0.1/8', '::1'), ('macaddr', '08:00:2b:01:02:03', '08:00:2b:01:02:04'),
	('colour', 'it''s "odd", {too}', 'red'), ('int[]', '{1,NULL,3}', '{}'), ('text[]', '{"a,b",NULL,"\"",""}', '{{a},{b}}'), ('timestamptz[]', '{2026-02-01 12:00+05:30}', '{}'),
	('colour[]', '{red,NULL,"it''s \"odd\", {too}"}', '{}'), ('int4range', '[1,5)', 'empty'), ('jsonb', '{"a": [1, "x"]}', '[]'), ('regclass', 'pg_class', 'pg_proc'), ('bit(3)', '101', '010'), ('money', '1234.50', '-0.01'), ('pg_lsn', '0/1', 'FF/0'), ('tsvector', '''a'':1', '''b''');
-- Deleted under one set of settings, read under others: which types lost anything?
CREATE PROCEDURE try(type text, one text, other text, INOUT problem text) LANGUAGE plpgsql AS $$
DECLARE
	got text;
	json text;
	meant text;
BEGIN
	SET LOCAL client_min_messages = warning;
	EXECUTE format('CREATE TABLE tried (note text, k %s PRIMARY KEY)', type);
	EXECUTE 'INSERT INTO tried (k) VALUES ($1::text::' || regexp_replace(type, ' COLLATE.*', '') || '), ($2::text::' || regexp_replace(type, ' COLLATE.*', '') || ')' USING one, other;
	EXECUTE 'SELECT json_object_agg(k::text, k ORDER BY k)::text FROM tried' INTO meant;
	PERFORM feed_attach('tried');
	SET LOCAL datestyle = 'German';
	SET LOCAL timezone = 'Asia/Kolkata';
	SET LOCAL intervalstyle = 'sql_standard';
	SET LOCAL bytea_output = 'escape';
	SET LOCAL extra_float_digits = -15;
	DELETE FROM tried;
	COMMIT;
	CALL feed_publish('tried');
	SET LOCAL intervalstyle = 'iso_8601';
	SET LOCAL array_nulls = off;
	EXECUTE $q$ SELECT string_agg(op, ',') FROM feed_read(NULL::tried, '', 10) $q$ INTO got;
	RESET intervalstyle;
	RESET array_nulls;	-- which the casts of this one would use
	EXECUTE $q$ SELECT json_object_agg((entry).k::text, (entry).k ORDER BY (entry).k)::text FROM feed_read(NULL::tried, '', 10) WHERE op = 'delete' AND (entry).note IS NULL $q$ INTO json;
	IF got IS DISTINCT FROM 'delete,delete' OR json IS DISTINCT FROM meant THEN
		problem := format('%s: %s, %s instead of %s', type, got, json, meant);
	END IF;
	DROP TABLE tried;
END $$;
CREATE PROCEDURE try_all() LANGUAGE plpgsql AS $$
DECLARE
	t types;
	problem text;
BEGIN
	FOR t IN SELECT * FROM types ORDER BY n LOOP
		problem := NULL;
		CALL try(t.type, t.one, t.other, problem);
		IF problem IS NOT NULL THEN
			RAISE NOTICE '%', problem;
		END IF;
	END LOOP;
END $$;
CALL try_all();
SELECT count(*) AS tried FROM types;

--
-- What is kept does not depend on the settings of the session that deletes.
--
CREATE TABLE :odd (day date, at timestamptz, amount float8, data bytea, span interval, tab regclass, days date[], PRIMARY KEY (day, at, amount, data, span, tab, days));
SELECT feed_attach(:'odd');
INSERT INTO :odd VALUES ('2026-02-01', '2026-02-01 12:00+05:30', 0.1, '\x00', '1 day -2 hours', :'odd', '{2026-02-01}');
SET datestyle = 'SQL, DMY';
SET timezone = 'America/New_York';
SET bytea_output = 'escape';
SET extra_float_digits = -5;
SET intervalstyle = 'iso_8601';
SET quote_all_identifiers = on;
UPDATE :odd SET day = day + 1;
SET search_path = pg_catalog;
DELETE FROM public.:odd;
RESET search_path;
RESET datestyle;
SET timezone = 'UTC';
RESET bytea_output;
RESET extra_float_digits;
RESET intervalstyle;
RESET quote_all_identifiers;
SELECT unnest(key) FROM feedpub._tombstone ORDER BY feed_pos;
CALL feed_publish(:'odd');
SELECT steady(e) AS e FROM json_array_elements(feed_page(:'odd', '', 10) -> 'entries') e;
DROP TABLE :odd;

-- Nor does what is read depend on those of the session that reads.
CREATE TABLE :odd (names text[], tab regclass, PRIMARY KEY (names, tab));
SELECT feed_attach(:'odd');
INSERT INTO :odd VALUES ('{NULL,a}', 'pg_class'), ('{"NULL",a}', 'pg_class');
DELETE FROM :odd;
CALL feed_publish(:'odd');
CREATE SCHEMA before;
CREATE TABLE before.pg_class (i int);
SET array_nulls = off;
SET search_path = before, pg_catalog, public;
SELECT op, (entry).names[1] IS NULL AS is_null, (entry).tab = 'pg_catalog.pg_class'::regclass AS is_catalog FROM feed_read(NULL::public.:odd, '', 10);
SHOW array_nulls;
SHOW search_path;
-- A row that lives is found by the key of its delete.
INSERT INTO public.:odd VALUES (ARRAY[NULL, 'a'], 'pg_catalog.pg_class');
CALL feed_publish(('public.' || :'odd')::regclass);
SELECT op, (entry).names[1] IS NULL AS is_null FROM feed_read(NULL::public.:odd, '', 10);
RESET array_nulls;
RESET search_path;
DROP TABLE :odd, before.pg_class;
DROP SCHEMA before;

--
-- Several columns, in the order of the index; equal values that look different
--
CREATE TABLE :odd (v text, b text NOT NULL, a numeric NOT NULL, UNIQUE (a, b));
SELECT feed_attach(:'odd', key => '"Odd ""Name"", with a comma_a_b_key"');
INSERT INTO :odd VALUES ('x', '1', 2), ('x', '2', 1), ('x', ',', 3);
CALL feed_publish(:'odd');
SELECT feed_head(:'odd') AS head \gset
DELETE FROM :odd WHERE a = 1;
DELETE FROM :odd WHERE a = 3;
-- 2.0 is the same key as 2: it exists.
UPDATE :odd SET a = 2.0;
CALL feed_publish(:'odd');
SELECT key FROM feedpub._tombstone ORDER BY feed_pos;
SELECT steady(e) AS e FROM json_array_elements(feed_page(:'odd', :'head', 10) -> 'entries') e;
-- A column of the key that is renamed, or retyped such that the texts still mean the same
ALTER TABLE :odd RENAME b TO "b, renamed";
ALTER TABLE :odd ALTER "b, renamed" TYPE varchar;
SELECT steady(e) AS e FROM json_array_elements(feed_page(:'odd', :'head', 10) -> 'entries') e;
-- Columns before it that go, and come
ALTER TABLE :odd DROP v, ADD w int DEFAULT 7;
DELETE FROM :odd;
CALL feed_publish(:'odd');
SELECT op, entry FROM feed_read(NULL::"Odd ""Name"", with a comma", :'head', 10);
SELECT feed_detach(:'odd');

DROP TABLE :odd, types;
DROP PROCEDURE try_all, try;
DROP COLLATION ignoring_case;
DROP DOMAIN code;
DROP TYPE colour;
DROP FUNCTION steady;
