-- Subscriptions and the rights of roles: what a caller brings along must not
-- be run by the extension's owner, nor be shown what is others'.  (The whole
-- matrix of roles and functions is in test/pgtap/subscriptions.sql.)
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS feedpub;
RESET client_min_messages;
SELECT feed_stop_worker() IS NOT NULL AS stopped;
SET feedpub.read_wait = 0;
CREATE ROLE regress_feedpub_subscriber;
CREATE ROLE regress_feedpub_evil;
CREATE TABLE kv (k text PRIMARY KEY, v text, secret boolean NOT NULL DEFAULT false);
SELECT feed_attach('kv');
INSERT INTO kv VALUES ('a', '1', false), ('b', '2', true), ('c', '3', false);
CALL feed_publish();
GRANT SELECT ON kv TO regress_feedpub_subscriber, regress_feedpub_evil;

--
-- A path on which another's operators, functions, casts and tables come first:
-- whichever of them is called says so, by an error.
--
CREATE SCHEMA evil AUTHORIZATION regress_feedpub_evil;
SET ROLE regress_feedpub_evil;
CREATE FUNCTION evil.trap() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trapped as %', current_user; END $$;
DO $$
DECLARE
	types constant text[] := '{text,int4,int8,timestamptz,bool,oid,name,xid8,text[],interval}';
	operators constant text[] := '{=,<>,<,<=,>,>=,+,-,*,&,|,#,<<,>>,||,~~}';
	t text;
	o text;
	f text;
BEGIN
	FOREACH t IN ARRAY types LOOP
		FOREACH o IN ARRAY operators LOOP
			-- an implicit cast of a literal, and of two kinds of numbers too
			EXECUTE format('CREATE FUNCTION evil.%I(%s, %s) RETURNS boolean LANGUAGE plpgsql AS ''BEGIN PERFORM evil.trap(); RETURN true; END''', 'f' || o, t, t);
			EXECUTE format('CREATE OPERATOR evil.%s (leftarg = %s, rightarg = %s, function = evil.%I)', o, t, t, 'f' || o);
		END LOOP;
	END LOOP;
	EXECUTE 'CREATE FUNCTION evil.num(bigint, int) RETURNS bigint LANGUAGE plpgsql AS ''BEGIN PERFORM evil.trap(); RETURN 0; END''';
	FOREACH o IN ARRAY '{+,-,&,<<,>>,<,>,=}'::text[] LOOP
		EXECUTE format('CREATE OPERATOR evil.%s (leftarg = bigint, rightarg = int, function = evil.num)', o);
	END LOOP;
	FOREACH f IN ARRAY '{substr(text\,int\,int),hashtextextended(text\,bigint),clock_timestamp(),random(),now(),count(text),generate_series(int\,int),pg_has_role(oid\,text),row_to_json(record)}'::text[] LOOP
		EXECUTE format('CREATE FUNCTION evil.%s RETURNS text LANGUAGE plpgsql AS ''BEGIN PERFORM evil.trap(); RETURN 1; END''', f);
	END LOOP;
END $$;
CREATE COLLATION evil."C" FROM pg_catalog."C";
CREATE TABLE evil.subscription (name text);
CREATE TABLE evil.shard (name text);
SET search_path = evil, pg_temp, public, pg_catalog;
-- The operator is used.
SELECT '1'::text = '2'::text;
SELECT feed_subscribe('evil', 'kv', 'earliest', 2) OPERATOR(pg_catalog.<>) '' AS placed;
SELECT feed_subscribe('evil', 'kv');
SELECT pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 AS some FROM feed_poll('evil', 10, 'w');
SELECT pg_catalog.count(*) OPERATOR(pg_catalog.>) 0 AS some FROM feed_poll_rows('evil', NULL::public.kv, 10, 'w');
DO $$
DECLARE
	r pg_catalog.record;
