-- The tables of the variants.  All carry the same payload:
-- publication_id, message_id, message_type, message_key, data, scheduled.

-- about 300 bytes of JSON
CREATE FUNCTION message(n bigint) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
RETURN '{"order": ' || n || ', "customer": {"id": 48151623, "name": "Corner Shop Ltd", '
	|| '"country": "PT"}, "lines": [{"sku": "LAMP-0042", "quantity": 2, "price": 34.90}, '
	|| '{"sku": "BULB-0815", "quantity": 6, "price": 3.45}], "currency": "EUR", '
	|| '"total": 90.50, "channel": "web", "placed": "2024-02-29T12:34:56.789Z", '
	|| '"delivery": "parcel locker"}';

-- What the messages are about.
CREATE TABLE orders (
	id bigserial PRIMARY KEY,
	customer int NOT NULL,
	total numeric(12, 2) NOT NULL,
	placed timestamptz NOT NULL DEFAULT now()
);

-- The plain table, which everything is compared with.
CREATE TABLE plain (
	position bigserial PRIMARY KEY,
	publication_id text NOT NULL DEFAULT '',
	message_id text NOT NULL,
	message_type text NOT NULL,
	message_key text,
	data jsonb NOT NULL,
	scheduled timestamptz NOT NULL DEFAULT now()
);

-- The same, with a message_id made by the server.
CREATE TABLE plain_id (
	position bigserial PRIMARY KEY,
	publication_id text NOT NULL DEFAULT '',
	message_id text NOT NULL DEFAULT gen_random_uuid()::text,
	message_type text NOT NULL,
	message_key text,
	data jsonb NOT NULL,
	scheduled timestamptz NOT NULL DEFAULT now()
);

-- The article's outbox, with the index that its last query asks for.
CREATE TABLE article (
	position bigserial PRIMARY KEY,
	transaction_id xid8 NOT NULL DEFAULT pg_current_xact_id(),
	publication_id text NOT NULL DEFAULT '',
	message_id text NOT NULL,
	message_type text NOT NULL,
	message_key text,
	data jsonb NOT NULL,
	scheduled timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON article (transaction_id, position);

-- The same, stamped by a trigger.
CREATE TABLE trigger (
	position bigserial PRIMARY KEY,
	transaction_id xid8 NOT NULL,
	publication_id text NOT NULL DEFAULT '',
	message_id text NOT NULL,
	message_type text NOT NULL,
	message_key text,
	data jsonb NOT NULL,
	scheduled timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON trigger (transaction_id, position);
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.transaction_id := pg_current_xact_id();
	RETURN NEW;
END
$$;
CREATE TRIGGER stamp BEFORE INSERT ON trigger
	FOR EACH ROW EXECUTE FUNCTION stamp();

-- Positions from a row that each writer locks until it commits.
CREATE TABLE last_position (value bigint NOT NULL);
INSERT INTO last_position VALUES (0);
CREATE FUNCTION next_position() RETURNS bigint LANGUAGE sql
	AS 'UPDATE last_position SET value = value + 1 RETURNING value';
CREATE TABLE counter (
	position bigint PRIMARY KEY DEFAULT next_position(),
	publication_id text NOT NULL DEFAULT '',
	message_id text NOT NULL,
	message_type text NOT NULL,
	message_key text,
	data jsonb NOT NULL,
	scheduled timestamptz NOT NULL DEFAULT now()
);

-- The plain table, whose writers notify.
CREATE TABLE notify (LIKE plain INCLUDING ALL);
CREATE SEQUENCE notify_position_seq OWNED BY notify.position;
ALTER TABLE notify ALTER position SET DEFAULT nextval('notify_position_seq');

CREATE EXTENSION feedpub;
SELECT feed_create('feedpub');
