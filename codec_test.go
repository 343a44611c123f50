package gendurable_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// Sealed encrypts with AES-GCM. The first byte of what it makes says with which key, so that keys can be replaced.
type Sealed struct {
	keys    map[byte]cipher.AEAD
	current byte
}

// NewSealed makes a codec of keys of 16, 24 or 32 bytes, by their numbers. New rows get the current one.
func NewSealed(keys map[byte][]byte, current byte) (*Sealed, error) {
	s := &Sealed{keys: make(map[byte]cipher.AEAD), current: current}
	for number, key := range keys {
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		if s.keys[number], err = cipher.NewGCMWithRandomNonce(block); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Sealed) Encode(plain []byte) ([]byte, error) {
	number := []byte{s.current}
	return s.keys[s.current].Seal(number, nil, plain, number), nil
}

func (s *Sealed) Decode(stored []byte) ([]byte, error) {
	if len(stored) == 0 || s.keys[stored[0]] == nil {
		return nil, errors.New("sealed with a key that this process does not have")
	}
	return s.keys[stored[0]].Open(nil, nil, stored[1:], stored[:1])
}

func sealed(t *testing.T, current byte, numbers ...byte) *Sealed {
	t.Helper()
	keys := make(map[byte][]byte)
	for _, n := range append(numbers, current) {
		keys[n] = []byte(strings.Repeat(string(rune('a'+n)), 32))
	}
	s, err := NewSealed(keys, current)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// columnsThatShow lists the text and JSON columns of all tables in which a word can be read.
func columnsThatShow(t *testing.T, pool *pgxpool.Pool, word string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `SELECT table_name, column_name FROM information_schema.columns
		WHERE table_schema = current_schema() AND data_type IN ('text', 'jsonb', 'json', 'bytea', 'ARRAY', 'character varying')`)
	if err != nil {
		t.Fatal(err)
	}
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Table, Column string }])
	if err != nil {
		t.Fatal(err)
	}
	if len(columns) < 20 {
		t.Fatalf("only %d columns", len(columns))
	}
	var found []string
	for _, c := range columns {
		if n := count(t, pool, fmt.Sprintf(`SELECT count(*) FROM %s WHERE position($1 in %s::text) > 0`,
			pgx.Identifier{c.Table}.Sanitize(), pgx.Identifier{c.Column}.Sanitize()), word); n > 0 {
			found = append(found, c.Table+"."+c.Column)
		}
	}
	return found
}

const plaintext = "correct-horse-battery"

type word struct {
	Word string `json:"word"`
}

// telling is a machine all of whose states, signals, children and results hold the plaintext.
func telling() (parent *fsm.Machine[word], child *fsm.Job[word, string]) {
	child = fsm.NewJob("telling-child", func(_ context.Context, j *fsm.JobCall[word]) (string, error) {
		if j.Attempt == 0 {
			return "", errors.New("once more")
		}
		return j.Args.Word + "-c", nil
	}, fsm.Backoff(func(int) time.Duration { return 0 }))
	parent = fsm.New[word]("telling").
		Step("split", func(context.Context, *fsm.Call[word]) (fsm.Outcome, error) {
			return fsm.ScheduleChildren(child.New(word{plaintext}), child.New(word{plaintext})).Then("sum"), nil
		}).
		Step("sum", func(_ context.Context, c *fsm.Call[word]) (fsm.Outcome, error) {
			for _, ch := range c.Children {
				var result string
				var state word
				if err := errors.Join(ch.DecodeResult(&result), ch.DecodeState(&state)); err != nil {
					return nil, err
				}
				if result != state.Word+"-c" {
					return nil, fmt.Errorf("a child of %q answers %q", state.Word, result)
				}
			}
			return fsm.Next("park"), nil
		}).
		Step("park", func(context.Context, *fsm.Call[word]) (fsm.Outcome, error) { return fsm.Await("go").Then("end"), nil }).
		Step("end", func(ctx context.Context, c *fsm.Call[word]) (fsm.Outcome, error) {
			seen := 0
			for page := c.Inbox; len(page) > 0; {
				for _, s := range page {
					var w word
					if err := s.Decode(&w); err != nil || w.Word != plaintext {
						return nil, fmt.Errorf("signal %d holds %q: %w", s.ID, w.Word, err)
					}
					seen++
				}
				var err error
				if page, err = c.NextInbox(ctx); err != nil {
					return nil, err
				}
			}
			return fsm.Done(map[string]any{"word": c.State.Word, "seen": seen}), nil
		})
	return parent, child
}

