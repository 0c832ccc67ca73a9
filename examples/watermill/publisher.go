// Package feedpub connects watermill to feedpub: a topic is an outbox.  The
// metadata "name" and "key" of a message are its message_type and message_key,
// all else is in its headers.
package feedpub

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
)

// Publisher inserts into outboxes.  If DB is a transaction, its commit
// publishes.  The messages of one call are published together, in their order.
type Publisher struct {
	DB interface { // *sql.DB, *sql.Conn or *sql.Tx
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}
	PayloadType string // that of the outboxes: bytea, text, json or jsonb
}

func (p Publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	var ids, headers []string
	var bodies [][]byte
	for _, m := range messages {
		header, err := json.Marshal(m.Metadata)
		if err != nil {
			return err
		}
		ids, headers, bodies = append(ids, m.UUID), append(headers, string(header)), append(bodies, m.Payload)
	}
	body := "coalesce(body, '')"
	if p.PayloadType != "bytea" {
		body = "convert_from(" + body + ", 'UTF8')::" + p.PayloadType
	}
	_, err := p.DB.ExecContext(messages[0].Context(), `
		INSERT INTO `+pq.QuoteIdentifier(topic)+` (message_id, message_type, message_key, headers, data)
		SELECT id, coalesce(h ->> 'name', $1), h ->> 'key', h - '{name,key}'::text[], `+body+`
		FROM unnest($2::text[], $3::jsonb[], $4::bytea[]) WITH ORDINALITY AS m(id, h, body, n) ORDER BY n`,
		topic, pq.Array(ids), pq.Array(headers), pq.Array(bodies))
	return err
}

func (p Publisher) Close() error { return nil }
