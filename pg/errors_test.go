package pg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	state := func(code string) error { return fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code}) }
	for err, want := range map[error]ErrorClass{
		state("22P05"): Data, state("22021"): Data, state("22003"): Data, state("54000"): Data, state("54001"): Data,
		state("23502"): Data, state("23514"): Data, state("22P02"): Data,
		state("55P03"): Contention, state("40P01"): Contention, state("40001"): Contention, state("23505"): Contention,
		state("57014"): Contention,
		state("57P01"): Connection, state("57P03"): Connection, state("53300"): Connection, state("08006"): Connection,
		state("25006"): Connection, state("53100"): Connection,
		state("26000"): Plan, &pgconn.PgError{Code: "0A000", Routine: "RevalidateCachedQuery"}: Plan,
		state("0A000"): Other, state("42P01"): Other, state("42501"): Other, state(""): Other,
		io.ErrUnexpectedEOF: Connection, fmt.Errorf("x: %w", io.EOF): Connection,
		context.Canceled: Other, fmt.Errorf("x: %w", context.DeadlineExceeded): Other, errors.New("x"): Other,
	} {
		if got := Classify(err); got != want {
			t.Errorf("%v is %v, expected %v", err, got, want)
		}
	}
	if Classify(nil) != Other {
		t.Error("nil has a class")
	}
	pool, err := pgxpool.New(testContext(t), "postgres://nobody@127.0.0.1:1/none?connect_timeout=30")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pool.Ping(testContext(t)); Classify(err) != Connection {
		t.Errorf("a refused connection: %v is %v", err, Classify(err))
	}
}

// TestBlocked finds the rows that are held, whatever holds them, and waits for none (trap 26). A flush that meets one
// fails with the class Contention after the session's lock_timeout, and changes nothing.
func TestBlocked(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := testContext(t)
	parent, children := spawn(t, s, s.NewCommitter("blocked"), 3)
	rows := claim(t, s, alice, 3)
	all := append([]int64{parent, 1 << 40}, children...)
	if got, err := s.Blocked(ctx, all); err != nil || len(got) != 0 {
		t.Errorf("blocked are %v, %v", got, err)
	}
	letGo := held(t, s, parent, children[1])
	got, err := s.Blocked(ctx, all)
	slices.Sort(got)
	if err != nil || !slices.Equal(got, []int64{parent, children[1]}) {
		t.Errorf("blocked are %v, %v", got, err)
	}
	c := s.NewCommitter("blocked")
	for _, row := range rows[:2] { // the first meets its parent, the second itself
		if _, err := c.Flush(ctx, []Outcome{outcome(row, alice, KindDone)}); Classify(err) != Contention {
			t.Errorf("the flush returned %v", err)
		}
	}
	wantStatus(t, s, Executing, children...)
	letGo()
	for _, row := range rows {
		commitAll(t, c, outcome(row, alice, KindDone))
	}
	wantStatus(t, s, Runnable, parent)
}
