package feedpub

import (
	"context"
	"database/sql"
	"errors"
	"regexp"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/lib/pq"
)

// Subscriber delivers messages, each after the one before it was acknowledged.
// Those of a group share the subscription "group/topic", which the database
// keeps.  Without a group each delivers all that is there, in order, and keeps
// its cursor in memory.
type Subscriber struct {
	DB          *sql.DB
	Group       string
	Shards      int           // so many of a group work at once, each on its keys
	PayloadType string        // as of Publisher
	RetryAfter  time.Duration // a message that failed comes again after it
	Logger      watermill.LoggerAdapter

	mutex   sync.Mutex
	stops   []context.CancelFunc
	running sync.WaitGroup
}

func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	f := &feed{Subscriber: s, table: pq.QuoteIdentifier(topic), name: s.Group + "/" + topic, consumer: watermill.NewUUID()}
	if err := f.subscribe(ctx); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	out := make(chan *message.Message)
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.stops = append(s.stops, stop)
	s.running.Add(1)
	go func() {
		defer s.running.Done()
		defer close(out)
		defer f.leave()
		f.run(ctx, out)
	}()
	return out, nil
}

// Close ends what was subscribed so far.
func (s *Subscriber) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	for _, stop := range s.stops {
		stop()
	}
	s.running.Wait()
	return nil
}

// Only a person can help: another history, an expired cursor, a name or a right
// that is missing.
var hopeless = regexp.MustCompile(`^(PF001|PF002|42...|28...|3D...)$`)

func (f *feed) run(ctx context.Context, out chan<- *message.Message) {
	for ctx.Err() == nil {
		page, err := f.page(ctx)
		for i := 0; i < len(page) && err == nil; i++ {
			err = f.deliver(ctx, out, &page[i])
		}
		if err == nil || ctx.Err() != nil {
			continue
		}
		pause := f.RetryAfter
		if err != errNacked {
			pause = max(pause, 100*time.Millisecond)
			f.Logger.Error("feedpub", err, watermill.LogFields{"topic": f.table})
		}
		var e *pq.Error
		if errors.As(err, &e) && hopeless.MatchString(string(e.Code)) {
			return
		}
		select { // then what was not acknowledged comes again
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

type txKey struct{}

// Tx is the transaction of the acknowledgement: what a handler does in it takes
// effect once.
func Tx(m *message.Message) *sql.Tx { return m.Context().Value(txKey{}).(*sql.Tx) }

func (f *feed) deliver(ctx context.Context, out chan<- *message.Message, e *entry) error {
	settle := context.WithoutCancel(ctx) // what was acknowledged is, also when closing
	if e.Metadata == nil && f.Group != "" {
		return f.nack(settle, e, e.Problem)
	} else if e.Metadata == nil { // says only how far the page got
		f.cursor = e.Receipt
		return nil
	}
	tx, err := f.DB.BeginTx(settle, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after a commit
	m := message.NewMessage(e.ID, e.Body)
	m.Metadata = e.Metadata
	mctx, done := context.WithCancel(context.WithValue(ctx, txKey{}, tx))
	defer done()
	m.SetContext(mctx)

	select {
	case out <- m:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-m.Acked():
	case <-m.Nacked():
		if err := tx.Rollback(); err != nil {
			return err
		}
		return f.nack(settle, e, errNacked.Error())
	case <-ctx.Done():
		select {
		case <-m.Acked():
		default:
			return ctx.Err()
		}
	}
	return f.ack(settle, tx, e)
}
