package fsm

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// reversed is a codec that hides nothing and notices what is not its own.
type reversed struct{ fail, panics bool }

func reverse(b []byte) []byte {
	out := make([]byte, len(b))
	for i, c := range b {
		out[len(b)-1-i] = c
	}
	return out
}

func (r *reversed) run(b []byte) ([]byte, error) {
	switch {
	case r.panics:
		panic("oops")
	case r.fail:
		return nil, errors.New("no key")
	}
	return reverse(b), nil
}

func (r *reversed) Encode(b []byte) ([]byte, error) { return r.run(b) }
func (r *reversed) Decode(b []byte) ([]byte, error) { return r.run(b) }

func TestCodecRoundTrip(t *testing.T) {
	l := Limits{Codec: &reversed{}}
	for _, v := range []any{nil, 5, "x", []int{1}, map[string]int{"a": 1}, map[string]string{"$enc": "abc"}} {
		stored, err := EncodePayload("payload", v, l)
		if err != nil || !strings.HasPrefix(string(stored), `{"$enc":"`) || !json.Valid(stored) {
			t.Errorf("%v is stored as %s, %v", v, stored, err)
		}
		asPrinted := []byte(strings.Replace(string(stored), ":", ": ", 1)) // by jsonb
		want := "{}"
		if v != nil {
			b, _ := json.Marshal(v)
			want = string(b)
		}
		if plain, err := l.Reveal("payload", asPrinted); err != nil || string(plain) != want {
			t.Errorf("%v comes back as %s, %v", v, plain, err)
		}
	}
}

func TestWhatIsReadWithoutItsCodec(t *testing.T) {
	with, without := Limits{Codec: &reversed{}}, Limits{}
	stored, err := EncodePayload("payload", 5, with)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := without.Reveal("payload", stored); !errors.Is(err, ErrCodec) {
		t.Errorf("without a codec: %v", err)
	}
	for name, l := range map[string]Limits{
		"one that fails":  {Codec: &reversed{fail: true}},
		"one that panics": {Codec: &reversed{panics: true}},
	} {
		if _, err := l.Reveal("payload", stored); !errors.Is(err, ErrCodec) {
			t.Errorf("decode with %s: %v", name, err)
		}
		if _, err := EncodePayload("payload", 5, l); !errors.Is(err, ErrCodec) {
			t.Errorf("encode with %s: %v", name, err)
		}
	}
	for _, bad := range []string{`{"$enc": "!"}`, `{"$enc": "AAAA"}`, `{"$enc": ""}`} {
		if _, err := with.Reveal("payload", []byte(bad)); !errors.Is(err, ErrCodec) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	// Rows from before the codec, whatever they look like.
	for _, plain := range []string{``, `5`, `{}`, `{"a": 1}`, `{"$enc": 5}`, `{"$enc": null}`, `{"$enc": "AA==", "a": 1}`, `"{}"`} {
		if got, err := with.Reveal("payload", []byte(plain)); err != nil || string(got) != plain {
			t.Errorf("%s comes back as %s, %v", plain, got, err)
		}
	}
}

func TestTheMarkIsReserved(t *testing.T) {
	for _, v := range []json.RawMessage{json.RawMessage(`{"$enc":"AA=="}`), json.RawMessage(`{ "\u0024\u0065nc" : "x" }`)} {
		if _, err := EncodePayload("payload", v, Limits{}); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", v, err)
		}
	}
	if _, err := EncodePayload("payload", map[string]any{"$enc": "x", "a": 1}, Limits{}); err != nil {
		t.Error(err)
	}
}

type secret struct {
	Word string `json:"word"`
}

func TestRunWithACodec(t *testing.T) {
	codec := &reversed{}
	l := Limits{Codec: codec}
	stored := func(v any) []byte {
		b, err := EncodePayload("x", v, l)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	m := New[secret]("m").Step("a", func(_ context.Context, c *Call[secret]) (Outcome, error) {
		var child, payload string
		if err := errors.Join(c.Children[0].DecodeResult(&child), c.Awaited[0].Decode(&payload)); err != nil {
			return nil, err
		}
		c.State.Word += child + payload
		return Next("a"), nil
	})
	in := &Input{
		Step: "a", State: stored(secret{"x"}), Limits: l, Awaits: []string{"s"},
		Inbox:    []Signal{{ID: 1, Name: "other", Payload: []byte(`{}`)}, {ID: 2, Name: "s", Payload: stored("z")}},
		Children: []Child{{ID: 3, State: []byte(`{}`), Result: stored("y")}},
	}
	before := string(in.Inbox[1].Payload)
	res := Run(t.Context(), m.Spec(), in)
	if res.Ending != Finished || res.Err != nil {
		t.Fatalf("%+v", res)
	}
	if plain, err := l.Reveal("state", res.Encoded.State); err != nil || string(plain) != `{"word":"xyz"}` || strings.Contains(string(res.Encoded.State), "xyz") {
		t.Errorf("the state is %s, stored as %s; %v", plain, res.Encoded.State, err)
	}
	if string(in.Inbox[1].Payload) != before {
		t.Error("the input was changed")
	}
	codec.fail = true
	if res := Run(t.Context(), m.Spec(), in); res.Ending != Undecodable || !errors.Is(res.Err, ErrCodec) {
		t.Errorf("without the key: %+v", res)
	}
	codec.fail = false
	// The codec fails on what comes out of the step, or out of its error handler: not the instance's fault.
	for _, outcome := range []func() (Outcome, error){
		func() (Outcome, error) { return Next("a"), nil },
		func() (Outcome, error) { return Done("x"), nil },
		func() (Outcome, error) { return nil, errors.New("to the handler") },
	} {
		failing := New[secret]("f").OnError(func(context.Context, *Call[secret], error) (Outcome, error) { return Retry(0), nil }).
			Step("a", func(context.Context, *Call[secret]) (Outcome, error) {
				codec.fail = true
				return outcome()
			})
		if res := Run(t.Context(), failing.Spec(), in); res.Ending != Undecodable || !errors.Is(res.Err, ErrCodec) {
			t.Errorf("%+v", res)
		}
		codec.fail = false
	}
	// An interrupted step goes back as it was stored.
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := New[secret]("i").Step("a", func(ctx context.Context, _ *Call[secret]) (Outcome, error) {
		cancel(ErrDraining)
		return nil, ctx.Err()
	})
	if res := Run(ctx, interrupted.Spec(), in); res.Encoded == nil || string(res.Encoded.State) != string(in.State) {
		t.Errorf("%+v", res)
	}
}

func TestJobsWithACodec(t *testing.T) {
	l := Limits{Codec: &reversed{}}
	job := NewJob("j", func(_ context.Context, j *JobCall[secret]) (string, error) {
		if j.Attempt == 0 {
			return "", errors.New("once more")
		}
		return "got " + j.Args.Word, nil
	})
	row, err := job.New(secret{"it"}).Insertion(l)
	if err != nil || strings.Contains(string(row.State), "it\"") {
		t.Fatalf("%s, %v", row.State, err)
	}
	in := &Input{Step: JobStep, State: row.State, Limits: l}
	res := Run(t.Context(), job.Spec(), in)
	if res.Encoded == nil || res.Encoded.Kind != KindRetry || string(res.Encoded.State) != string(row.State) {
		t.Fatalf("%+v", res.Encoded)
	}
	in.Attempt = 1
	res = Run(t.Context(), job.Spec(), in)
	if plain, err := l.Reveal("result", res.Encoded.Result); err != nil || string(plain) != `"got it"` {
		t.Errorf("%s, %v", plain, err)
	}
}
