-- Rows in JSON are as row_to_json() makes them, but for casts that users made.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
-- Entries, less what differs from run to run
CREATE FUNCTION steady(j json) RETURNS json LANGUAGE sql AS $$
	SELECT regexp_replace(j::text, '"cursor": "[^"]*", |, "xid": [^,]*, "published_at": ("[^"]*"|null)', '', 'g')::json
$$;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
CREATE TYPE mood AS ENUM ('sad', 'so "so"', 'happy');
CREATE DOMAIN whole AS int CHECK (value > 0);
CREATE DOMAIN wholes AS whole[];
CREATE DOMAIN moment AS timestamptz;
CREATE DOMAIN document AS jsonb;
CREATE DOMAIN flag AS bool;
CREATE TYPE pair AS (a int, "Odd ""Name"" \" text, gone int, t timestamp);
ALTER TYPE pair DROP ATTRIBUTE gone;
CREATE TYPE nested AS (p pair, ps pair[], w whole, ws wholes, n numeric[], j json[], m mood);
CREATE DOMAIN pair_domain AS pair;
CREATE TYPE empty AS ();
CREATE TABLE part_of (i int, j jsonb);
CREATE TYPE span AS RANGE (subtype = float8);
CREATE TABLE kv (
	id int PRIMARY KEY,
	"Odd ""Name"", \ 	tab" text,
	i2 int2, i8 int8, f4 float4, f8 float8, n numeric, b bool,
	t text, v varchar(20), c char(6), ch "char", na name,
	d date, tm time, tmz timetz, ts timestamp, tsz timestamptz, iv interval,
	j json, jb jsonb, x xml, u uuid, by bytea, bi bit(4), vb varbit,
	ip inet, ci cidr, ma macaddr, mo money,
	po point, li lseg, bo box, pa path, pg polygon, cr circle,
	r int4range, mr int4multirange, sp span,
	tv tsvector, tq tsquery, o oid, rc regclass, rt regtype, x8 xid8, lsn pg_lsn, sn pg_snapshot, ti tid,
	iv2 int2vector, ov oidvector, jp jsonpath,
	ai int[], at text[], ab bool[], aj jsonb[], ats timestamptz[], am mood[], ap pair[], an numeric[], aby bytea[],
	m mood, w whole, ws wholes, mom moment, doc document, fl flag,
	p pair, pd pair_domain, ne nested, em empty, rw part_of, rws part_of[], ar int4range[],
	gone text);
ALTER TABLE kv DROP COLUMN gone;
ALTER TABLE kv ADD COLUMN later text DEFAULT 'later', ADD COLUMN gen int GENERATED ALWAYS AS (id * 2) STORED;
-- Nulls, and what is empty
INSERT INTO kv (id, later) VALUES (1, NULL);
INSERT INTO kv (id, t, c, x, by, vb, pa, r, mr, tv, ai, at, ap, ws, p, ne, rw, rws, jb, j, em)
	VALUES (2, '', '', '', '', '', '[(0,0)]', 'empty', '{}', '', '{}', '{}', '{}', '{}', ROW(NULL, NULL, NULL),
		ROW(NULL, NULL, NULL, NULL, NULL, NULL, NULL), ROW(NULL, NULL), '{}', 'null', ' [ 1 , 2 ] ', ROW());
-- One of each
INSERT INTO kv (id, "Odd ""Name"", \ 	tab", i2, i8, f4, f8, n, b, t, v, c, ch, na, d, tm, tmz, ts, tsz, iv, j, jb, x, u, by, bi, vb,
	ip, ci, ma, mo, po, li, bo, pa, pg, cr, r, mr, sp, tv, tq, o, rc, rt, x8, lsn, sn, ti, iv2, ov, jp,
	ai, at, ab, aj, ats, am, ap, an, aby, m, w, ws, mom, doc, fl, p, pd, ne, rw, rws, ar)
VALUES (3, 'x', -32768, 9223372036854775807, 1.5e-30, -1e300, 12345678901234567890.12345000, true,
	E'quote " backslash \\ slash / tab \t newline \n return \r bell \x07 \b \f \x01 \x1f \x7f < > &', 'varchar', 'ch "r', 'x', 'a_name',
	'2024-02-29', '12:34:56.789', '12:34:56+03:30', '2024-02-29 12:34:56.789', '2024-02-29 12:34:56.789+00', '1 year 2 mons 3 days 04:05:06.7',
	'{"a" : [1, 2.50, "x\u0041"], "a": null}', '{"a": [1, 2.50, "x\u0041", true, null, {"b\"": "\n"}], "long": 1e100}', '<a>"b"</a>',
	'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\x00ff5c22', '1010', '10101', '192.168.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03', 1234.5,
	'(1,2)', '[(1,2),(3,4)]', '(1,2),(3,4)', '((1,2),(3,4))', '((1,2),(3,4),(5,6))', '<(1,2),3>',
	'[1,10)', '{[1,3),[5,7)}', '[1.5,2.5]', 'a fat cat', 'fat & (rat | cat)', 42, 'pg_class', 'int4', '42', '16/B374D848', '10:20:10,14,15', '(0,1)',
	'1 2 3', '1 2 3', '$.a[*] ? (@ > 1)',
	'{{1,2,3},{4,NULL,6}}', ARRAY['a"b', NULL, E'\n', ''], '{t,f,NULL}', ARRAY['{"a": 1}'::jsonb, 'null', NULL], '[0:1]={"2024-02-29 00:00:00+00",infinity}', '{sad,"so \"so\""}',
	ARRAY[ROW(1, 'x', '2024-01-01')::pair, NULL], '{{{1.10,NaN}},{{Infinity,-0.00}}}', ARRAY['\x00'::bytea],
	'so "so"', 5, '{1,2}', 'infinity', '[1, {"a": "b"}]', false, ROW(1, 'x', '2024-01-01'), ROW(2, NULL, '-infinity'),
	ROW(ROW(1, 'x', '2024-01-01'), ARRAY[ROW(NULL, E'\x01', NULL)::pair], 3, '{4,5}', '{6.60}', ARRAY['{"x" : 1}'::json, NULL], 'happy'),
	ROW(1, '{"k": [1]}'), ARRAY[ROW(1, '{}')::part_of], '{"[1,2)",empty}');
-- Numbers that are none in JSON, and times at their ends
INSERT INTO kv (id, f4, f8, n, d, ts, tsz, an, tm) VALUES
	(4, 'NaN', 'Infinity', 'NaN', 'infinity', '-infinity', 'infinity', '{NaN,Infinity,-Infinity,-1}', '24:00'),
	(5, '-Infinity', 'NaN', '-Infinity', '0044-03-15 BC', '0044-03-15 12:00 BC', '4713-01-01 BC', NULL, '00:00:00.000001'),
	(6, -0.0, 0.1, 1e-20, '5874897-12-31', '294276-12-31 23:59:59.999999', '294276-12-31 23:59:59.999999+00', NULL, NULL);
-- Large values, compressed and out of line
CREATE FUNCTION noise(n int) RETURNS text LANGUAGE sql AS $$ SELECT string_agg(md5(i::text), '"') FROM generate_series(1, n / 33) i $$;
INSERT INTO kv (id, t, jb, at, by, ne, rw) VALUES (7, noise(100000), to_jsonb(noise(100000)), ARRAY[noise(50000), repeat('x', 100000)], noise(50000)::bytea,
	ROW(ROW(1, noise(50000), NULL), NULL, NULL, NULL, NULL, NULL, NULL), ROW(1, to_jsonb(repeat(E'\x01', 100000))));
INSERT INTO kv (id, "Odd ""Name"", \ 	tab", v) SELECT 7 + i, chr(i), chr(i) || '"' || chr(i) FROM generate_series(1, 700) i WHERE i < 128 OR getdatabaseencoding() = 'UTF8';
-- jsonb of each shape; what is escaped at each position in a longer text
INSERT INTO kv (id, jb) SELECT 2000 + row_number() OVER (), j FROM unnest(ARRAY[
	'"alone"', '1', '-0.50', '1e-7', 'true', 'false', 'null', '[]', '{}', '[null]', '[[], {}, [[]], [{}], {"a": [], "b": {}}, [1, [2, [3]], 4]]',
	'{"": "", "a": {"b": {"c": 1}, "d": [{}]}, "e": [null, true]}']::jsonb[]) j;
INSERT INTO kv (id, t, jb) SELECT 3000 + row_number() OVER (), s, to_jsonb(s)
	FROM unnest(ARRAY['"', '\', E'\x01', E'\x1f', ' ', E'\x7f']) c, generate_series(0, 17) i, LATERAL overlay('seventeen letters' || '!' PLACING c FROM i + 1 FOR 1) s;
INSERT INTO kv (id, t, jb) SELECT 4000 + i, s, to_jsonb(s) FROM generate_series(0, 17) i,
	LATERAL overlay('seventeen letters!' PLACING chr(228) || '"' FROM i + 1) s WHERE getdatabaseencoding() = 'UTF8';
SELECT feed_attach('kv') IS NULL AS attached;
SELECT feed_subscribe('all', 'kv', 'earliest') <> '' AS placed;
-- What differs from row_to_json(); none.
CREATE TABLE difference (setting text, id int, page text, poll text, wanted text);
CREATE PROCEDURE compare(setting text) LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO difference
		SELECT setting, k.id, p.row, l.entry, w.row
		FROM kv k
			CROSS JOIN LATERAL (SELECT left(r, strpos(r, ',"feed_xid":') - 1) || '}' AS row FROM CAST(row_to_json(k) AS text) r) w
			LEFT JOIN (SELECT e -> 'row' ->> 'id' AS id, e ->> 'row' AS row
				FROM json_array_elements(feed_page('kv', '', 10000) -> 'entries') e) p ON p.id = k.id::text
			LEFT JOIN (SELECT row ->> 'id' AS id, row::text AS entry FROM feed_poll('all', 10000)) l ON l.id = k.id::text
		WHERE w.row IS DISTINCT FROM p.row OR w.row IS DISTINCT FROM l.entry;
END $$;
CALL compare('none');
SET timezone = 'Asia/Kolkata';
SET datestyle = 'German';
SET intervalstyle = 'iso_8601';
SET bytea_output = 'escape';
SET extra_float_digits = 0;
SET lc_monetary = 'C';
CALL compare('others');
RESET ALL;
SET feedpub.read_wait = 0;
SELECT count(*) > 100 AS some, (SELECT count(*) FROM difference) AS differences FROM kv;
SELECT setting, id, left(page, 200) AS page, left(poll, 200) AS poll, left(wanted, 200) AS wanted FROM difference ORDER BY 1, 2 LIMIT 5;

--
-- A cast to json would run as the reader: it is not called.
--
CREATE ROLE regress_feedpub_owner;
CREATE ROLE regress_feedpub_reader;
CREATE SCHEMA own AUTHORIZATION regress_feedpub_owner;
GRANT USAGE ON SCHEMA own TO public;
SET ROLE regress_feedpub_owner;
CREATE TABLE own.caller (name text);
GRANT INSERT ON own.caller TO public;
CREATE TYPE own.mood AS ENUM ('sad', 'happy');
CREATE TYPE own.mood_range AS RANGE (subtype = own.mood);
CREATE FUNCTION own.to_json(own.mood) RETURNS json LANGUAGE plpgsql AS $$
BEGIN INSERT INTO own.caller VALUES (current_user); RETURN '"cast"'; END $$;
CREATE FUNCTION own.to_json(own.mood_range) RETURNS json LANGUAGE plpgsql AS $$
BEGIN INSERT INTO own.caller VALUES (current_user); RETURN '"cast"'; END $$;
CREATE CAST (own.mood AS json) WITH FUNCTION own.to_json(own.mood);
CREATE CAST (own.mood_range AS json) WITH FUNCTION own.to_json(own.mood_range) AS ASSIGNMENT;
CREATE DOMAIN own.mood_domain AS own.mood;
CREATE TYPE own.moods AS (m own.mood, ms own.mood[]);
CREATE TABLE own.kv (m own.mood PRIMARY KEY, d own.mood_domain, a own.mood[], r own.mood_range, c own.moods, cs own.moods[]);
INSERT INTO own.kv VALUES ('sad', 'happy', '{sad,happy}', '[sad,happy)', ROW('sad', '{happy}'), ARRAY[ROW('happy', NULL)::own.moods]);
SELECT feed_attach('own.kv') IS NULL AS attached;
GRANT SELECT ON own.kv TO regress_feedpub_reader;
DELETE FROM own.kv;
INSERT INTO own.kv VALUES ('happy', 'sad', '{happy,sad}', NULL, NULL, NULL);
-- The cast is used.
SELECT row_to_json(k)::text LIKE '%cast%' AS cast FROM own.kv k;
SELECT count(*) > 0 AS called FROM own.caller;
DELETE FROM own.caller;
RESET ROLE;
CALL feed_publish();
SET ROLE regress_feedpub_reader;
SELECT steady(e) AS e FROM json_array_elements(feed_page('own.kv', '', 10) -> 'entries') e;
SELECT feed_subscribe('moods', 'own.kv', 'earliest') <> '' AS placed;
SELECT op, key, row FROM feed_poll('moods', 10);
SELECT (entry).m FROM feed_read(NULL::own.kv, '', 10);
SELECT feed_unsubscribe('moods');
RESET ROLE;
SELECT * FROM own.caller;
SELECT feed_detach('own.kv');
SET client_min_messages = warning;
DROP SCHEMA own CASCADE;
RESET client_min_messages;
DROP ROLE regress_feedpub_owner, regress_feedpub_reader;
SELECT feed_unsubscribe('all');
SELECT feed_detach('kv');
DROP PROCEDURE compare;
DROP FUNCTION noise;
DROP TABLE kv, difference;
DROP TYPE nested, pair_domain, pair, empty, wholes, whole, moment, document, flag, mood, span;
DROP TABLE part_of;
DROP FUNCTION steady;
