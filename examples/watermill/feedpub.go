// Package feedpub connects watermill to feedpub.  A topic is an outbox; metadata
// "name" and "key" are its message_type and message_key, all else is in headers.
package feedpub

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
)

// Publisher publishes the messages of a call together, in their order.
type Publisher struct {
	DB interface { // *sql.DB, *sql.Conn, or *sql.Tx, whose commit publishes
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}
	PayloadType string // that of the outboxes: bytea, text, json or jsonb
}

func (p Publisher) Publish(topic string, messages ...*message.Message) error {
	batch, err := json.Marshal(messages)
	if err != nil || len(messages) == 0 {
		return err
	}
	data := `decode(coalesce(payload, ''), 'base64')`
	if p.PayloadType != "bytea" {
		data = `convert_from(` + data + `, 'UTF8')::` + p.PayloadType
	}
	_, err = p.DB.ExecContext(messages[0].Context(), `
		INSERT INTO `+pq.QuoteIdentifier(topic)+` (message_id, message_type, message_key, headers, data)
		SELECT id, coalesce(h ->> 'name', $1), h ->> 'key', h - '{name,key}'::text[], `+data+`
		FROM ROWS FROM (json_to_recordset($2) AS ("UUID" text, "Metadata" jsonb, "Payload" text))
			WITH ORDINALITY AS m(id, h, payload, n) ORDER BY n`, topic, string(batch))
	return err
}

func (p Publisher) Close() error { return nil }

// Subscriber delivers each message after the one before it was acknowledged: to
// a group by the subscription "group/topic", else by a cursor in memory.
type Subscriber struct {
	DB         *sql.DB
	Group      string
	Shards     int           // so many of a group work at once, each on its keys
	RetryAfter time.Duration // then a group gets a message again that has failed
	Logger     watermill.LoggerAdapter
	stops      sync.Map // by the channels that Subscribe has returned
}

func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	name, table := s.Group+"/"+topic, pq.QuoteIdentifier(topic)
	_, err := s.DB.ExecContext(ctx, `SELECT feed_subscribe($1, $2::text::regclass, 'earliest', shards => $3,
		if_not_exists => true) WHERE $4`, name, table, max(s.Shards, 1), s.Group != "")
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	out := make(chan *message.Message, 1)
	s.stops.Store(out, stop)
	go s.run(ctx, name, table, out)
	return out, nil
}

func (s *Subscriber) Close() error {
	for out, stop := range s.stops.Range {
		stop.(context.CancelFunc)()
		for range out.(chan *message.Message) { // until it is closed
		}
	}
	return nil
}

type page []struct {
	message.Message // without Metadata there is none
	Receipt         string
}

func (p *page) Scan(column any) error { return json.Unmarshal(column.([]byte), p) }

func (s *Subscriber) run(ctx context.Context, name, table string, out chan *message.Message) {
	defer close(out)
	consumer, cursor := watermill.NewUUID(), ""
	from := `feed_poll_rows($1, NULL::` + table + `, 100, $2, '5 s') f(receipt, cursor, op, m)`
	args := []any{name, consumer}
	if s.Group == "" { // what ends the wait is read in the next turn
		from = `feed_wait($1::text::regclass, $2, '5 s'), feed_read(NULL::` + table + `, $2) f(receipt, op, m)`
		args = []any{table, &cursor}
	}
	for ctx.Err() == nil {
		var entries page
		err := s.DB.QueryRowContext(ctx, `SELECT coalesce(json_agg(e), '[]') FROM (
			SELECT receipt, (m).message_id AS uuid, encode(CASE pg_typeof((m).data) WHEN 'bytea'::regtype
				THEN (m).data::text::bytea ELSE convert_to((m).data::text, 'UTF8') END, 'base64') AS payload, (
				SELECT json_object_agg(key, value) FILTER (WHERE value IS NOT NULL) FROM jsonb_each_text(
					CASE jsonb_typeof((m).headers) WHEN 'object' THEN (m).headers ELSE '{}' END ||
					jsonb_build_object('name', (m).message_type, 'key', (m).message_key))) AS metadata
			FROM `+from+`) e`, args...).Scan(&entries)
		for i := 0; i < len(entries) && err == nil; i++ {
			if err = s.deliver(ctx, name, entries[i].Receipt, entries[i].Copy(), out); err == nil {
				cursor = entries[i].Receipt
			}
		}
		if err != nil && ctx.Err() == nil {
			s.Logger.Error("feedpub", err, watermill.LogFields{"topic": table})
			time.Sleep(100 * time.Millisecond)
		}
	}
	_, _ = s.DB.Exec(`SELECT feed_leave($1, $2) WHERE $3`, name, consumer, s.Group != "")
}

type txKey struct{}

// Tx is the transaction of the acknowledgement, for effects that happen once.
func Tx(m *message.Message) *sql.Tx { return m.Context().Value(txKey{}).(*sql.Tx) }

func (s *Subscriber) deliver(ctx context.Context, name, receipt string, m *message.Message, out chan *message.Message) error {
	if len(m.Metadata) == 0 { // it only says how far the page got
		return nil
	}
	tx, err := s.DB.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after a commit
	ctx, done := context.WithCancel(context.WithValue(ctx, txKey{}, tx))
	defer done()
	m.SetContext(ctx)
	out <- m // there is room, since the one before it was taken
	select {
	case <-m.Acked():
		_, err := tx.Exec(`SELECT feed_ack($1, $2) WHERE $3`, name, receipt, s.Group != "")
		return errors.Join(err, tx.Commit()) // after an error, this rolls back
	case <-m.Nacked():
		if s.Group == "" {
			return errors.New("not acknowledged")
		}
		_ = tx.Rollback()
		_, err := s.DB.Exec(`SELECT feed_nack($1, $2, delay => $3), feed_ack($1, $2)`, name, receipt, s.RetryAfter.String())
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
