// main.go prepared|unprepared [feature]: what works in Go's lib/pq.  See node.mjs.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/lib/pq"
)

var (
	background    = context.Background()
	first, second *sql.Conn
	prepared      = os.Args[1] == "prepared"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(got, wanted interface{}) {
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		panic(fmt.Errorf("%v in place of %v", got, wanted))
	}
}

func state(err error) string {
	var known *pq.Error
	if errors.As(err, &known) {
		return string(known.Code)
	}
	return err.Error()
}

// An error ends a check.
func report(feature string, run func() string) {
	if len(os.Args) > 2 && feature != os.Args[2] {
		return
	}
	defer func() {
		if err := recover(); err != nil {
			fmt.Printf("%s: no: %s\n", feature, state(err.(error)))
		}
	}()
	fmt.Printf("%s: %s\n", feature, run())
}

type querier interface {
	QueryContext(context.Context, string, ...interface{}) (*sql.Rows, error)
}

func read(rows *sql.Rows, err error) [][]interface{} {
	check(err)
	defer rows.Close()
	var all [][]interface{}
	columns, err := rows.Columns()
	check(err)
	for rows.Next() {
		row := make([]interface{}, len(columns))
		targets := make([]interface{}, len(columns))
		for i := range row {
			targets[i] = &row[i]
		}
		check(rows.Scan(targets...))
		all = append(all, row)
	}
	check(rows.Err())
	return all
}

func rows(on querier, query string, values ...interface{}) [][]interface{} {
	return read(on.QueryContext(background, query, values...))
}

func value(on querier, query string, values ...interface{}) interface{} {
	return rows(on, query, values...)[0][0]
}

func text(value interface{}) string {
	return fmt.Sprintf("%s", value)
}

func altered(column, ddl, entry string) string {
	query := "SELECT " + entry + " FROM feed_read(NULL::outbox, $1, $2)"
	var again func() (*sql.Rows, error)
	if prepared {
		statement, err := first.PrepareContext(background, query)
		check(err)
		defer statement.Close()
		again = func() (*sql.Rows, error) { return statement.Query("", 10) }
	} else {
		again = func() (*sql.Rows, error) { return first.QueryContext(background, query, "", 10) }
	}
	for i := 0; i < 6; i++ {
		read(again())
	}
	_, err := second.ExecContext(background, ddl)
	check(err)
	result, err := again()
	check(err)
	columns, err := result.Columns()
	check(err)
	if !strings.Contains(fmt.Sprint(columns)+text(read(result, nil)[0][0]), column) {
		return "no: missing"
	}
	return "works"
}

// Waits in another goroutine, and returns what came of it.
func waiting(then func(cancel func())) string {
	ended := make(chan string, 1)
	cancellable, cancel := context.WithCancel(background)
	defer cancel()
	go func() {
		result, err := first.QueryContext(cancellable,
			"SELECT feed_wait($1::regclass, feed_head($1::regclass), $2::interval)", "outbox", "1 min")
		if err == nil {
			defer result.Close()
			var arrived bool
			for result.Next() {
				err = result.Scan(&arrived)
			}
			if err == nil {
				err = result.Err()
			}
		}
		if err != nil {
			ended <- state(err)
		} else {
			ended <- "arrived"
		}
	}()
	for len(ended) == 0 && value(second, `SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Extension'
		AND query LIKE '%feed_wait%' AND pid <> pg_backend_pid()`) != int64(1) {
	}
	then(cancel)
	return <-ended
}

