package cluster

import (
	"log/slog"
	"strings"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/extensions"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/gendurable/gendurable/messages"
)

// Firewall stands between the network and the actors of a system, as options of the gRPC server that the actor library's
// remote runs. The library takes what peers send at their word: a type that it does not know, or an index out of bounds, ends
// the process, and any named actor can be stopped from outside. The firewall looks at each message before the library does
// and lets through only
//
//   - requests and pokes to gateways, pokes and notices to the actors of queues;
//   - replies to what a Client awaits them with, whose name nobody can guess;
//   - for targets that are not an engine's, what Allow allows.
//
// Everything else is dropped and counted: system messages, events, types that this process does not know, bytes that do
// not decode, messages for another node or in another's name, batches of unlikely size. So is every unary call.
//
// There is one for each ActorSystem. Its methods are safe for concurrent use.
type Firewall struct {
	system *actor.ActorSystem
	allow  func(target, message string) bool
	log    *slog.Logger
	counts firewallCounts
	peers  atomic.Int64
	outbox *Outbox
	// closed: the Remote behind it was ours, and is no more.
	closed atomic.Bool
}

// FirewallStats are what a firewall has counted. PeersNow is a gauge.
type FirewallStats struct {
	// Passed are messages that were let through.
	Passed int64
	// Denied are messages for a target that does not take them from outside, or not at all.
	Denied int64
	// Unknown are messages of a type that this process does not know: a newer version sends them, or an attacker.
	Unknown int64
	// Malformed are messages with an index out of bounds or bytes that do not decode, and streams that speak out of turn.
	Malformed int64
	// Forged are messages for another node, or from a sender that is not at the address that its node announced.
	Forged int64
	// Oversized are batches with more messages or more bytes, and messages with more parts, than a peer of ours ever sends.
	Oversized int64
	// Calls are unary calls, which nothing of ours makes.
	Calls int64
	// Panics are panics of the library under a message that was let through. The stream ends, the process does not.
	Panics int64
	// PeersNow are open streams of peers; PeersRefused are those beyond the bound.
	PeersNow, PeersRefused int64
}

type firewallCounts struct {
	passed, denied, unknown, malformed, forged, oversized, calls, panics, refused atomic.Int64
}

// FirewallConfig describes a Firewall. The zero value is good.
type FirewallConfig struct {
	// Allow is as in Config.
	Allow func(target, message string) bool
	// Logger is told of what is dropped, seldom. Default slog.Default().
	Logger *slog.Logger
}

const (
	// maxEnvelopes is the most messages in a batch; the library's own default for sending is 1,000, ours is batchSize.
	maxEnvelopes = 1000
	// maxPeers bounds the open streams. A peer has one.
	maxPeers = 4096
)

var firewallExtension = extensions.NextExtensionID()

// NewFirewall makes the firewall of an actor system. A host with a Remote of its own gives its ServerOptions to
// that Remote; engines that are started in the system afterwards find it. Otherwise Start makes one by itself.
func NewFirewall(system *actor.ActorSystem, cfg FirewallConfig) *Firewall {
	f := &Firewall{system: system, allow: cfg.Allow, log: cfg.Logger, outbox: newOutbox(maxWaiting, maxOutbox)}
	if f.log == nil {
		f.log = slog.Default()
	}
	system.Extensions.Register(f)
	return f
}

// ExtensionID implements the library's extension.
func (f *Firewall) ExtensionID() extensions.ExtensionID { return firewallExtension }

// firewallOf returns the system's firewall, nil when it has none.
func firewallOf(system *actor.ActorSystem) *Firewall {
	f, _ := system.Extensions.Get(firewallExtension).(*Firewall)
	return f
}

// Stats returns a snapshot of the counters.
func (f *Firewall) Stats() FirewallStats {
	c := &f.counts
	return FirewallStats{
		Passed: c.passed.Load(), Denied: c.denied.Load(), Unknown: c.unknown.Load(), Malformed: c.malformed.Load(),
		Forged: c.forged.Load(), Oversized: c.oversized.Load(), Calls: c.calls.Load(), Panics: c.panics.Load(),
		PeersNow: f.peers.Load(), PeersRefused: c.refused.Load(),
	}
}

// drop counts something that is not let through. It is logged when its counter reaches a power of two: an attacker must not
// be able to fill a disk.
func (f *Firewall) drop(counter *atomic.Int64, peer, what string, attrs ...any) {
	n := counter.Add(1)
	if n&(n-1) == 0 {
		f.log.Warn("gendurable: the firewall dropped "+what, append([]any{"peer", peer, "count", n}, attrs...)...)
	}
}

