package fsm

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"unicode/utf8"
)

// checkReplaced refuses Go strings of invalid UTF-8. encoding/json does not fail on them but writes the escape
// \ufffd in their place; a valid U+FFFD is written as itself. So only JSON that contains the escape needs a look
// at the value, which tells it from one that came out of a Marshaler or a json.RawMessage.
func checkReplaced(field string, v any, b []byte) error {
	if !bytes.Contains(b, []byte(`\ufffd`)) {
		return nil
	}
	if path, found := findInvalid(reflect.ValueOf(v), field, 0); found {
		return invalid(path, "must be valid UTF-8")
	}
	return nil
}

var (
	jsonMarshaler = reflect.TypeFor[json.Marshaler]()
	textMarshaler = reflect.TypeFor[encoding.TextMarshaler]()
)

// findInvalid returns the path of a string of invalid UTF-8 that encoding/json would encode.
// Values with encodings of their own are left to them.
func findInvalid(v reflect.Value, path string, depth int) (string, bool) {
	if !v.IsValid() || depth > maxDepth {
		return "", false
	}
	t := v.Type()
	if encodesItself(t) || encodesItself(reflect.PointerTo(t)) {
		return "", false
	}
	switch v.Kind() {
	case reflect.String:
		return path, !utf8.ValidString(v.String())
	case reflect.Pointer, reflect.Interface:
		return findInvalid(v.Elem(), path, depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			f := t.Field(i)
			if f.Tag.Get("json") == "-" || !f.IsExported() && !f.Anonymous {
				continue
			}
			if p, found := findInvalid(v.Field(i), path+"."+f.Name, depth+1); found {
				return p, true
			}
		}
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "", false
		}
		for i := range v.Len() {
			if p, found := findInvalid(v.Index(i), path+"["+strconv.Itoa(i)+"]", depth+1); found {
				return p, true
			}
		}
	case reflect.Map:
		for it := v.MapRange(); it.Next(); {
			if p, found := findInvalid(it.Key(), "a key of "+path, depth+1); found {
				return p, true
			}
			if p, found := findInvalid(it.Value(), fmt.Sprintf("%s[%v]", path, it.Key()), depth+1); found {
				return p, true
			}
		}
	}
	return "", false
}

func encodesItself(t reflect.Type) bool {
	return t.Implements(jsonMarshaler) || t.Implements(textMarshaler)
}