func main() {
	// host, port and database are in the environment
	settings := "sslmode=disable"
	if !prepared {
		settings += " binary_parameters=yes"
	}
	db, err := sql.Open("postgres", settings)
	check(err)
	first, err = db.Conn(background)
	check(err)
	second, err = db.Conn(background)
	check(err)

	if prepared {
		fmt.Println("setting: `binary_parameters=no`")
	} else {
		fmt.Println("setting: `binary_parameters=yes`, no `Prepare`")
	}
	report("page", func() string {
		cursor, keys := "", ""
		for {
			page := rows(first, "SELECT cursor, (entry).message_key FROM feed_read(NULL::outbox, $1, $2)", cursor, 2)
			if len(page) == 0 {
				break
			}
			for _, row := range page {
				cursor = text(row[0])
				keys += text(row[1])
			}
		}
		expect(keys, "12345")
		page := value(first, "SELECT feed_page($1::regclass, $2, $3)", "outbox", cursor, 2)
		expect(strings.HasPrefix(text(page), `{"entries": []`), true)
		return "works"
	})
	report("uncast", func() string {
		expect(value(first, "SELECT feed_wait($1, $2, $3)", "outbox", "", "0 s"), true)
		expect(len(rows(first, "SELECT * FROM feed_fetch(NULL::outbox, $1, $2, $3)", "0", 0, 2)), 2)
		return "works"
	})
	anew := "ALTER FUNCTION feed_read(anyelement, text, integer, integer, integer, text[]) COST 1000"
	report("add", func() string { return altered("one", "ALTER TABLE outbox ADD COLUMN one int", "(entry).*") })
	report("replan", func() string { return altered("two", "ALTER TABLE outbox ADD COLUMN two int; "+anew, "(entry).*") })
	report("retype", func() string { return altered("two", "ALTER TABLE outbox ALTER COLUMN two TYPE bigint", "(entry).*") })
	report("to_jsonb", func() string { return altered("three", "ALTER TABLE outbox ADD COLUMN three int", "to_jsonb(entry)") })
	report("call", func() string {
		expect(value(first, "CALL feed_await($1::regclass, $2, $3::interval)", "outbox", "", "1 min"), true)
		return "works"
	})
	report("declare", func() string {
		keys := ""
		tx, err := first.BeginTx(background, nil)
		check(err)
		defer tx.Rollback()
		_, err = tx.Exec("DECLARE c CURSOR FOR SELECT message_key FROM feed_fetch(NULL::outbox, '0', 0, 100)")
		check(err)
		for {
			page := rows(tx, "FETCH 2 FROM c")
			if len(page) == 0 {
				break
			}
			for _, row := range page {
				keys += text(row[0])
			}
		}
		expect(keys, "12345")
		return "works"
	})
	row := rows(first, "SELECT feed_xid, feed_pos, scheduled FROM feed_fetch(NULL::outbox, '0', 0, 1)")[0]
	entry := rows(first, "SELECT entry, feed_page('outbox', '', 1) FROM feed_read(NULL::outbox, '', 1)")[0]
	report("xid8", func() string { return fmt.Sprintf("%T", row[0]) })
	report("bigint", func() string { return fmt.Sprintf("%T", row[1]) })
	report("timestamptz", func() string { return fmt.Sprintf("%T", row[2]) })
	report("json", func() string { return fmt.Sprintf("%T", entry[1]) })
	report("entry", func() string { return fmt.Sprintf("%T", entry[0]) })
	report("digits", func() string {
		expect(strings.Contains(text(entry[1]), `"n": 9007199254740993}`), true)
		return "works"
	})
	report("ack", func() string {
		receipt := ""
		for _, commit := range []bool{false, true} {
			tx, err := first.BeginTx(background, nil)
			check(err)
			defer tx.Rollback()
			for _, entry := range rows(tx, "SELECT receipt, key ->> 'message_key' FROM feed_poll($1, $2)", "mail", 2) {
				receipt = text(entry[0])
				_, err = tx.Exec("INSERT INTO effect VALUES ($1)", entry[1])
				check(err)
			}
			expect(value(tx, "SELECT feed_ack($1, $2)", "mail", receipt), true)
			if commit {
				check(tx.Commit())
			} else {
				check(tx.Rollback())
			}
		}
		expect(value(first, "SELECT string_agg(key, ' ' ORDER BY key) FROM effect"), "1 2")
		_, err := first.ExecContext(background, "SELECT feed_ack($1, $2)", "mail", receipt)
		expect(state(err), "PF005")
		return "works"
	})
	report("wait", func() string {
		expect(waiting(func(func()) {
			_, err := second.ExecContext(background, "INSERT INTO outbox (message_type, data) VALUES ('News', '6')")
			check(err)
		}), "arrived")
		return "works"
	})
	report("cancel", func() string {
		expect(waiting(func(cancel func()) { cancel() }), "57014")
		if first.PingContext(background) == nil {
			return "works"
		}
		first, err = db.Conn(background)
		check(err)
		return "works, and closes the connection"
	})
	// A statement that is not prepared is sent in two parts all the same, and
	// the pool can give another session in between: so another one is used.
	report("session", func() string {
		done := make(chan bool)
		go func() {
			defer close(done)
			for i := 0; i < 2000; i++ {
				second.ExecContext(background, "BEGIN; SELECT 1")
				second.ExecContext(background, "COMMIT")
			}
		}()
		for {
			value(first, "SELECT feed_page($1::regclass)", "outbox")
			select {
			case <-done:
				return "works"
			default:
			}
		}
	})
	check(db.Close())
}
