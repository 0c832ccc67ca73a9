-- What row security hides from a poll.  The poll reads on, but the committed
-- cursor stays before it until an entry after it is acknowledged: another
-- setting, another role or another row of a table that the policy looks at may
-- show it to the next poll.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
CREATE ROLE regress_feedpub_tenant;
\set odd '"Odd ""Name"""'

--
-- A policy by a setting, which the first poll has forgotten
--
SELECT feed_create(:'odd') AS feed \gset
INSERT INTO :odd (message_type, message_key, data) SELECT 'n', 'tenant ' || i % 2, to_jsonb(i) FROM generate_series(1, 5) i;
CALL feed_publish();
GRANT SELECT ON :odd TO regress_feedpub_tenant;
ALTER TABLE :odd ENABLE ROW LEVEL SECURITY;
CREATE POLICY by_setting ON :odd FOR SELECT TO regress_feedpub_tenant USING (message_key = 'tenant ' || current_setting('app.tenant', true));
CREATE FUNCTION left_over(sub text) RETURNS SETOF text LANGUAGE sql AS $$
	SELECT e -> 'row' ->> 'data' FROM feedpub.subscriptions s, feed_page(s.feed, s.cursor) p, json_array_elements(p -> 'entries') e WHERE s.name = sub
$$;
SET ROLE regress_feedpub_tenant;
SELECT feed_subscribe('mine', :'odd', 'earliest') <> '' AS placed;
SELECT count(*) FROM feed_poll('mine');
SELECT count(*) FROM feed_poll('mine', 1, 'w');
SET app.tenant = '1';
SELECT "row" ->> 'data' AS data FROM feed_poll('mine', consumer => 'w');
-- A poll moves nothing past what is hidden, at the end of the feed either; and
-- an acknowledgement passes what its poll looked at, up to the entry.
SELECT feed_ack('mine', receipt) FROM feed_poll('mine', 1, 'w');
RESET ROLE;
SELECT left_over('mine');
SET ROLE regress_feedpub_tenant;
SELECT max(receipt) AS receipt FROM feed_poll('mine', 10, 'w') \gset
SELECT feed_ack('mine', :'receipt');
SELECT count(*) FROM feed_poll('mine', 10, 'w');
RESET ROLE;
SELECT left_over('mine');
INSERT INTO :odd (message_type, message_key, data) SELECT 'n', 'tenant 0', to_jsonb(i) FROM generate_series(6, 7) i;
CALL feed_publish();
SET ROLE regress_feedpub_tenant;
SELECT count(*) FROM feed_poll('mine', 10, 'w');
SELECT count(*) FROM feed_poll('mine', 10, 'w', '10 ms');
SET app.tenant = '0';
SELECT "row" ->> 'data' AS data FROM feed_poll('mine', 10, 'w');
RESET ROLE;
RESET app.tenant;
-- What comes before the first hidden entry, and is gone, is passed.
SELECT feed_leave('mine', 'w');
SELECT feed_seek('mine', 'earliest') <> '' AS moved;
SELECT e ->> 'cursor' AS third FROM json_array_elements(feed_page(:'odd') -> 'entries') e WHERE e -> 'row' ->> 'data' = '3' \gset
DELETE FROM :odd WHERE data::text::int IN (1, 2, 3);
SET ROLE regress_feedpub_tenant;
SELECT count(*) FROM feed_poll('mine');
RESET ROLE;
SELECT feedpub._cursor_compare(cursor, :'third') >= 0 AS moved, (SELECT array_agg(l) FROM left_over('mine') l) AS left_over FROM feedpub.subscriptions;
-- The caller's right to see all of it moves it as before.
DELETE FROM :odd;
SELECT count(*) FROM feed_poll('mine');
SELECT feedpub._cursor_compare(cursor, feed_head(:'odd')) AS "after" FROM feedpub.subscriptions;

--
-- A policy that looks something up in another table
--
CREATE TABLE tenants (name text PRIMARY KEY, shown boolean NOT NULL);
INSERT INTO tenants VALUES ('a', false), ('b', true);
GRANT SELECT ON tenants TO regress_feedpub_tenant;
DROP POLICY by_setting ON :odd;
CREATE POLICY by_table ON :odd FOR SELECT TO regress_feedpub_tenant USING (EXISTS (SELECT FROM tenants t WHERE t.name = message_key AND t.shown));
INSERT INTO :odd (message_type, message_key, data) VALUES ('n', 'a', '10'), ('n', 'a', '11');
CALL feed_publish();
SET ROLE regress_feedpub_tenant;
SELECT count(*) FROM feed_poll('mine');
SELECT count(*) FROM feed_poll('mine', timeout => '10 ms');
RESET ROLE;
UPDATE tenants SET shown = true WHERE name = 'a';
SET ROLE regress_feedpub_tenant;
SELECT "row" ->> 'data' AS data FROM feed_poll('mine');
RESET ROLE;

--
-- Through a long stretch in few pages, whatever max_rows; the page has no more
-- entries than that.
--
UPDATE tenants SET shown = false WHERE name = 'a';
INSERT INTO :odd (message_type, message_key, data) SELECT 'n', CASE WHEN i <= 20000 THEN 'a' ELSE 'b' END, to_jsonb(i) FROM generate_series(1, 20005) i;
CALL feed_publish();
SET ROLE regress_feedpub_tenant;
SELECT "row" ->> 'data' AS data FROM feed_poll('mine', 1);
SELECT "row" ->> 'data' AS data FROM feed_poll('mine', 2);
SELECT feed_ack('mine', receipt) FROM feed_poll('mine', 1);
SELECT "row" ->> 'data' AS data FROM feed_poll('mine');
RESET ROLE;

