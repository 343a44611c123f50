package pg

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// maxChannel is the longest name of a channel: that of any identifier.
	maxChannel = 63
	// maxNotice is the longest payload of a notification.
	maxNotice = 7999

	channelPrefix, channelSuffix = "gen_durable:", ":poke"

	// MaxNoticeName is how many bytes the name of an engine may have that announces by NOTIFY: its channel's name holds it.
	MaxNoticeName = maxChannel - len(channelPrefix) - len(channelSuffix)

	// listenPatience bounds each exchange with the server on a listener's connection.
	listenPatience = 10 * time.Second
	listenCheck    = 30 * time.Second
)

// Notices carries announcements of runnable work between the processes of one engine name on one database, by NOTIFY and
// LISTEN. Channel and payload are the original engine's: gen_durable:<engine>:poke, <token of the sender>|<queue>. An
// announcement is a hint: one that is lost, or sent while nobody listens, is not repeated. Safe for concurrent use.
type Notices struct {
	store   *Store
	channel string
	// operators is the channel of what operators do, see Notice.
	operators string
	token     string
	dial      func(ctx context.Context) (*pgx.Conn, error)
	// checkEvery is how long a listener hears nothing before it asks whether it still would.
	checkEvery time.Duration

	mu        sync.Mutex
	listening int
	quiet     chan struct{} // closed when listening is zero; nil when nobody waits for that
}

// Notices returns the announcements of this store's engine. token tells this process's own from those of others; it
// contains no '|'. The engine's name has at most MaxNoticeName bytes.
//
// Listen connects as the host's pool would, or to url when that is not empty: for a host whose pool goes through a proxy
// that hands each transaction another session.
func (s *Store) Notices(token string, host *pgxpool.Pool, url string) (*Notices, error) {
	if token == "" || strings.Contains(token, "|") {
		return nil, fmt.Errorf("pg: the token %q of a sender of announcements is empty or contains '|'", token)
	}
	if len(s.engine) > MaxNoticeName {
		return nil, fmt.Errorf("pg: the engine name %q is longer than the %d bytes that the name of a channel has room for", s.engine, MaxNoticeName)
	}
	dial, err := listenerDial(host, url)
	if err != nil {
		return nil, err
	}
	return &Notices{
		store: s, channel: channelPrefix + s.engine + channelSuffix, operators: channelPrefix + s.engine + operatorsSuffix,
		token: token, dial: dial, checkEvery: listenCheck,
	}, nil
}

// listenerDial makes what opens a listener's connection.
func listenerDial(host *pgxpool.Pool, url string) (func(context.Context) (*pgx.Conn, error), error) {
	cfg := host.Config()
	conn, before := cfg.ConnConfig, cfg.BeforeConnect
	if url != "" {
		var err error
		if conn, err = pgx.ParseConfig(url); err != nil {
			return nil, fmt.Errorf("pg: the address for LISTEN: %w", err)
		}
		before = nil
	}
	if conn.RuntimeParams == nil {
		conn.RuntimeParams = map[string]string{}
	}
	conn.RuntimeParams["application_name"] = "gendurable listener"
	return func(ctx context.Context) (*pgx.Conn, error) {
		cfg := conn.Copy()
		if before != nil { // the password of the day, perhaps
			if err := before(ctx, cfg); err != nil {
				return nil, err
			}
		}
		return pgx.ConnectConfig(ctx, cfg)
	}, nil
}

// Send announces that the queues have runnable work. One statement, one round trip. A queue whose name is too long for a
// notification is left to the poll.
func (n *Notices) Send(ctx context.Context, queues []string) error {
	payloads := make([]string, 0, len(queues))
	for _, q := range queues {
		if payload := n.token + "|" + q; len(payload) <= maxNotice {
			payloads = append(payloads, payload)
		}
	}
	if len(payloads) == 0 {
		return nil
	}
	err := onFreshPlan(ctx, n.store.pool, func(db DB) error {
		_, err := db.Exec(ctx, n.store.sql("notify"), n.channel, payloads)
		return err
	})
	if err != nil {
		return fmt.Errorf("pg: announce work in %d queues: %w", len(payloads), err)
	}
	return nil
}