func TestStoredRowsAreOpaque(t *testing.T) {
	t.Parallel()
	pool := database(t)
	codec := sealed(t, 1)
	parent, child := telling()
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{parent, child}, Codec: codec})
	client, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{Codec: codec, Machines: []fsm.Definition{parent, child}})
	if err != nil {
		t.Fatal(err)
	}
	many, err := client.InsertMany(t.Context(), []fsm.Instance{parent.New(word{plaintext}), parent.New(word{plaintext})})
	if err != nil {
		t.Fatal(err)
	}
	const signals = 1500 // more than a step is handed at once
	for _, r := range many {
		if s := await(t, engine, r.ID); s.Status != fsm.AwaitingSignal {
			t.Fatalf("%+v", s)
		}
		var deliveries []gendurable.Delivery
		for range signals - 1 {
			deliveries = append(deliveries, gendurable.Delivery{To: r.ID, Name: "other", Payload: word{plaintext}})
		}
		if _, err := client.SignalMany(t.Context(), deliveries); err != nil {
			t.Fatal(err)
		}
	}
	if found := columnsThatShow(t, pool, plaintext); len(found) > 0 {
		t.Errorf("before the end, the plaintext can be read in %s", found)
	}
	var raw string
	if err := pool.QueryRow(t.Context(), `SELECT state::text FROM gen_durable LIMIT 1`).Scan(&raw); err != nil || !strings.HasPrefix(raw, `{"$enc": "`) {
		t.Errorf("a state is stored as %s, %v", raw, err)
	}
	for i, r := range many {
		if err := client.Signal(t.Context(), r.ID, "go", word{plaintext}); err != nil {
			t.Fatal(err)
		}
		waiter := []*gendurable.Client{engine.Client, client}[i] // told by the commit, and by the database
		s, err := waiter.Await(t.Context(), r.ID, gendurable.UntilTerminal())
		var got struct {
			Word string
			Seen int
		}
		if err != nil || s.Decode(&got) != nil || got.Word != plaintext || got.Seen != signals {
			t.Errorf("ended as %+v: %+v, %v", s, got, err)
		}
		inst, err := client.Get(t.Context(), r.ID)
		if err != nil || string(inst.State) != `{"word":"`+plaintext+`"}` || !strings.Contains(string(inst.Result), plaintext) {
			t.Errorf("Get: %s, %s, %v", inst.State, inst.Result, err)
		}
	}
	if found := columnsThatShow(t, pool, plaintext); len(found) > 0 {
		t.Errorf("at the end, the plaintext can be read in %s", found)
	}
	// Who has no key sees everything else.
	blind, err := gendurable.NewClient(t.Context(), pool, gendurable.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if inst, err := blind.Get(t.Context(), many[0].ID); !errors.Is(err, gendurable.ErrCodec) || inst == nil || inst.State != nil || inst.Status != fsm.StatusDone {
		t.Errorf("Get without the codec: %+v, %v", inst, err)
	}
	if s, err := blind.Await(t.Context(), many[0].ID); !errors.Is(err, gendurable.ErrCodec) || !s.Done() || s.Result != nil {
		t.Errorf("Await without the codec: %+v, %v", s, err)
	}
}

// Keys are replaced, and a codec is introduced, while instances live.
func TestACodecIsIntroducedAndItsKeyReplaced(t *testing.T) {
	t.Parallel()
	pool := database(t)
	parent, child := telling()
	machines := []fsm.Definition{parent, child}
	var ids []gendurable.ID
	for _, codec := range []gendurable.Codec{nil, sealed(t, 1), sealed(t, 2, 1)} {
		engine := start(t, pool, gendurable.Config{Machines: machines, Codec: codec})
		id := insert(t, engine, parent.New(word{plaintext}))
		await(t, engine, id)
		ids = append(ids, id)
		stop(t, engine)
	}
	// A process without the first key leaves the steps that need it to others.
	lacking := start(t, pool, gendurable.Config{Machines: machines, Codec: sealed(t, 2), Logger: quietly()})
	if err := lacking.Signal(t.Context(), ids[1], "go", word{plaintext}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it gave the row back", func() bool { return lacking.Stats().Queues["default"].UnknownSteps == 1 })
	eventually(t, "untouched", func() bool {
		inst, err := lacking.Get(t.Context(), ids[1])
		return errors.Is(err, gendurable.ErrCodec) && inst.Status == fsm.Runnable && inst.Attempt == 0 && inst.Crashes == 0 && inst.LastError == ""
	})
	stop(t, lacking)
	engine := start(t, pool, gendurable.Config{Machines: machines, Codec: sealed(t, 2, 1)})
	for _, id := range ids {
		if id != ids[1] {
			if err := engine.Signal(t.Context(), id, "go", word{plaintext}); err != nil {
				t.Fatal(err)
			}
		}
		if s := await(t, engine, id, gendurable.UntilTerminal()); !s.Done() || !strings.Contains(string(s.Result), plaintext) {
			t.Errorf("%+v", s)
		}
	}
}
