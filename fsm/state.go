package fsm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
)

// encodeObject encodes a state. A nil map, pointer or interface is {}.
func encodeObject(field string, v any, l *Limits) ([]byte, error) {
	b, err := encodeJSON(field, v, l, false)
	switch {
	case err != nil:
		return nil, err
	case string(b) == "null":
		return []byte("{}"), nil
	case b[0] != '{':
		return nil, invalid(field, "must be a JSON object, a %T encodes as %s", v, excerpt(b))
	}
	return b, nil
}

// sealObject is encodeObject and then what is stored of it.
func sealObject(field string, v any, l *Limits) ([]byte, error) {
	b, err := encodeObject(field, v, l)
	if err != nil {
		return nil, err
	}
	return l.seal(field, b)
}

var errNoObject = errors.New("fsm: the stored state is not a JSON object")

// decodeObject decodes a stored state. Old rows hold a JSON string that holds the object; an empty one is {}.
func decodeObject(b []byte, v any) error {
	b = bytes.TrimLeft(b, " \t\r\n")
	if len(b) > 0 && b[0] == '"' {
		var inner string
		if err := json.Unmarshal(b, &inner); err != nil {
			return fmt.Errorf("fsm: decode the stored state: %w", err)
		}
		b = bytes.TrimLeft([]byte(inner), " \t\r\n")
	}
	if len(b) == 0 {
		b = []byte("{}")
	}
	if b[0] != '{' {
		return errNoObject
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("fsm: decode the stored state: %w", err)
	}
	return nil
}

// checkStateType finds types that can be no state, as far as their zero value tells: those that encoding/json
// cannot encode, and those that do not encode as an object.
func checkStateType(field string, t reflect.Type) error {
	if t.Kind() == reflect.Interface && t.NumMethod() > 0 {
		return invalid(field, "must be a type that encoding/json can decode, the interface %s is not", t)
	}
	if t.Kind() == reflect.Pointer && t.Elem().Kind() != reflect.Pointer {
		t = t.Elem() // what matters is what it points to
	}
	b, err := marshalZero(t)
	if err != nil {
		return &InvalidError{Field: field, Problem: "must be a type that encodes as a JSON object, " + t.String() + " is not", Err: err}
	}
	// A type with an encoding of its own may have a null of its own.
	null := string(b) == "null" && (t.Kind() == reflect.Map || t.Kind() == reflect.Interface ||
		t.Kind() == reflect.Pointer || t.Implements(jsonMarshaler) || reflect.PointerTo(t).Implements(jsonMarshaler))
	if len(b) > 0 && b[0] != '{' && !null {
		return invalid(field, "must be a type that encodes as a JSON object, %s encodes as %s", t, excerpt(b))
	}
	return nil
}

// marshalZero encodes the zero value of a type; its error is nil unless the type itself is to blame: a Marshaler
// may well refuse, or panic about, a value without content.
func marshalZero(t reflect.Type) (b []byte, err error) {
	defer func() {
		if recover() != nil {
			b, err = nil, nil
		}
	}()
	b, err = json.Marshal(reflect.New(t).Interface())
	var unsupported *json.UnsupportedTypeError
	if errors.As(err, &unsupported) {
		return nil, err
	}
	return b, nil
}

// storedObject is the object in a stored state, as it is.
func storedObject(b []byte) ([]byte, error) {
	var raw json.RawMessage
	if err := decodeObject(b, &raw); err != nil {
		return nil, err
	}
	return raw, nil
}