--
-- A poll that finds nothing else for too long returns, and says why.
--
INSERT INTO :odd (message_type, message_key, data) SELECT 'n', 'a', to_jsonb(i) FROM generate_series(30001, 30200) i;
CALL feed_publish();
-- each row takes 10 ms to look at
CREATE FUNCTION slowly(text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$ BEGIN PERFORM pg_sleep(0.01); RETURN $1 = 'b'; END $$;
DROP POLICY by_table ON :odd;
CREATE POLICY slow ON :odd FOR SELECT TO regress_feedpub_tenant USING (data::text::int <= 30000 OR slowly(message_key));
SET ROLE regress_feedpub_tenant;
SELECT max(receipt) AS receipt FROM feed_poll('mine', 100000) \gset
SELECT feed_ack('mine', :'receipt');
SELECT feed_alter_subscription('mine', lease => '1 s');
SELECT count(*) FROM feed_poll('mine', 10);
SELECT count(*) FROM feed_poll('mine', 10, timeout => '1 h');
RESET ROLE;
-- it has moved nothing
SELECT min(l), count(*) FROM left_over('mine') l;
SELECT feed_drop(:'odd', cascade => true);

--
-- A table feed: rows of the initial snapshot, changed rows, deletes; in shards
--
CREATE TABLE :odd (k text PRIMARY KEY, secret boolean NOT NULL);
INSERT INTO :odd SELECT 'k' || i, i BETWEEN 4 AND 6 FROM generate_series(1, 8) i;
SELECT feed_attach(:'odd');
GRANT SELECT ON :odd TO regress_feedpub_tenant;
ALTER TABLE :odd ENABLE ROW LEVEL SECURITY;
CREATE POLICY open ON :odd FOR SELECT TO regress_feedpub_tenant USING (NOT secret OR current_setting('app.tenant', true) = 'all');
UPDATE :odd SET secret = secret WHERE k = 'k7';
CALL feed_publish();
DELETE FROM :odd WHERE k = 'k8';
UPDATE :odd SET secret = true WHERE k = 'k2';
CALL feed_publish();
CREATE FUNCTION drain(sub text, consumer text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	r record;
	seen text[] := '{}';
	n int;
BEGIN
	FOR turn IN 1 .. 100 LOOP
		n := 0;
		FOR r IN SELECT * FROM feed_poll(sub, 2, consumer) LOOP
			seen := seen || (r.op || ' ' || (r.key ->> 'k'));
			n := n + 1;
		END LOOP;
		EXIT WHEN n = 0;
		PERFORM feed_ack(sub, r.receipt);
	END LOOP;
	RETURN (SELECT string_agg(s, ', ' ORDER BY s) FROM unnest(seen) s);
END $$;
SET ROLE regress_feedpub_tenant;
SELECT feed_subscribe('mine', :'odd', 'earliest') <> '' AS placed;
SELECT drain('mine', NULL);
RESET ROLE;
-- left are what is hidden after the last entry: a row and the delete
SELECT op, key ->> 'k' AS k FROM feed_poll('mine');
-- and so it is if somebody who sees them has parked them
SELECT count(feed_park('mine', receipt)) FROM feed_poll('mine');
SELECT count(*) FROM feed_poll('mine');
SELECT feed_retry('mine');
SET ROLE regress_feedpub_tenant;
SELECT op, key FROM feed_poll('mine');
SELECT op, key FROM feed_poll('mine');
SELECT op, key, message, state FROM feedpub.parked ORDER BY op;
RESET ROLE;
SELECT op, key, state FROM feedpub.parked ORDER BY op;
SELECT drain('mine', NULL);
SELECT count(*) FROM feedpub.parked;
SET ROLE regress_feedpub_tenant;
SELECT feed_seek('mine', 'earliest') <> '' AS moved;
RESET ROLE;
UPDATE :odd SET secret = true;
CALL feed_publish();
SET ROLE regress_feedpub_tenant;
-- no entry at all is visible
SELECT count(*) FROM feed_poll('mine', 1);
SELECT lag_rows FROM feedpub.subscriptions;
SET app.tenant = 'all';
SELECT string_agg(key ->> 'k', ' ' ORDER BY key ->> 'k') FROM feed_poll('mine');
RESET app.tenant;
SELECT feed_subscribe('group', :'odd', 'earliest', 2) <> '' AS placed;
SELECT count(*) FROM feed_poll('group', 10, 'w');
SELECT count(*) FROM feed_poll('group', 10, 'w');
RESET ROLE;
-- The whole table comes to a role that sees it, and then its shards are moved
-- past the entries of the other shard.
SELECT drain('group', 'w');
SELECT count(*) FROM feed_poll('group', 10, 'w');
SELECT DISTINCT feedpub._cursor_compare(cursor, feed_head(:'odd')) AS "after" FROM feedpub.shards WHERE subscription = 'group';
SELECT feed_detach(:'odd', cascade => true);

DROP TABLE :odd, tenants;
DROP FUNCTION left_over, slowly, drain;
DROP ROLE regress_feedpub_tenant;
SELECT feed_start_worker() IS NOT NULL AS started;
