package gendurable

import "github.com/gendurable/gendurable/instance"

// Ref addresses an instance: an ID, or the correlation Key that a live instance occupies.
type Ref = instance.Ref

// ID is the identity of an instance, given by the database and never reused.
type ID = instance.ID

// Key is a correlation key. It addresses the instance that occupies it just now.
type Key = instance.Key

// address checks an address and takes it apart: an id, or a key that is not empty.
func address(ref Ref) (id int64, key string, err error) { return instance.Address(ref) }
