package instance

import (
	"fmt"

	"github.com/gendurable/gendurable/fsm"
)

// Ref addresses an instance: an ID, or the correlation Key that a live instance occupies.
type Ref interface {
	ref() (id int64, key string, err error)
}

// Address checks an address and takes it apart: an id, or a key that is not empty. Its error matches ErrInvalid.
func Address(ref Ref) (id int64, key string, err error) {
	if ref == nil {
		return 0, "", fmt.Errorf("%w: the address of an instance is nil; it is an ID or a Key", ErrInvalid)
	}
	return ref.ref()
}

// Describe names an address in an error.
func Describe(ref Ref) string {
	if k, ok := ref.(Key); ok {
		return fmt.Sprintf("key %q", string(k))
	}
	return fmt.Sprintf("instance %v", ref)
}

// ID is the identity of an instance, given by the database and never reused.
type ID int64

func (i ID) ref() (int64, string, error) {
	if i <= 0 {
		return 0, "", fmt.Errorf("%w: instance id %d: an id is positive", ErrInvalid, int64(i))
	}
	return int64(i), "", nil
}

// Key is a correlation key. It addresses the instance that occupies it just now.
type Key string

func (k Key) ref() (int64, string, error) {
	if err := fsm.CheckKey("correlation key", string(k)); err != nil {
		return 0, "", err
	}
	return 0, string(k), nil
}