BEGIN
	FOR r IN SELECT * FROM feed_poll('evil', 10, 'w') LOOP
		EXIT WHEN r.op OPERATOR(pg_catalog.=) 'upsert';
	END LOOP;
	PERFORM feed_nack('evil', r.receipt, 'x', delay => '0');
	PERFORM feed_nack('evil', r.receipt, 'x', delay => '0');
	PERFORM feed_ack('evil', r.receipt);
	PERFORM feed_ack('evil', r.receipt, false);
	PERFORM feed_retry('evil', r.cursor);
	PERFORM feed_retry('evil');
	FOR r IN SELECT * FROM feed_poll('evil', 10, 'w') LOOP
		EXIT WHEN r.attempt OPERATOR(pg_catalog.>) 1;
	END LOOP;
	PERFORM feed_park('evil', r.receipt);
	PERFORM feed_ack('evil', r.receipt, false);
	PERFORM feed_discard('evil', r.cursor);
	FOR r IN SELECT * FROM feed_poll('evil', 10, 'w', '1 ms') LOOP
		PERFORM FROM feed_poll('evil', 10, 'w', '1 ms', r.receipt);
	END LOOP;
	PERFORM feed_leave('evil', 'w');
	PERFORM feed_seek('evil', '2000-01-01');
	PERFORM feed_seek('evil', pg_catalog.now());
	PERFORM feed_subscribe('evil', 'kv', pg_catalog.now(), if_not_exists => true);
	PERFORM feed_seek('evil', r.cursor);
END $$;
SELECT pg_catalog.count(*) FROM feedpub.subscriptions;
SELECT pg_catalog.count(*) FROM feedpub.shards;
-- The first entry, if the other one of the two shards came first: that is random.
SELECT pg_catalog.count(*) OPERATOR(pg_catalog.<=) 1 AS few FROM feedpub.parked;
SELECT feed_unsubscribe('evil');
SELECT feed_subscribe('evil', 'kv', 'earliest') OPERATOR(pg_catalog.<>) '' AS placed;
SELECT pg_catalog.count(*) FROM feed_poll('evil', 10);
SELECT feed_unsubscribe('evil');
RESET search_path;
RESET ROLE;

