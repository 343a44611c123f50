package fsm

import (
	"encoding/json"
	"unicode/utf8"
)

const (
	defaultMaxPayload = 1 << 20
	// hardMaxPayload keeps a payload away from the memory that Postgres allocates at once: parsing an array of
	// 16 million one-digit numbers, 32 MiB of text, needs more than the 1 GiB that it may.
	hardMaxPayload = 16 << 20
	// maxDepth is less than the stack of a Postgres backend holds at its default max_stack_depth.
	maxDepth = 1000
)

func (l *Limits) maxPayload() int {
	switch {
	case l.MaxPayload <= 0:
		return defaultMaxPayload
	case l.MaxPayload > hardMaxPayload:
		return hardMaxPayload
	}
	return l.MaxPayload
}

// EncodePayload encodes v as JSON that Postgres stores as jsonb, or refuses it with an *InvalidError about
// field. Beyond what encoding/json refuses it refuses NUL and invalid UTF-8 in strings, lone surrogate escapes,
// numbers beyond Postgres's numeric type, nesting deeper than 1,000, and more than l.MaxPayload bytes, counted
// with all numbers written out. With l.Interoperable it refuses what is not an object. An untyped nil is {}. Then it
// goes through l.Codec, whose failure is an ErrCodec.
func EncodePayload(field string, v any, l Limits) (json.RawMessage, error) {
	if v == nil {
		return l.seal(field, []byte("{}"))
	}
	b, err := encodeJSON(field, v, &l, l.Interoperable)
	if err != nil {
		return nil, err
	}
	return l.seal(field, b)
}

func encodeJSON(field string, v any, l *Limits, object bool) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, &InvalidError{Field: field, Problem: "cannot be encoded as JSON", Err: err}
	}
	if object && b[0] != '{' {
		return nil, invalid(field, "must be a JSON object, a %T encodes as %s", v, excerpt(b))
	}
	if err := checkJSON(field, b, l.maxPayload()); err != nil {
		return nil, err
	}
	if err := checkReplaced(field, v, b); err != nil {
		return nil, err
	}
	return b, nil
}

func excerpt(b []byte) string {
	const most = 40
	if len(b) > most {
		return string(b[:most]) + "…"
	}
	return string(b)
}

// checkJSON checks JSON of valid syntax for what jsonb refuses.
func checkJSON(field string, b []byte, limit int) error {
	if len(b) > limit {
		return invalid(field, "must be at most %d bytes of JSON, has %d", limit, len(b))
	}
	if !utf8.Valid(b) {
		return invalid(field, "must be valid UTF-8")
	}
	depth, size := 0, len(b)
	for i := 0; i < len(b); {
		switch c := b[i]; {
		case c == '"':
			end, problem := scanString(b, i+1)
			if problem != "" {
				return invalid(field, "%s", problem)
			}
			i = end
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return invalid(field, "must not be nested deeper than %d", maxDepth)
			}
			i++
		case c == '}' || c == ']':
			depth--
			i++
		case c == '-' || '0' <= c && c <= '9':
			end, extra, ok := scanNumber(b, i)
			if !ok {
				return invalid(field, "holds the number %s, which is beyond Postgres's numeric type", excerpt(b[i:end]))
			}
			if size += extra; size > limit {
				return invalid(field, "must be at most %d bytes of JSON with its numbers written out", limit)
			}
			i = end
		default:
			i++
		}
	}
	return nil
}

// scanString returns the index after the string whose content starts at i.
func scanString(b []byte, i int) (end int, problem string) {
	for {
		switch b[i] {
		case '"':
			return i + 1, ""
		case '\\':
			if b[i+1] != 'u' {
				i += 2
				continue
			}
			switch r := hex4(b[i+2:]); {
			case r == 0:
				return 0, `must not contain NUL (\u0000)`
			case 0xDC00 <= r && r <= 0xDFFF:
				return 0, `must not contain a lone surrogate escape (\u` + string(b[i+2:i+6]) + `)`
			case 0xD800 <= r && r <= 0xDBFF:
				low := 0
				if i+12 <= len(b) && b[i+6] == '\\' && b[i+7] == 'u' {
					low = hex4(b[i+8:])
				}
				if low < 0xDC00 || low > 0xDFFF {
					return 0, `must not contain a lone surrogate escape (\u` + string(b[i+2:i+6]) + `)`
				}
				i += 6
			}
			i += 6
		default:
			i++
		}
	}
}

func hex4(b []byte) int {
	r := 0
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			c -= '0'
		case c >= 'a':
			c -= 'a' - 10
		default:
			c -= 'A' - 10
		}
		r = r<<4 | int(c)
	}
	return r
}

const (
	maxWeight   = 131071 // the highest power of ten of a numeric
	maxScale    = 16383  // its digits after the point
	maxExponent = 1 << 29
)

// scanNumber returns the index after the number at i, how many more bytes it takes written out without an
// exponent, and whether numeric holds it.
func scanNumber(b []byte, i int) (end, extra int, ok bool) {
	start := i
	if b[i] == '-' {
		i++
	}
	whole, fraction, exponent := 0, 0, 0
	zeros := 0       // zeros before the first other digit
	nonzero := false // such a digit was seen
	for point := false; i < len(b); i++ {
		c := b[i]
		if c == '.' {
			point = true
			continue
		}
		if c < '0' || c > '9' {
			break
		}
		if point {
			fraction++
		} else {
			whole++
		}
		if c != '0' {
			nonzero = true
		} else if !nonzero {
			zeros++
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		exponent, i = scanExponent(b, i+1)
	}
	scale := max(fraction-exponent, 0)
	weight := whole - 1 - zeros + exponent
	if !nonzero {
		weight = 0
	}
	if scale > maxScale || weight > maxWeight || exponent >= maxExponent || exponent <= -maxExponent {
		return i, 0, false
	}
	return i, max(weight+1+scale-(i-start), 0), true
}

func scanExponent(b []byte, i int) (exponent, end int) {
	sign := 1
	switch b[i] {
	case '-':
		sign = -1
		i++
	case '+':
		i++
	}
	for ; i < len(b) && '0' <= b[i] && b[i] <= '9'; i++ {
		exponent = min(exponent*10+int(b[i]-'0'), maxExponent)
	}
	return sign * exponent, i
}
