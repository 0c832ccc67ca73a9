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

func subscriber(db *sql.DB, group string, shards int) *feedpub.Subscriber {
	return &feedpub.Subscriber{DB: db, Group: group, Shards: shards, PayloadType: "bytea", Logger: watermill.NopLogger{}}
}

// What watermill expects of every Pub/Sub.
func suite(t *testing.T, group string, shards int, features tests.Features) {
	if restart := os.Getenv("RESTART"); restart != "" { // a program that restarts the server
		features.RestartServiceCommand = []string{restart}
	}
	db := open(t)
	constructor := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		return feedpub.Publisher{DB: db, PayloadType: "bytea"}, subscriber(db, group, shards)
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
	s := subscriber(db, "transactions", 1)
	s.PayloadType = "jsonb"
	topic := `Odd "topic", ` + watermill.NewUUID()
	if err := s.SubscribeInitialize(topic); err != nil {
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
