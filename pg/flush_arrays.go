package pg

import (
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// The column types of batches that pgx has no fast way for: each is one array parameter.

// texts is a text[] in which the empty string stands for NULL.
type texts []string

func (a texts) Dimensions() []pgtype.ArrayDimension { return flat(len(a)) }
func (a texts) IndexType() any                      { return "" }
func (a texts) Index(i int) any {
	if a[i] == "" {
		return nil
	}
	return a[i]
}

// documents is a text[] of JSON documents in which nil stands for NULL.
type documents [][]byte

func (a documents) Dimensions() []pgtype.ArrayDimension { return flat(len(a)) }
func (a documents) IndexType() any                      { return []byte(nil) }
func (a documents) Index(i int) any {
	if a[i] == nil {
		return nil
	}
	return a[i]
}

// times is a timestamptz[] in which the zero time stands for NULL.
type times []time.Time

func (a times) Dimensions() []pgtype.ArrayDimension { return flat(len(a)) }
func (a times) IndexType() any                      { return time.Time{} }
func (a times) Index(i int) any {
	if a[i].IsZero() {
		return nil
	}
	return a[i]
}

// numbers is an int[] in which zero stands for NULL.
type numbers []int32

func (a numbers) Dimensions() []pgtype.ArrayDimension { return flat(len(a)) }
func (a numbers) IndexType() any                      { return int32(0) }
func (a numbers) Index(i int) any {
	if a[i] == 0 {
		return nil
	}
	return a[i]
}

// spans is a bigint[] of microseconds in which zero stands for NULL.
type spans []time.Duration

func (a spans) Dimensions() []pgtype.ArrayDimension { return flat(len(a)) }
func (a spans) IndexType() any                      { return int64(0) }
func (a spans) Index(i int) any {
	if a[i] == 0 {
		return nil
	}
	return micros(a[i])
}

func flat(n int) []pgtype.ArrayDimension {
	if n == 0 {
		return []pgtype.ArrayDimension{} // an empty array; nil would be NULL
	}
	return []pgtype.ArrayDimension{{Length: int32(n), LowerBound: 1}}
}

// micros is a duration as the statements take it. What is shorter than a microsecond counts as one, so that a delay that
// was asked for never reads as none.
func micros(d time.Duration) int64 {
	if d > 0 && d < time.Microsecond {
		return 1
	}
	return d.Microseconds()
}

// nameArray writes names in the text form of a text[]: arrays of arrays of different lengths cannot be a parameter.
// No names = the empty string, which the array types here send as NULL.
func nameArray(names []string) string {
	if len(names) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteByte('{')
	for i, name := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteByte('"')
		for _, c := range []byte(name) {
			if c == '"' || c == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(c)
		}
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// idArray writes ids in the text form of a bigint[]; none = the empty string.
func idArray(ids []int64) string {
	if len(ids) == 0 {
		return ""
	}
	b := make([]byte, 0, 12*len(ids))
	for i, id := range ids {
		if i == 0 {
			b = append(b, '{')
		} else {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, id, 10)
	}
	return string(append(b, '}'))
}