--
-- Views: a function that tells what it is called with is not called with what
-- is others'.
--
SET ROLE regress_feedpub_subscriber;
SELECT feed_subscribe('mine', 'kv', 'earliest') <> '' AS placed;
SELECT feed_park('mine', receipt, 'my reason') FROM feed_poll('mine', 1);
RESET ROLE;
SET ROLE regress_feedpub_evil;
CREATE FUNCTION evil.tell(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS $$ BEGIN RAISE NOTICE 'heard of %', $1; RETURN true; END $$;
SELECT name FROM feedpub.subscriptions WHERE evil.tell(name);
SELECT shard FROM feedpub.shards WHERE evil.tell(subscription);
SELECT shard FROM feedpub.parked WHERE evil.tell(subscription) AND evil.tell(reason);
RESET ROLE;
SET ROLE regress_feedpub_subscriber;
SELECT subscription, op, key, message, reason FROM feedpub.parked;
SELECT feed_unsubscribe('mine');
RESET ROLE;

--
-- If row security hides rows from a role, their parked entries are not shown to
-- it, and not forgotten either.
--
ALTER TABLE kv ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON kv FOR SELECT TO regress_feedpub_subscriber USING (NOT secret);
SET ROLE regress_feedpub_subscriber;
SELECT feed_subscribe('mine', 'kv', 'earliest') <> '' AS placed;
SELECT op, row ->> 'k' AS k FROM feed_poll('mine', 10);
RESET ROLE;
-- a superuser, which sees them all, parks them
SELECT array_agg(p.receipt) AS receipts FROM feed_poll('mine', 10) p \gset
SELECT count(feed_park('mine', c, 'x')) FROM unnest(:'receipts'::text[]) c;
SELECT feed_ack('mine', (:'receipts'::text[])[3]);
UPDATE kv SET secret = true WHERE k <> 'c';
SELECT feed_retry('mine');
SET ROLE regress_feedpub_subscriber;
SELECT op, row ->> 'k' AS k FROM feed_poll('mine', 10);
SELECT op, key, message, reason FROM feedpub.parked;
SELECT feed_park('mine', receipt, 'c') FROM feed_poll('mine', 10);
-- nothing of it for the subscriber, and no busy loop
SELECT count(*) FROM feed_poll('mine', 10);
SELECT count(*) FROM feed_poll('mine', timeout => '10 ms');
RESET ROLE;
SELECT key, message, reason FROM feedpub.parked ORDER BY key ->> 'k';
-- If row security restricts a role, it gets no deletes.
DELETE FROM kv WHERE k = 'c';
CALL feed_publish('kv');
SET ROLE regress_feedpub_subscriber;
SELECT op FROM feed_poll('mine', 10);
SELECT cursor = feed_head('kv') AS passed FROM feedpub.subscriptions;
RESET ROLE;
-- Shown again, they come.
UPDATE kv SET secret = false WHERE k = 'a';
SET ROLE regress_feedpub_subscriber;
SELECT op, row ->> 'k' AS k, feed_ack('mine', receipt) FROM feed_poll('mine', 10);
SELECT op, row ->> 'k' AS k FROM feed_poll('mine', 10);
RESET ROLE;
SELECT row ->> 'k' AS k FROM feed_poll('mine', 10);

-- What is kept of a parked message is not shown to whom its row is hidden.
SELECT feed_create('box') AS box \gset
INSERT INTO box (message_type, data) VALUES ('secret', '1'), ('open', '2');
CALL feed_publish('box');
GRANT SELECT ON box TO regress_feedpub_subscriber;
SET ROLE regress_feedpub_subscriber;
SELECT feed_subscribe('boxed', 'box', 'earliest') <> '' AS placed;
SELECT receipt FROM feed_poll('boxed', 1) \gset
SELECT feed_nack('boxed', :'receipt', delay => '0');
SELECT receipt FROM feed_poll('boxed', 1) \gset
SELECT feed_ack('boxed', :'receipt');
RESET ROLE;
ALTER TABLE box ENABLE ROW LEVEL SECURITY;
CREATE POLICY p ON box FOR SELECT TO regress_feedpub_subscriber USING (message_type = 'open');
SET ROLE regress_feedpub_subscriber;
SELECT count(*) FROM feed_poll('boxed');
SELECT key, message FROM feedpub.parked WHERE subscription = 'boxed';
RESET ROLE;
SELECT row ->> 'message_type' AS type FROM feed_poll('boxed');
SELECT feed_drop('box', cascade => true);

--
-- Rights that are taken away
--
REVOKE SELECT ON kv FROM regress_feedpub_subscriber;
SET ROLE regress_feedpub_subscriber;
SELECT count(*) FROM feed_poll('mine', 10);
SELECT feed_ack('mine', (:'receipts'::text[])[3]);
SELECT feed_park('mine', (:'receipts'::text[])[3], 'x');
SELECT feed_poll('mine', timeout => '1 h');
SELECT feed_seek('mine', 'latest');
SELECT name, lag_rows, lag FROM feedpub.subscriptions;
SELECT key IS NULL AND message IS NULL AS hidden FROM feedpub.parked;
SELECT feed_unsubscribe('mine');
RESET ROLE;

--
-- Who may not read the feed, and does not own the subscription, is not told
-- that it is there: the same words as for one that is not.
--
SELECT feed_subscribe('secret "sub"', 'kv', 'earliest') <> '' AS placed;
REVOKE SELECT ON kv FROM regress_feedpub_evil;
CREATE TABLE open (k int PRIMARY KEY);
SELECT feed_attach('open');
GRANT SELECT ON open TO regress_feedpub_evil;
CREATE FUNCTION told(name text, call text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	detail text;
	hint text;
BEGIN
	EXECUTE format('SELECT %s', format(call, name));
	RETURN 'nothing';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN concat_ws(' / ', SQLSTATE, replace(SQLERRM, name, 'NAME'), detail, hint);
END $$;
CREATE TABLE calls (call text);
INSERT INTO calls VALUES ('feed_poll(%L, 1)'), ('feed_poll(%L, 1, ''w'')'), ('feed_poll_rows(%L, NULL::open)'),
	('feed_ack(%L, ''RECEIPT'')'), ('feed_poll(%L, ack => ''RECEIPT'')'), ('feed_poll(%L, timeout => ''1 h'')'),
	('feed_park(%L, ''RECEIPT'')'), ('feed_nack(%L, ''RECEIPT'')'), ('feed_retry(%L)'), ('feed_discard(%L, '''')'),
	('feed_leave(%L, ''w'')'), ('feed_seek(%L, ''latest'')'), ('feed_alter_subscription(%L)'), ('feed_unsubscribe(%L)');
UPDATE calls SET call = replace(call, 'RECEIPT', (:'receipts'::text[])[3]);
GRANT SELECT ON calls TO regress_feedpub_evil;
SET ROLE regress_feedpub_evil;
SELECT replace(call, (:'receipts'::text[])[3], 'RECEIPT') AS call, told('secret "sub"', call) = told('no such sub', call) AS as_if_none FROM calls;
SELECT told('secret "sub"', 'feed_poll(%L, 1)');
-- A name that is taken must be refused; the message says no more than that.
SELECT told('secret "sub"', 'feed_subscribe(%L, ''open'')');
RESET ROLE;
-- Readers of the feed may know.
GRANT SELECT ON kv TO regress_feedpub_evil;
SET ROLE regress_feedpub_evil;
SELECT DISTINCT told('secret "sub"', call) FROM calls;
SELECT told('secret "sub"', 'feed_subscribe(%L, ''open'')');
RESET ROLE;
-- Its owner does, whatever it may read.
SET ROLE regress_feedpub_evil;
SELECT feed_subscribe('own', 'open', 'earliest') <> '' AS placed;
RESET ROLE;
REVOKE SELECT ON open FROM regress_feedpub_evil;
SET ROLE regress_feedpub_evil;
SELECT told('own', 'feed_poll(%L, 1)');
SELECT told('own', 'feed_subscribe(%L, ''kv'')');
RESET ROLE;
SELECT feed_unsubscribe('secret "sub"');
DROP TABLE calls;
DROP FUNCTION told;

--
-- How many shards a role may have: superusers any number
--
SET feedpub.max_subscription_shards = 5;
SELECT feed_subscribe('many', 'kv', shards => 1024) <> '' AS made;
SELECT feed_unsubscribe('many');
SET ROLE regress_feedpub_evil;
SELECT feed_subscribe('e2', 'kv', 'earliest', 4) <> '' AS made;
SELECT feed_subscribe('e3', 'kv', 'earliest', 1);
\echo :SQLSTATE
-- not in one statement either
SELECT feed_unsubscribe('e2');
SELECT feed_subscribe('e' || i, 'kv', 'earliest', 2) FROM generate_series(1, 3) i;
SELECT feed_subscribe('e' || i, 'kv', 'earliest', 2) <> '' AS made FROM generate_series(1, 2) i;
SET feedpub.max_subscription_shards = 100;
RESET ROLE;
-- those of a dropped table do not count
DROP TABLE open;
SET ROLE regress_feedpub_evil;
SELECT feed_subscribe('e5', 'kv', 'earliest', 1) <> '' AS made;
SELECT feed_unsubscribe(name) FROM feedpub.subscriptions;
RESET ROLE;
SET feedpub.max_subscription_shards = 0;
SET ROLE regress_feedpub_evil;
SELECT feed_subscribe('e1', 'kv', 'earliest', 1);
RESET ROLE;
RESET feedpub.max_subscription_shards;

--
-- The owner of a subscription: renamed, dropped, and on another server
--
GRANT SELECT ON kv TO regress_feedpub_subscriber;
SET ROLE regress_feedpub_subscriber;
SELECT feed_subscribe('mine', 'kv') <> '' AS placed;
RESET ROLE;
ALTER ROLE regress_feedpub_subscriber RENAME TO regress_feedpub_renamed;
SET ROLE regress_feedpub_renamed;
SELECT name, owner, (SELECT count(*) FROM feed_poll('mine', 1)) FROM feedpub.subscriptions;
RESET ROLE;
-- Another role of the old name is not the owner.
CREATE ROLE regress_feedpub_subscriber;
GRANT SELECT ON kv TO regress_feedpub_subscriber;
SET ROLE regress_feedpub_subscriber;
SELECT count(*) FROM feedpub.subscriptions;
SELECT feed_poll('mine', 1);
RESET ROLE;
-- As if it had come from another server, where the OID is another role's
UPDATE feedpub._subscription SET system_id = 1, owner = 'regress_feedpub_evil'::regrole;
SELECT owner FROM feedpub.subscriptions;
SET ROLE regress_feedpub_evil;
SELECT feed_poll('mine', 1);
RESET ROLE;
SET ROLE regress_feedpub_subscriber;
SELECT count(*) FROM feed_poll('mine', 1);
RESET ROLE;
DROP OWNED BY regress_feedpub_subscriber;
DROP ROLE regress_feedpub_subscriber;
SELECT count(*) FROM feedpub.subscriptions;
SET ROLE regress_feedpub_evil;
SELECT feed_unsubscribe('mine');
RESET ROLE;
SELECT feed_unsubscribe('mine');

DROP TABLE kv;
SET client_min_messages = warning;
DROP SCHEMA evil CASCADE;
RESET client_min_messages;
DROP OWNED BY regress_feedpub_renamed, regress_feedpub_evil;
DROP ROLE regress_feedpub_renamed, regress_feedpub_evil;
SELECT feed_start_worker() IS NOT NULL AS started;
