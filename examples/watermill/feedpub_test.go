package feedpub_test

import (
	"context"
	"database/sql"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/lib/pq"

	feedpub "feedpub.example/watermill"
)

// The database is that of PGHOST, PGDATABASE and so on.
func open(t *testing.T) *sql.DB {
	db, err := sql.Open("postgres", "sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func create(db *sql.DB, topic, payloadType string) error {
	_, err := db.Exec(`SELECT feed_create($1, $2::text::regtype, true)`, pq.QuoteIdentifier(topic), payloadType)
	return err
}

// The suite has a subscriber make the topics, where it can.
type subscriber struct{ feedpub.Subscriber }

func (s *subscriber) SubscribeInitialize(topic string) error { return create(s.DB, topic, "bytea") }

func newSubscriber(db *sql.DB, group string, shards int) *subscriber {
	return &subscriber{feedpub.Subscriber{DB: db, Group: group, Shards: shards, Logger: watermill.NopLogger{}}}
}

// What watermill expects of every Pub/Sub.
func suite(t *testing.T, group string, shards int, features tests.Features) {
	if restart := os.Getenv("RESTART"); restart != "" { // a program that restarts the server
		features.RestartServiceCommand = []string{restart}
	}
	db := open(t)
	constructor := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		return feedpub.Publisher{DB: db, PayloadType: "bytea"}, newSubscriber(db, group, shards)
	}
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		return constructor(t, group)
	}, constructor)
}

func TestGroup(t *testing.T) {
	suite(t, "group", 1, tests.Features{ConsumerGroups: true, GuaranteedOrder: true, Persistent: true})
}

// With shards, order is that of each key.
func TestShards(t *testing.T) {
	suite(t, "shards", 8, tests.Features{ConsumerGroups: true, Persistent: true})
}

// Without a group: each subscriber has all messages.
func TestNoGroup(t *testing.T) {
	suite(t, "", 1, tests.Features{GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
		Persistent: true, NewSubscriberReceivesOldMessages: true})
}

// A publisher in a transaction; a handler in that of the acknowledgement, which
// fails at first; metadata; a payload type.
func TestTransactions(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db := open(t)
	s := newSubscriber(db, "transactions", 1)
	topic := `Odd "topic", ` + watermill.NewUUID()
	if err := create(db, topic, "jsonb"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`CREATE TABLE IF NOT EXISTS effect (topic text, body jsonb)`); err != nil {
		t.Fatal(err)
	}
	for _, commit := range []bool{false, true} {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		m := message.NewMessage(watermill.NewUUID(), []byte(`{"committed": true}`))
		m.Metadata = message.Metadata{"name": "OrderPlaced", "key": "order 1", "trace": "t"}
		if err := (feedpub.Publisher{DB: tx, PayloadType: "jsonb"}).Publish(topic, m); err != nil {
			t.Fatal(err)
		}
		if commit {
			err = tx.Commit()
		} else {
			err = tx.Rollback()
		}
		if err != nil {
			t.Fatal(err)
		}
	}

	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	var attempts atomic.Int32
	var got message.Metadata
	router.AddNoPublisherHandler("effects", topic, s, func(m *message.Message) error {
		if _, err := feedpub.Tx(m).Exec(`INSERT INTO effect VALUES ($1, $2)`, topic, string(m.Payload)); err != nil {
			return err
		}
		if attempts.Add(1) == 1 {
			return context.DeadlineExceeded // any error
		}
		got = m.Metadata
		return nil
	})
	done := make(chan error)
	go func() { done <- router.Run(ctx) }()
	for n := 0; n == 0; {
		if err := db.QueryRowContext(ctx, `SELECT count(*) FROM effect WHERE topic = $1`, topic).Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	if err := router.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var n, parked int
	if err := db.QueryRow(`SELECT (SELECT count(*) FROM effect WHERE topic = $1 AND body = '{"committed": true}'),
		(SELECT count(*) FROM feedpub.parked WHERE subscription = $2)`, topic, "transactions/"+topic).Scan(&n, &parked); err != nil {
		t.Fatal(err)
	}
	if n != 1 || parked != 0 || attempts.Load() != 2 {
		t.Errorf("%d effects, %d parked, %d attempts", n, parked, attempts.Load())
	}
	if got["name"] != "OrderPlaced" || got["key"] != "order 1" || got["trace"] != "t" || len(got) != 3 {
		t.Error(got)
	}
}

// Each payload type, with a group and without; a message without metadata.
func TestPayloads(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	db := open(t)
	for payloadType, payloads := range map[string][]string{
		"bytea": {"", "\x00\\x61\xff"},
		"text":  {"", "\\x61 \"ü\"\n"},
		"json":  {`"a\\b"`, `{"a":  1}`, "null"},
		"jsonb": {`"a\\b"`, `{"a": 1}`, "null"},
	} {
		topic := payloadType + " " + watermill.NewUUID()
		if err := create(db, topic, payloadType); err != nil {
			t.Fatal(err)
		}
		var messages []*message.Message
		for _, payload := range payloads {
			messages = append(messages, &message.Message{UUID: watermill.NewUUID(), Payload: []byte(payload)})
		}
		if err := (feedpub.Publisher{DB: db, PayloadType: payloadType}).Publish(topic, messages...); err != nil {
			t.Fatal(err)
		}
		for _, group := range []string{"", "payloads"} {
			s := newSubscriber(db, group, 1)
			out, err := s.Subscribe(ctx, topic)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range messages {
				got, ok := <-out
				if !ok {
					t.Fatal(ctx.Err())
				}
				if got.UUID != want.UUID || string(got.Payload) != string(want.Payload) || len(got.Metadata) != 1 {
					t.Errorf("%s, group %q: %v in place of %v", payloadType, group, got, want)
				}
				got.Ack()
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}
