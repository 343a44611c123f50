package redislimiter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/gendurable/gendurable/limiter"
)

// Options configure a Limiter. All processes that share limits have the same ones, but for Origin.
type Options struct {
	// Namespace begins the names of all keys: "{Namespace}:...". Default "gendurable".
	Namespace string
	// Origin names the database whose rows are limited, where rows of several share a Namespace: they may have the same
	// numbers. Default "".
	Origin string
	// Lease is how long a slot is held without a Renew. It is to be the lease of the engine's claims, and at least three
	// times as long as the time between two heartbeats. At least 1 ms. Default 60 s.
	Lease time.Duration
}

// Limiter is a limiter.Limiter that counts in Redis. It is safe for concurrent use; so are any number of them, in any
// number of processes, on the same Namespace.
//
// An error of a call that was sent wraps limiter.ErrUncertain, since the client may have sent it several times before it
// gave up. Credit's never do: it may always be repeated.
type Limiter struct {
	client  redis.UniversalClient
	options Options

	mu sync.Mutex
	// era is the name of the counters that were found last; empty before that.
	era string
	// inForce are the limits that were seen last, to be put back if the counters are lost.
	inForce limiter.Config
	// doubtful are slots that an Admit may have taken whose answer was lost.
	doubtful []slot
	// missing are slots that were not there when they were renewed, and when that was.
	missing map[slot]time.Time
}

// slot is a place in a gate's sorted set.
type slot struct{ gate, row string }

var _ limiter.Limiter = (*Limiter)(nil)

// New returns a Limiter that uses the client, which stays the caller's. It calls nobody. An error says which option is
// wrong.
func New(client redis.UniversalClient, o Options) (*Limiter, error) {
	if o.Namespace == "" {
		o.Namespace = "gendurable"
	}
	if o.Lease == 0 {
		o.Lease = time.Minute
	}
	switch {
	case client == nil:
		return nil, errors.New("redislimiter: the client is nil")
	case strings.ContainsAny(o.Namespace, "{}"):
		return nil, fmt.Errorf("redislimiter: Namespace is %q; it must not contain braces, which mark the hash tag of a key", o.Namespace)
	case o.Lease < time.Millisecond:
		return nil, fmt.Errorf("redislimiter: Lease is %v; it must be at least 1 ms (or 0: 60 s)", o.Lease)
	}
	return &Limiter{client: client, options: o, missing: map[slot]time.Time{}}, nil
}

func (l *Limiter) key(rest string) string { return "{" + l.options.Namespace + "}:" + rest }

func (l *Limiter) limits() string  { return l.key("limits") }
func (l *Limiter) buckets() string { return l.key("buckets") }

// used is the set of gates' keys that have holders or had some.
func (l *Limiter) used() string { return l.key("gates") }

// holders is the sorted set of a gate's key.
func (l *Limiter) holders(gate string) string { return l.key("gate:" + gate) }

// row names a claim of a row.
func (l *Limiter) row(id int64, claim int) string {
	return fmt.Sprintf("%s/%d/%d", l.options.Origin, id, claim)
}

func (l *Limiter) slot(s limiter.Slot) slot { return slot{s.Key, l.row(s.ID, s.Claim)} }

func (l *Limiter) known() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.era
}

// SyncConfig implements limiter.Limiter. One round trip.
func (l *Limiter) SyncConfig(ctx context.Context, own limiter.Config) (limiter.Config, error) {
	if err := own.Validate(); err != nil {
		return limiter.Config{}, err
	}
	known := l.known()
	era, inForce, err := l.sync(ctx, known, "set", own)
	if err == nil && known != "" && era != known {
		inForce, err = l.recover(ctx, known)
	}
	if err != nil {
		return limiter.Config{}, wrap("store and read the limits", err)
	}
	l.adopt(era, inForce)
	return inForce, nil
}

// sync stores limits and returns those in force, and the era.
func (l *Limiter) sync(ctx context.Context, known, how string, c limiter.Config) (era string, inForce limiter.Config, err error) {
	reply, err := l.run(ctx, syncScript, known, []string{l.limits()}, append([]any{how}, fields(c)...)...).Slice()
	if err != nil {
		return "", limiter.Config{}, err
	}
	if len(reply) != 2 {
		return "", limiter.Config{}, fmt.Errorf("unexpected answer %v", reply)
	}
	era, _ = reply[0].(string)
	inForce, err = readConfig(reply[1])
	return era, inForce, err
}

// recover puts back the limits that were seen last, where others are not there already. To be called when a script has
// found another era than the known one; until it has succeeded, every script will.
func (l *Limiter) recover(ctx context.Context, known string) (limiter.Config, error) {
	l.mu.Lock()
	remembered := l.inForce
	l.mu.Unlock()
	era, inForce, err := l.sync(ctx, known, "fill", remembered)
	if err != nil {
		return limiter.Config{}, fmt.Errorf("put back the limits, which Redis has lost: %w", err)
	}
	l.adopt(era, inForce)
	return inForce, nil
}

func (l *Limiter) adopt(era string, inForce limiter.Config) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.era, l.inForce = era, inForce
}

// RemoveConfig implements limiter.Limiter. One round trip.
func (l *Limiter) RemoveConfig(ctx context.Context, names ...limiter.Name) error {
	if len(names) == 0 {
		return nil
	}
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = field(n)
	}
	if err := l.client.HDel(ctx, l.limits(), list...).Err(); err != nil {
		return wrap("remove limits", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inForce = without(l.inForce, names)
	return nil
}

// wrap says what failed. See Limiter.
func wrap(what string, err error) error {
	return fmt.Errorf("redislimiter: %s: %w: %w", what, limiter.ErrUncertain, err)
}
