package fsm

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// jsonbNumbers and jsonbStrings were compared with what Postgres 15 says to the same text cast to jsonb.
var jsonbNumbers = map[string]bool{
	"1e131071": true, "1e131072": false, "-1e131071": true, "-1e131072": false,
	"1e-16383": true, "1e-16384": false, "1.5e-16382": true, "1.5e-16383": false,
	"0e-16383": true, "0e-16384": false, "0.0e-16382": true, "0.0e-16383": false,
	"0e999999": true, "0e131072": true, "0.00e400000": true, "-0": true,
	"0.0001e131075": true, "0.0001e131076": false, "10e131070": true, "10e131071": false,
	"123e131069": true, "123e131070": false, "1.0e131071": true, "1E+5": true, "1e-5": true, "1.25": true,
	"1e99999999999999999999": false, "1e-99999999999999999999": false,
}

var jsonbStrings = map[string]bool{
	`"\ud83d\ude00"`: true, `"\uD83D\uDE00x"`: true, `"\ud83d"`: false, `"\ude00"`: false, `"\ud83dx"`: false,
	`"\ud83d\ud83d\ude00"`: false, `"\ud83d\n"`: false, `"\u0000"`: false, `"\\u0000"`: true, `"\\\u0000"`: false,
	`"a\"\u0041"`: true, `"é"`: true, "\"\xff\"": false, `{"\u0000":1}`: false, `"[[{{1e999999"`: true,
}

func TestJSONAsPostgresTakesIt(t *testing.T) {
	t.Parallel()
	for _, table := range []map[string]bool{jsonbNumbers, jsonbStrings} {
		for text, want := range table {
			_, err := EncodePayload("payload", json.RawMessage(text), Limits{})
			if (err == nil) != want {
				t.Errorf("%s: accepted is %v, want %v: %v", text, err == nil, want, err)
			}
			if err != nil && !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v is not ErrInvalid", text, err)
			}
			_, nested := EncodePayload("payload", json.RawMessage(`{"a":[1,`+text+`]}`), Limits{})
			if (nested == nil) != want {
				t.Errorf("%s, nested: accepted is %v, want %v: %v", text, nested == nil, want, nested)
			}
		}
	}
}

