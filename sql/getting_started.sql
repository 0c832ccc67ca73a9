-- The README's first minute.
CREATE EXTENSION feedpub;
SELECT feed_create('outbox');
INSERT INTO outbox (message_type, data) VALUES ('OrderPlaced', '{"order": 1}');
SELECT message_type, data FROM feed_fetch('0', 0, 100);
SELECT feed_drop('outbox');