// Ear is what a listener tells. Its functions are called one at a time, from the goroutine of Listen.
type Ear struct {
	// Ready is called once, when announcements sent from now on are heard. proxied says that something between here and
	// the server answers for it: then nobody can be sure that they are.
	Ready func(proxied bool)
	// Heard is called for each announcement of another process.
	Heard func(queue string)
	// Told is called for each notice of another process. May be nil.
	Told func(Notice)
	// Refused is called for a notification that is neither.
	Refused func()
}

// ErrDeaf says that the listener's session does not listen any more: something between here and the server hands
// statements to different sessions.
var ErrDeaf = errors.New("pg: the session of LISTEN was taken away; give LISTEN a direct connection to the server")

// Listen hears announcements on a connection of its own until ctx ends or the connection is lost, and says why. What was
// announced before the Ear was told that it is ready is missed.
func (n *Notices) Listen(ctx context.Context, ear Ear) error {
	n.count(1)
	defer n.count(-1)
	conn, proxied, err := n.open(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	ear.Ready(proxied)
	for {
		wait, cancel := context.WithTimeout(ctx, n.checkEvery)
		note, err := conn.WaitForNotification(wait)
		cancel()
		switch {
		case err == nil && note.Channel == n.operators:
			n.hearOperator(note.Payload, ear)
		case err == nil:
			n.hear(note.Payload, ear)
		case ctx.Err() != nil:
			return ctx.Err()
		case conn.IsClosed() || !errors.Is(err, context.DeadlineExceeded):
			return fmt.Errorf("pg: listen: %w", err)
		default:
			if _, err := n.check(ctx, conn); err != nil {
				return err
			}
		}
	}
}

// open connects and begins to listen.
func (n *Notices) open(ctx context.Context) (conn *pgx.Conn, proxied bool, err error) {
	dialling, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	if conn, err = n.dial(dialling); err != nil {
		return nil, false, fmt.Errorf("pg: connect to listen: %w", err)
	}
	both := "LISTEN " + pgx.Identifier{n.operators}.Sanitize() + "; LISTEN " + pgx.Identifier{n.channel}.Sanitize()
	if _, err = conn.Exec(dialling, both, pgx.QueryExecModeSimpleProtocol); err != nil {
		err = fmt.Errorf("pg: listen: %w", err)
	} else {
		proxied, err = n.check(ctx, conn)
	}
	if err != nil {
		hangUp(conn)
		return nil, false, err
	}
	return conn, proxied, nil
}

// check asks the server whether the session is there and listens. A proxy gives itself away by the number of the server
// process, which it makes up.
func (n *Notices) check(ctx context.Context, conn *pgx.Conn) (proxied bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	var pid uint32
	var listening bool
	err = conn.QueryRow(ctx, n.store.sql("listening"), pgx.QueryExecModeExec, n.channel).Scan(&pid, &listening)
	if err != nil {
		return false, fmt.Errorf("pg: look after the listener: %w", err)
	}
	if !listening {
		return false, ErrDeaf
	}
	return pid != conn.PgConn().PID(), nil
}

// hear takes a payload apart.
func (n *Notices) hear(payload string, ear Ear) {
	token, queue, ok := strings.Cut(payload, "|")
	switch {
	case !ok || token == "" || queue == "":
		ear.Refused()
	case token != n.token:
		ear.Heard(queue)
	}
}

func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx) // there is nobody to tell
}

// count keeps account of the running calls of Listen.
func (n *Notices) count(by int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listening += by; n.listening == 0 && n.quiet != nil {
		close(n.quiet)
		n.quiet = nil
	}
}

// Wait waits until no call of Listen runs, whose connections are closed then, or until ctx ends. Whoever calls it has ended
// their contexts.
func (n *Notices) Wait(ctx context.Context) {
	n.mu.Lock()
	if n.listening == 0 {
		n.mu.Unlock()
		return
	}
	if n.quiet == nil {
		n.quiet = make(chan struct{})
	}
	quiet := n.quiet
	n.mu.Unlock()
	select {
	case <-quiet:
	case <-ctx.Done():
	}
}