func TestJSONSizeAndDepth(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		v    any
		l    Limits
		want string // in the error; empty = accepted
	}{
		"default limit":       {strings.Repeat("x", 1<<20-2), Limits{}, ""},
		"over the default":    {strings.Repeat("x", 1<<20-1), Limits{}, "at most 1048576 bytes of JSON, has 1048577"},
		"own limit":           {"xxx", Limits{MaxPayload: 5}, ""},
		"over it":             {"xxxx", Limits{MaxPayload: 5}, "at most 5 bytes"},
		"hard limit":          {strings.Repeat("x", hardMaxPayload), Limits{MaxPayload: 1 << 40}, "at most 16777216 bytes"},
		"numbers written out": {json.RawMessage("[1e131071,1e131071,1e131071,1e131071,1e131071,1e131071,1e131071,1e131071]"), Limits{}, "written out"},
		"fewer of them":       {json.RawMessage("[1e131071,1e131071,1e131071,1e131071,1e131071,1e131071,1e131071]"), Limits{}, ""},
		"deep":                {json.RawMessage(strings.Repeat("[", 1000) + strings.Repeat("]", 1000)), Limits{}, ""},
		"too deep":            {json.RawMessage(strings.Repeat("[", 1001) + strings.Repeat("]", 1001)), Limits{}, "deeper than 1000"},
		"wide":                {json.RawMessage("[" + strings.Repeat("[],", 2000) + "[]]"), Limits{}, ""},
		"scalar, interop":     {1, Limits{Interoperable: true}, "must be a JSON object, a int encodes as 1"},
		"object, interop":     {order{}, Limits{Interoperable: true}, ""},
		"nil, interop":        {nil, Limits{Interoperable: true}, ""},
		"bad syntax":          {json.RawMessage("{"), Limits{}, "cannot be encoded"},
		"raw NUL":             {json.RawMessage("\"\x00\""), Limits{}, "cannot be encoded"},
		"channel":             {make(chan int), Limits{}, "cannot be encoded"},
		"long excerpt, cut":   {strings.Repeat("y", 100), Limits{Interoperable: true}, "yyy…"},
	} {
		_, err := EncodePayload("payload", test.v, test.l)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func TestNilPayloadIsAnObject(t *testing.T) {
	t.Parallel()
	if b, err := EncodePayload("payload", nil, Limits{}); err != nil || string(b) != "{}" {
		t.Errorf("got %s, %v", b, err)
	}
}

// TestInvalidStrings: encoding/json replaces invalid UTF-8 silently, we refuse it, and only it.
func TestInvalidStrings(t *testing.T) {
	t.Parallel()
	type inner struct {
		Names  []string
		hidden string
		Skip   string `json:"-"`
	}
	for name, test := range map[string]struct {
		v    any
		want string // the path
	}{
		"string":         {"\xff", "payload must be"},
		"field":          {order{Note: "\xff"}, "payload.Note must be"},
		"pointer":        {&order{Note: "\xff"}, "payload.Note must be"},
		"slice":          {inner{Names: []string{"a", "\xc0"}}, "payload.Names[1] must be"},
		"map":            {map[string]any{"k": []any{"\xff"}}, "payload[k][0] must be"},
		"map key":        {map[string]int{"\xff": 1}, "a key of payload must be"},
		"raw escape":     {json.RawMessage(`"\ufffd"`), ""},
		"raw in a map":   {map[string]any{"a": json.RawMessage(`"\ufffd"`), "b": []byte("\xff"), "c": nil}, ""},
		"U+FFFD itself":  {"\uFFFD", ""},
		"not encoded":    {inner{Names: []string{"\uFFFD"}, hidden: "\xff", Skip: "\xff"}, ""},
		"hidden, looked": {[]any{json.RawMessage(`"\ufffd"`), inner{hidden: "\xff", Skip: "\xff"}}, ""},
	} {
		_, err := EncodePayload("payload", test.v, Limits{})
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

var number = regexp.MustCompile(`^-?(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?$`)

// numericHolds is the model of Postgres's numeric: 131,072 digits before the point and 16,383 after it, where
// digits after the point count whether they are zeros or not.
func numericHolds(text string) bool {
	m := number.FindStringSubmatch(text)
	exponent := new(big.Int)
	if m[3] != "" {
		exponent.SetString(strings.TrimPrefix(m[3], "+"), 10)
	}
	scale := new(big.Int).Sub(big.NewInt(int64(len(m[2]))), exponent)
	if scale.Cmp(big.NewInt(16383)) > 0 {
		return false
	}
	digits := strings.TrimLeft(m[1]+m[2], "0")
	if digits == "" {
		return exponent.Cmp(big.NewInt(1<<29)) < 0
	}
	before := new(big.Int).Add(big.NewInt(int64(len(digits)-len(m[2]))), exponent)
	return before.Cmp(big.NewInt(131072)) <= 0
}

// TestNumbersAgreeWithTheModel: 100 cases, some milliseconds.
func TestNumbersAgreeWithTheModel(t *testing.T) {
	t.Parallel()
	for text, want := range jsonbNumbers {
		if numericHolds(text) != want {
			t.Errorf("the model is wrong about %s", text)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,5})(\.[0-9]{1,6})?`).Draw(t, "mantissa")
		if rapid.Bool().Draw(t, "has exponent") {
			near := rapid.SampledFrom([]int{0, 131071, -16383, 1 << 29, -1 << 29}).Draw(t, "near")
			text += fmt.Sprintf("e%d", near+rapid.IntRange(-12, 12).Draw(t, "off by"))
		}
		err := checkJSON("payload", []byte(text), hardMaxPayload)
		if (err == nil) != numericHolds(text) {
			t.Fatalf("%s: accepted is %v, want %v", text, err == nil, numericHolds(text))
		}
	})
}

// TestStringsAgreeWithTheModel: Go's decoder turns exactly the lone surrogates into U+FFFD, and NUL into NUL. 100
// cases, some milliseconds.
func TestStringsAgreeWithTheModel(t *testing.T) {
	t.Parallel()
	pieces := []string{`a`, `\n`, `\\`, `\"`, `é`, `\u0041`, `\u0000`, `\ud83d`, `\uDE00`, `\ud83d\ude00`, `u0000`, `😀`}
	rapid.Check(t, func(t *rapid.T) {
		text := `"` + strings.Join(rapid.SliceOf(rapid.SampledFrom(pieces)).Draw(t, "pieces"), "") + `"`
		var decoded string
		if err := json.Unmarshal([]byte(text), &decoded); err != nil {
			t.Fatal(err)
		}
		want := !strings.ContainsAny(decoded, "\x00\uFFFD")
		if err := checkJSON("payload", []byte(`{"k":`+text+`}`), 1<<20); (err == nil) != want {
			t.Fatalf("%s: accepted is %v, want %v", text, err == nil, want)
		}
	})
}

// TestAnyEncodedValueIsScanned: the scanner finds its way through whatever encoding/json writes. 100 cases, about
// 1.5 s on a quiet machine.
func TestAnyEncodedValueIsScanned(t *testing.T) {
	t.Parallel()
	var value func(depth int) *rapid.Generator[any]
	value = func(depth int) *rapid.Generator[any] {
		scalars := []*rapid.Generator[any]{
			rapid.Just[any](nil), rapid.Bool().AsAny(), rapid.Float64().AsAny(), rapid.Int().AsAny(),
			rapid.StringMatching(`[\x01-\x{10FFFF}]*`).AsAny(),
		}
		if depth == 0 {
			return rapid.OneOf(scalars...)
		}
		inner := value(depth - 1)
		return rapid.OneOf(append(scalars, rapid.SliceOfN(inner, 0, 4).AsAny(),
			rapid.MapOfN(rapid.StringMatching(`[\x01-\x{10FFFF}]*`), inner, 0, 4).AsAny())...)
	}
	rapid.Check(t, func(t *rapid.T) {
		v := value(3).Draw(t, "value")
		if _, err := EncodePayload("payload", v, Limits{}); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzCheckJSON(f *testing.F) {
	for text := range jsonbStrings {
		f.Add([]byte(text))
	}
	for text := range jsonbNumbers {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if json.Valid(b) {
			_ = checkJSON("payload", b, 1<<20) // it must not panic
		}
	})
}
