-- Procedures of retention.pl, beside the tables of schema.sql.

-- n messages, so many of them in a transaction, published after so many.
CREATE PROCEDURE load(feed text, n int, many int, batch int) LANGUAGE plpgsql AS $$
BEGIN
	FOR start IN 1 .. n BY many LOOP
		EXECUTE format('INSERT INTO %I (publication_id, message_id, message_type, message_key, data)
			SELECT ''orders'', i, ''OrderPlaced'', ''customer-'' || i, message(100000000000 + i)::jsonb
			FROM generate_series($1, $2) i', feed) USING start, start + many - 1;
		COMMIT;
		IF (start + many - 1) % batch = 0 THEN
			CALL feed_publish(feed::regclass);
		END IF;
	END LOOP;
END
$$;

-- A consumer, for two seconds, or until it is stopped.
CREATE TABLE stopped (name text);
CREATE PROCEDURE consume(name text) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + '2 s';
	entry record;
	last text;
	n int;
BEGIN
	WHILE clock_timestamp() < until AND NOT EXISTS (SELECT FROM stopped s WHERE s.name = consume.name) LOOP
		n := 0;
		FOR entry IN SELECT receipt FROM feed_poll(consume.name, 1000, ack => last) LOOP
			last := entry.receipt;
			n := n + 1;
		END LOOP;
		last := CASE WHEN n > 0 THEN last END;
		COMMIT;
		IF n < 1000 THEN
			PERFORM pg_sleep(0.1);
		END IF;
	END LOOP;
END
$$;

-- The same of PgQ.
CREATE PROCEDURE consume_queue(name text) LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + '2 s';
	batch bigint;
BEGIN
	WHILE clock_timestamp() < until AND NOT EXISTS (SELECT FROM stopped s WHERE s.name = consume_queue.name) LOOP
		batch := pgq.next_batch('bench', name);
		IF batch IS NULL THEN
			PERFORM pg_sleep(0.1);
		ELSE
			PERFORM count(*) FROM pgq.get_batch_events(batch);
			PERFORM pgq.finish_batch(batch);
		END IF;
		COMMIT;
	END LOOP;
END
$$;

-- What pgqd does; autovacuum vacuums PgQ's tables.
CREATE PROCEDURE tick() LANGUAGE plpgsql AS $$
DECLARE
	until timestamptz := clock_timestamp() + '2 s';
	operation record;
BEGIN
	FOR operation IN SELECT * FROM pgq.maint_operations() WHERE func_name !~ 'vacuum' LOOP
		EXECUTE format('SELECT %s(%s)', operation.func_name, quote_literal(operation.func_arg));
		COMMIT;
	END LOOP;
	WHILE clock_timestamp() < until AND NOT EXISTS (SELECT FROM stopped WHERE name = 'ticker') LOOP
		PERFORM pgq.ticker();
		COMMIT;
		PERFORM pg_sleep(0.1);
	END LOOP;
END
$$;

-- One consumer acknowledges everything.
CREATE PROCEDURE consume_all() LANGUAGE plpgsql AS $$
DECLARE
	entry record;
	last text;
BEGIN
	LOOP
		last := NULL;
		FOR entry IN SELECT receipt FROM feed_poll('consumer', 1000) LOOP
			last := entry.receipt;
		END LOOP;
		EXIT WHEN last IS NULL;
		PERFORM feed_ack('consumer', last);
		COMMIT;
	END LOOP;
END
$$;

-- Two batches, and the floor moves; at the sixtieth time old batches are merged.
CREATE SEQUENCE moves;
CREATE PROCEDURE move(consumer_is_there bool) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 2 LOOP
		INSERT INTO feedpub (message_type, data) VALUES ('', '{}');
		COMMIT;
		CALL feed_publish('feedpub');
	END LOOP;
	IF consumer_is_there THEN
		CALL consume_all();
	END IF;
	PERFORM feedpub._move_floor('feedpub');
	COMMIT;
	IF nextval('moves') % 60 = 0 THEN
		PERFORM feedpub._merge_batches('feedpub');
	END IF;
END
$$;
