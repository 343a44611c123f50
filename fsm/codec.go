package fsm

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
)

// Codec turns the JSON of states, results and signal payloads into bytes that mean nothing to whoever reads the database,
// and back: encryption, as a rule. It is used by many goroutines at once, on every run of a step, so it should need no
// network. Keys are rotated by writing into the bytes which one they were made with.
type Codec interface {
	// Encode returns what is stored for a JSON text. It does not change or keep plain.
	Encode(plain []byte) ([]byte, error)
	// Decode returns what Encode was given. It does not change or keep stored.
	Decode(stored []byte) ([]byte, error)
}

// ErrCodec is what errors.Is finds when a Codec fails, or one is missing. It says nothing against the instance.
var ErrCodec = errors.New("fsm: the codec failed")

const (
	// What a Codec makes is stored as an object of this field alone, so that it is a JSON object wherever one is needed.
	sealField  = "$enc"
	sealPrefix = `{"` + sealField + `":`
	// maxSealed bounds what is stored: MaxPayload is about what was given to the Codec.
	maxSealed = 48 << 20
)

// seal makes what is stored of a plain JSON text.
func (l *Limits) seal(field string, plain []byte) (sealed []byte, err error) {
	if l.Codec == nil {
		if looksSealed(plain) {
			return nil, invalid(field, "must not be an object whose only field is %q, which marks what a codec has made", sealField)
		}
		return plain, nil
	}
	secret, err := l.guarded(l.Codec.Encode, plain)
	if err != nil {
		return nil, fmt.Errorf("%w to encode the %s: %w", ErrCodec, field, err)
	}
	size := len(sealPrefix) + base64.StdEncoding.EncodedLen(len(secret)) + 3
	if size > maxSealed {
		return nil, invalid(field, "must be at most %d bytes after the codec, has %d", maxSealed, size)
	}
	sealed = append(make([]byte, 0, size), sealPrefix...)
	sealed = append(sealed, '"')
	sealed = base64.StdEncoding.AppendEncode(sealed, secret)
	return append(sealed, '"', '}'), nil
}

// Reveal returns the JSON text that was stored as this: through the Codec, or as it is if it was written without one. Its
// error matches ErrCodec. Engines call it for what they hand to callers; field names it in errors.
func (l Limits) Reveal(field string, stored []byte) (json.RawMessage, error) {
	text, ok := sealedText(stored)
	if !ok {
		return stored, nil
	}
	if l.Codec == nil {
		return nil, fmt.Errorf("%w: the %s was stored through one, and none is configured here", ErrCodec, field)
	}
	secret, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, fmt.Errorf("%w to decode the %s: %w", ErrCodec, field, err)
	}
	plain, err := l.guarded(l.Codec.Decode, secret)
	if err == nil && !json.Valid(plain) {
		err = errors.New("what it returned is not JSON")
	}
	if err != nil {
		return nil, fmt.Errorf("%w to decode the %s: %w", ErrCodec, field, err)
	}
	return plain, nil
}

// guarded runs one of the codec's functions; its panic is an error.
func (l *Limits) guarded(f func([]byte) ([]byte, error), b []byte) (out []byte, err error) {
	defer capture(&err)
	return f(b)
}

// sealedText is the text that seal has put into stored, in whichever way Postgres prints it.
func sealedText(stored []byte) (string, bool) {
	if !bytes.HasPrefix(stored, []byte(`{"$`)) && !bytes.HasPrefix(stored, []byte(`{"\`)) {
		return "", false
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(stored, &object) != nil || len(object) != 1 {
		return "", false
	}
	var text string
	raw, ok := object[sealField]
	if !ok || json.Unmarshal(raw, &text) != nil || len(raw) == 0 || raw[0] != '"' {
		return "", false
	}
	return text, true
}

func looksSealed(plain []byte) bool {
	_, ok := sealedText(plain)
	return ok
}

// reveal is the input with everything in it as it was before it was stored.
func (in *Input) reveal() (*Input, error) {
	if in.Pages == nil && len(in.Inbox) == 0 && len(in.Children) == 0 && !looksSealed(in.State) {
		return in, nil // nothing to change: the rule
	}
	plain := *in
	var err error
	if plain.State, err = in.Limits.Reveal("state", in.State); err != nil {
		return nil, err
	}
	if plain.Inbox, err = revealSignals(&in.Limits, in.Inbox); err != nil {
		return nil, err
	}
	if plain.Children, err = revealChildren(&in.Limits, in.Children); err != nil {
		return nil, err
	}
	if in.Pages != nil {
		plain.Pages = revealing{in.Pages, &in.Limits}
	}
	return &plain, nil
}

// revealSignals returns the signals as they are, or changed copies: the input is the engine's.
func revealSignals(l *Limits, stored []Signal) ([]Signal, error) {
	var plain []Signal
	for i := range stored {
		if plain == nil && !looksSealed(stored[i].Payload) {
			continue
		}
		if plain == nil {
			plain = append(plain, stored...)
		}
		var err error
		if plain[i].Payload, err = l.Reveal("payload of a signal", stored[i].Payload); err != nil {
			return nil, err
		}
	}
	if plain == nil {
		return stored, nil
	}
	return plain, nil
}

func revealChildren(l *Limits, stored []Child) ([]Child, error) {
	var plain []Child
	for i := range stored {
		if plain == nil && !looksSealed(stored[i].State) && !looksSealed(stored[i].Result) {
			continue
		}
		if plain == nil {
			plain = append(plain, stored...)
		}
		var err error
		if plain[i].State, err = l.Reveal("state of a child", stored[i].State); err != nil {
			return nil, err
		}
		if plain[i].Result, err = l.Reveal("result of a child", stored[i].Result); err != nil {
			return nil, err
		}
	}
	if plain == nil {
		return stored, nil
	}
	return plain, nil
}

// revealing reads pages of what was stored.
type revealing struct {
	stored Pages
	limits *Limits
}

func (p revealing) Signals(ctx context.Context, id int64, handed []int64) ([]Signal, error) {
	page, err := p.stored.Signals(ctx, id, handed)
	if err != nil {
		return nil, err
	}
	return revealSignals(p.limits, page)
}

func (p revealing) Children(ctx context.Context, id, after int64) ([]Child, error) {
	page, err := p.stored.Children(ctx, id, after)
	if err != nil {
		return nil, err
	}
	return revealChildren(p.limits, page)
}