// filter removes from a batch what the node does not take.
func (f *Firewall) filter(peer, announced string, b *remote.MessageBatch) {
	if len(b.Envelopes) > maxEnvelopes {
		f.drop(&f.counts.oversized, peer, "an oversized batch", "messages", len(b.Envelopes))
		b.Envelopes = nil
		return
	}
	kept, left := b.Envelopes[:0], maxBatchElements
	for _, e := range b.Envelopes {
		if f.take(peer, announced, b, e, &left) {
			kept = append(kept, e)
		}
	}
	b.Envelopes = kept
	f.counts.passed.Add(int64(len(kept)))
}

// take decides about one message. left is how many elements the batch may still have.
func (f *Firewall) take(peer, announced string, b *remote.MessageBatch, e *remote.MessageEnvelope, left *int) bool {
	if e == nil || !within(e.Target, len(b.Targets)) || !within(e.TypeId, len(b.TypeNames)) ||
		e.Sender != 0 && !within(e.Sender-1, len(b.Senders)) || e.SerializerId != 0 {
		f.drop(&f.counts.malformed, peer, "a message with an index out of bounds")
		return false
	}
	self := f.system.Address()
	target := b.Targets[e.Target]
	if target.GetAddress() != self {
		f.drop(&f.counts.forged, peer, "a message for another node", "address", target.GetAddress())
		return false
	}
	// A reply goes to where the sender says it is. Without this a peer could have it sent to one of our own actors, which
	// would take it as a message from inside, or have us connect to wherever it likes.
	if e.Sender != 0 {
		if at := b.Senders[e.Sender-1].GetAddress(); at == self || at != announced {
			f.drop(&f.counts.forged, peer, "a message in another's name", "sender", at, "announced", announced)
			return false
		}
	}
	name := protoreflect.FullName(b.TypeNames[e.TypeId])
	if !f.allowed(target.GetId(), name) {
		f.drop(&f.counts.denied, peer, "a message that its target does not take", "target", target.GetId(), "type", string(name))
		return false
	}
	kind, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		f.drop(&f.counts.unknown, peer, "a message of an unknown type", "type", string(name))
		return false
	}
	n := elements(e.MessageData, kind.Descriptor(), maxElements)
	if *left -= n; n > maxElements || *left < 0 {
		f.drop(&f.counts.oversized, peer, "an oversized message", "type", string(name))
		return false
	}
	// The library would end the stream, and with it whatever else is in the batch.
	if err := proto.Unmarshal(e.MessageData, kind.New().Interface()); err != nil {
		f.drop(&f.counts.malformed, peer, "a message that does not decode", "type", string(name))
		return false
	}
	return true
}

func within(i int32, n int) bool { return i >= 0 && int(i) < n }

const (
	enginePrefix = "gendurable/" // of the names of all actors of all engines
	// futurePrefix is that of a Client's inboxes, before its random token. The library's own futures are future$1, future$2, …:
	// it waits by them for answers of its own actors, and panics when somebody else's comes first.
	futurePrefix = "future/"
	// unreachable is the address of a system without a Remote, and a name for the own system in every other.
	unreachable = "nonhost"
)

var (
	requestNames = namesOf(messages.Requests())
	replyNames   = namesOf(messages.Replies())
	pokeName     = messages.NameOf(new(messages.Poke))
	noticeName   = messages.NameOf(new(messages.Notice))
	deadName     = messages.NameOf(new(actor.DeadLetterResponse))
)

func namesOf[M proto.Message](list []M) map[protoreflect.FullName]bool {
	names := make(map[protoreflect.FullName]bool)
	for _, m := range list {
		names[messages.NameOf(m)] = true
	}
	return names
}

// allowed is the allow list: pairs of a target and a type.
func (f *Firewall) allowed(target string, name protoreflect.FullName) bool {
	if rest, ours := strings.CutPrefix(target, enginePrefix); ours {
		// gendurable/<engine>/...; neither the engine's name nor a queue's has a slash, see package actors.
		_, path, _ := strings.Cut(rest, "/")
		queue, isQueue := strings.CutPrefix(path, "queue/")
		switch {
		case path == "gateway":
			return requestNames[name] || name == pokeName
		case path == "poke":
			return name == pokeName
		case isQueue && !strings.Contains(queue, "/"): // and not what is below the queue
			return name == pokeName || name == noticeName
		}
		return false
	}
	switch {
	case strings.HasPrefix(target, futurePrefix) && (replyNames[name] || name == deadName):
		return true
	case target == "eventstream": // whatever is sent there is an event that everybody believes
		return false
	}
	return f.allow != nil && f.allow(target, string(name))
}
