// Package messages is the wire protocol: the protobuf messages that cross processes, and nothing else. gendurable.proto says
// what each is for, who answers it and with what; it is frozen (fields are only added), and frozen_test.go holds it.
// make proto generates the code. The package imports nothing else of this module, so that any program can speak the
// protocol, with or without the Go client of package cluster.
package messages

import (
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Level is the level of the protocol that this code speaks; see NodeInfo in gendurable.proto. It rises with a field or a
// message that a sender may need to be understood.
const Level = 1

// Request is what a gateway answers.
type Request interface {
	proto.Message
	// GetId is the id that the caller chose.
	GetId() string
}

// Reply is what it answers with.
type Reply interface {
	proto.Message
	// GetRequestId is the id of the request.
	GetRequestId() string
}

// Requests lists one of each request that a gateway answers. Poke and Notice, which are not answered, are not among them.
func Requests() []Request {
	return []Request{new(Insert), new(InsertMany), new(Signal), new(SignalMany), new(Cancel), new(Await), new(Get), new(Hello)}
}

// Replies lists one of each reply.
func Replies() []Reply {
	return []Reply{new(Inserted), new(InsertedMany), new(Signaled), new(SignaledMany), new(Cancelled), new(Settled), new(Got),
		new(NodeInfo), new(Refused)}
}

// NeededLevel is the level that a request says its reader must have; 0 when it says nothing.
func NeededLevel(r Request) uint32 {
	if l, ok := r.(interface{ GetLevel() uint32 }); ok {
		return l.GetLevel()
	}
	return 0
}

// NameOf is the full name of a message's type, as it stands on the wire.
func NameOf(m proto.Message) protoreflect.FullName { return m.ProtoReflect().Descriptor().FullName() }
