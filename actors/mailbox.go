package actors

import (
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
)

// mailbox is the library's unbounded one behind a door that stays shut until the actor has been spawned.
//
// The library makes an actor's name known before its mailbox has a dispatcher. A message that is sent to the name
// in between (a queue's steps greet their scheduler by its name while the supervisor spawns it) is a nil dereference
// on the sender's goroutine, be it the host's.
type mailbox struct {
	actor.Mailbox

	// open is set once and for all. Invariant: only under mu, when early is empty.
	open atomic.Bool
	mu   sync.Mutex
	// early are the posts that came before, in order, but Started, which goes first: an actor sees nothing before it.
	early []func()
}

func newMailbox() actor.Mailbox { return &mailbox{Mailbox: actor.Unbounded()()} }

func (m *mailbox) PostUserMessage(message any) {
	if m.open.Load() || !m.keep(func() { m.Mailbox.PostUserMessage(message) }, false) {
		m.Mailbox.PostUserMessage(message)
	}
}

func (m *mailbox) PostSystemMessage(message any) {
	_, started := message.(*actor.Started)
	if m.open.Load() || !m.keep(func() { m.Mailbox.PostSystemMessage(message) }, started) {
		m.Mailbox.PostSystemMessage(message)
	}
}

// keep remembers a post for later, unless the door has been opened meanwhile.
func (m *mailbox) keep(post func(), first bool) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.open.Load():
		return false
	case first:
		m.early = append([]func(){post}, m.early...)
	default:
		m.early = append(m.early, post)
	}
	return true
}

// Start is the last thing that a spawn does with a mailbox.
func (m *mailbox) Start() {
	m.Mailbox.Start()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, post := range m.early {
		post()
	}
	m.early = nil
	m.open.Store(true)
}
