package feedpub

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/lib/pq"
)

// SubscribeInitialize makes the outbox if it is not there.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	_, err := s.DB.Exec(`SELECT feed_create($1, $2::text::regtype, true)`, pq.QuoteIdentifier(topic), s.PayloadType)
	return err
}

// feed is what a subscriber asks of the database.
type feed struct {
	*Subscriber
	table, name, consumer string
	cursor                string // without a group
}

type entry struct {
	Receipt, ID string
	Body        []byte
	Metadata    map[string]string // nil: there is no message
	Problem     string            // why, in a subscription
}

func (f *feed) subscribe(ctx context.Context) error {
	if f.Group == "" {
		return nil
	}
	_, err := f.DB.ExecContext(ctx, `SELECT feed_subscribe($1, $2::text::regclass, 'earliest', shards => $3,
		if_not_exists => true)`, f.name, f.table, max(f.Shards, 1))
	return err
}

// page waits for entries, for at most five seconds.
func (f *feed) page(ctx context.Context) (entries []entry, err error) {
	from, args := `feed_poll($1, 100, $2, '5 s')`, []any{f.name, f.consumer}
	if f.Group == "" {
		if _, err := f.DB.ExecContext(ctx, `SELECT feed_wait($1::text::regclass, $2, '5 s')`, f.table, f.cursor); err != nil {
			return nil, err
		}
		from, args = `(SELECT cursor, to_json(entry), NULL FROM feed_read(NULL::`+f.table+`, $1)) f(receipt, "row", error)`, []any{f.cursor}
	}
	body := `convert_to("row" ->> 'data', 'UTF8')`
	if f.PayloadType == "bytea" {
		body = `("row" ->> 'data')::bytea`
	}
	var page []byte
	err = f.DB.QueryRowContext(ctx, `
		SELECT coalesce(json_agg(json_build_object('receipt', receipt, 'problem', error,
			'id', "row" -> 'message_id', 'body', encode(`+body+`, 'base64'), 'metadata', (
				SELECT json_object_agg(k, v) FROM (
					SELECT key, value FROM json_each_text(CASE json_typeof("row" -> 'headers') WHEN 'object' THEN "row" -> 'headers' END)
					UNION ALL VALUES ('name', "row" ->> 'message_type'), ('key', "row" ->> 'message_key')) m(k, v)
				WHERE v IS NOT NULL))), '[]')
		FROM `+from, args...).Scan(&page)
	if err == nil {
		err = json.Unmarshal(page, &entries)
	}
	return entries, err
}

// ack commits what the handler did with the acknowledgement, or neither.
func (f *feed) ack(ctx context.Context, tx *sql.Tx, e *entry) error {
	if f.Group != "" {
		if _, err := tx.ExecContext(ctx, `SELECT feed_ack($1, $2)`, f.name, e.Receipt); err != nil {
			return err
		}
	}
	err := tx.Commit()
	if err == nil {
		f.cursor = e.Receipt
	}
	return err
}

var errNacked = errors.New("not acknowledged")

// nack parks the entry: it comes again after RetryAfter, and others go on.
// Without a group it comes again before all others.
func (f *feed) nack(ctx context.Context, e *entry, reason string) error {
	if f.Group == "" {
		return errNacked
	}
	_, err := f.DB.ExecContext(ctx, `SELECT feed_nack($1, $2, make_interval(secs => $3), $4), feed_ack($1, $2)`,
		f.name, e.Receipt, f.RetryAfter.Seconds(), reason)
	return err
}

// leave lets others have the shards at once.
func (f *feed) leave() {
	if f.Group != "" {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, _ = f.DB.ExecContext(ctx, `SELECT feed_leave($1, $2)`, f.name, f.consumer)
	}
}
