package pg

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// mute is a connection whose writes get lost once it is told so, as behind a firewall that forgot it.
type mute struct {
	net.Conn
	muted *atomic.Bool
}

func (m mute) Write(b []byte) (int, error) {
	if m.muted.Load() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

// It changes a variable of the package, so it does not run in parallel.
func TestAFlushGivesUpASilentConnection(t *testing.T) {
	before := flushPatience.Swap(int64(300 * time.Millisecond))
	defer flushPatience.Store(before)
	s := open(t)
	const worker = "e:default@n-00000000000000aa"
	ids := put(t, s, 2)
	rows := claim(t, s, worker, len(ids))

	// A pool of one connection, which falls silent after the first flush; whatever is dialled later speaks.
	first := new(atomic.Bool)
	var dialled atomic.Int32
	cfg := s.pool.Config()
	cfg.MaxConns = 1
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err == nil && dialled.Add(1) == 1 {
			conn = mute{conn, first}
		}
		return conn, err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	behind := *s
	behind.pool = pool
	c := behind.NewCommitter("c")
	for i, row := range rows {
		out, err := c.Flush(t.Context(), []Outcome{outcome(row, worker, KindDone)})
		if err != nil || out.Verdicts[0].Fate != Committed {
			t.Fatalf("flush %d: %+v, %v", i, out, err)
		}
		first.Store(true)
	}
	if dialled.Load() < 2 {
		t.Error("the silent connection was not given up")
	}
	if n := value[int](t, s, `SELECT count(*) FROM gen_durable WHERE status = 'done'`); n != len(ids) {
		t.Errorf("%d of %d rows are done", n, len(ids))
	}
}
