-- inbox.sql: what a consumer keeps in its own database, which knows nothing of
-- feedpub.

-- How far it has read in which feed.
CREATE TABLE inbox_cursor (
	feed text PRIMARY KEY,
	cursor text NOT NULL DEFAULT ''
);

-- What has taken effect.  Rows may go when nobody can send the message again.
CREATE TABLE inbox (
	message_id text PRIMARY KEY,
	received_at timestamptz NOT NULL DEFAULT now()
);

-- The effect of the example: money that has been paid in.
CREATE TABLE account (
	owner text PRIMARY KEY,
	balance bigint NOT NULL
);
