package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"golang.org/x/sync/semaphore"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/messages"
)

// The defaults of ClientConfig.
const (
	DefaultEngine   = "gendurable"
	DefaultInFlight = 256
	DefaultTry      = 5 * time.Second
	DefaultPatience = 30 * time.Second
)

// ErrNoGateway: no gateway gave an answer within ClientConfig.Patience. Whether the request was carried out is not known; with
// the same RequestID or DedupKey it can be repeated without harm.
var ErrNoGateway = errors.New("gendurable: no gateway answers")

// ErrUnsupported: the gateways are of a version that is too old for the request.
var ErrUnsupported = errors.New("gendurable: the gateway is too old for this request")

// ClientConfig describes a Client. Without a System it needs at least one gateway's address.
type ClientConfig struct {
	// Config is how this process is reached: gateways connect to it for their replies.
	Config
	// Engine is the name of the engine whose gateways are asked, its Config.Name. Default "gendurable".
	Engine string
	// Gateways are addresses of nodes that run the engine, its Engine.Address. One is asked at a time; the next when
	// it does not answer. Default: the gateway in System.
	Gateways []string
	// System is the host's own actor system. If gateways elsewhere are asked it has a Remote that was started before its
	// actors, with the options of NewFirewall, and Config says nothing of how it is reached. Default: a system of the
	// client's own, which Close ends.
	System *actor.ActorSystem
	// MaxPayload is the largest encoded state or signal payload in bytes. Default 1 MiB, at most 16 MiB.
	MaxPayload int
	// InFlight bounds the requests that wait for an answer at one time, Await not counted; further calls wait for
	// their turn. Default 256.
	InFlight int
	// Try is how long the answer to one message is waited for, before it is sent again. Default 5 s.
	Try time.Duration
	// Patience is how long a call goes on trying, if its context lasts. Await goes on as long as its context. Default 30 s.
	Patience time.Duration
	// Logger receives what the remote and the firewall say. Default slog.Default().
	Logger *slog.Logger
}

// Client inserts, signals, awaits, reads and cancels instances through the gateways of an engine: without a database, from
// any process that reaches one. It has the methods of gendurable.Client, but those in transactions, with the same
// types and refusals. All methods are safe for concurrent use.
//
// A message may be lost, and so may its answer. The client then sends the request again, to the same gateway or another one,
// under the same id, so that nothing is done twice: each insert has a RequestID, and each signal a DedupKey, made up
// by the client if it was given none.
type Client struct {
	cfg    ClientConfig
	system *actor.ActorSystem
	remote *Remote // nil: the host's system
	limits fsm.Limits
	// at is the index of the gateway that is asked first; it moves on when that one does not answer.
	at atomic.Uint32
	// token and n make ids and names that nobody else makes.
	token string
	n     atomic.Uint64
	calls *semaphore.Weighted
	bytes *semaphore.Weighted
	done  context.Context
	close context.CancelFunc
}

// maxBytes bounds what one client has on its way: a batch of any of it fits into a gRPC message.
const maxBytes = 40 << 20

// NewClient returns a client. It does not wait for a gateway to be there. Close it when it has its own system.
func NewClient(cfg ClientConfig) (*Client, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	var token [8]byte
	if _, err := rand.Read(token[:]); err != nil {
		return nil, fmt.Errorf("gendurable: make a client's id: %w", err)
	}
	c := &Client{
		cfg: cfg, system: cfg.System, limits: fsm.Limits{MaxPayload: cfg.MaxPayload}, token: hex.EncodeToString(token[:]),
		calls: semaphore.NewWeighted(int64(cfg.InFlight)), bytes: semaphore.NewWeighted(maxBytes),
	}
	if c.system == nil {
		c.system = actors.NewSystem(cfg.Logger)
		var err error
		if c.remote, err = OpenRemote(c.system, cfg.Config, cfg.Logger); err != nil {
			return nil, err
		}
	}
	c.done, c.close = context.WithCancel(context.Background())
	return c, nil
}

// fill validates and fills in the defaults.
func (c *ClientConfig) fill() error {
	var errs []error
	refuse := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{instance.ErrInvalid}, args...)...))
	}
	if c.Engine == "" {
		c.Engine = DefaultEngine
	}
	if err := fsm.CheckName("Engine", c.Engine); err != nil {
		errs = append(errs, err)
	}
	if len(c.Gateways) == 0 && c.System == nil {
		refuse("Gateways: name the address of at least one node (Engine.Address there), or hand in the System that has one")
	}
	for _, g := range c.Gateways {
		if host, port, err := hostPort(g); err != nil || host == "" || port == 0 {
			refuse("Gateways: %q must be host:port", g)
		}
	}
	if c.System != nil && len(c.Gateways) > 0 && c.System.Address() == unreachable {
		refuse("System: has no Remote that was started, so gateways elsewhere cannot answer; see OpenRemote")
	}
	if c.System != nil && (c.Address != "" || c.Advertise != "" || c.TLS != nil || c.Allow != nil) {
		refuse("System: is reached as its own Remote says; leave Address, Advertise, TLS and Allow empty")
	}
	if c.MaxPayload < 0 || c.MaxPayload > 16<<20 {
		refuse("MaxPayload %d: must be between 1 byte and 16 MiB", c.MaxPayload)
	}
	if c.InFlight < 0 || c.Try < 0 || c.Patience < 0 {
		refuse("InFlight %d, Try %v, Patience %v: must be positive", c.InFlight, c.Try, c.Patience)
	}
	if c.InFlight == 0 {
		c.InFlight = DefaultInFlight
	}
	if c.Try == 0 {
		c.Try = DefaultTry
	}
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	return errors.Join(errs...)
}

// Close ends the client: calls in progress fail with ErrStopped. Its own actor system and connections end with it; the
// host's stay.
func (c *Client) Close() {
	if c.done.Err() != nil {
		return
	}
	c.close()
	if c.remote != nil {
		c.remote.Close()
	}
}

// Insert commits a new instance and returns its id. When the correlation key is occupied, the error is ErrDuplicate and the
// id is the occupant's. A repeated RequestID returns the first id and no error.
func (c *Client) Insert(ctx context.Context, inst fsm.Instance, opts ...fsm.InsertOption) (instance.ID, error) {
	m, err := c.insert(inst, opts)
	if err != nil {
		return 0, err
	}
	reply, err := c.call(ctx, m)
	if err != nil {
		var duplicate *instance.DuplicateError
		if errors.As(err, &duplicate) {
			return duplicate.Occupant, err
		}
		return 0, err
	}
	r, ok := reply.(*messages.Inserted)
	if !ok {
		return 0, unexpected(m, reply)
	}
	return instance.ID(r.Id), nil
}

// InsertMany commits many instances in one statement and answers in order. An occupied correlation key is an
// answer, not an error; an invalid instance fails the whole call. They are 20,000 at most, and have at most 32 MiB together.
func (c *Client) InsertMany(ctx context.Context, insts []fsm.Instance) ([]instance.InsertResult, error) {
	if err := checkMany(len(insts)); err != nil {
		return nil, err
	}
	m := &messages.InsertMany{Id: c.id()}
	for i, inst := range insts {
		in, err := c.insert(inst, nil)
		if err != nil {
			return nil, fmt.Errorf("instance %d of %d: %w", i, len(insts), err)
		}
		m.Inserts = append(m.Inserts, in)
	}
	if len(m.Inserts) == 0 {
		return nil, nil
	}
	reply, err := c.call(ctx, m)
	if err != nil {
		return nil, err
	}
	r, ok := reply.(*messages.InsertedMany)
	if !ok || len(r.Results) != len(insts) {
		return nil, unexpected(m, reply)
	}
	results := make([]instance.InsertResult, len(insts))
	for i, a := range r.Results {
		results[i] = instance.InsertResult{ID: instance.ID(a.GetId()), Duplicate: a.GetDuplicate(), Repeated: a.GetRepeated()}
	}
	return results, nil
}

// Signal puts a signal into the inbox of a live instance and wakes it if it awaits that name. It fails with ErrNoTarget, and
// stores nothing, when the target is unknown or terminal.
func (c *Client) Signal(ctx context.Context, to instance.Ref, name string, payload any, opts ...instance.SignalOption) error {
	d := instance.Delivery{To: to, Name: name, Payload: payload}
	for _, opt := range opts {
		opt(&d)
	}
	m, err := c.signal(d)
	if err != nil {
		return err
	}
	_, err = c.call(ctx, m)
	return err
}

// SignalMany delivers many signals in one round trip and answers one by one, in order. An invalid delivery fails the
// whole call before anything is sent. They are 20,000 at most, and have at most 32 MiB together.
func (c *Client) SignalMany(ctx context.Context, deliveries []instance.Delivery) ([]instance.SignalResult, error) {
	if err := checkMany(len(deliveries)); err != nil {
		return nil, err
	}
	m := &messages.SignalMany{Id: c.id()}
	for i, d := range deliveries {
		s, err := c.signal(d)
		if err != nil {
			return nil, fmt.Errorf("delivery %d of %d: %w", i, len(deliveries), err)
		}
		m.Signals = append(m.Signals, s)
	}
	if len(m.Signals) == 0 {
		return nil, nil
	}
	reply, err := c.call(ctx, m)
	if err != nil {
		return nil, err
	}
	r, ok := reply.(*messages.SignaledMany)
	if !ok || len(r.Results) != len(deliveries) {
		return nil, unexpected(m, reply)
	}
	results := make([]instance.SignalResult, len(deliveries))
	for i, a := range r.Results {
		results[i] = instance.SignalResult{Target: instance.ID(a.GetTarget()), Duplicate: a.GetDuplicate()}
		if a.GetTarget() == 0 {
			results[i].Err = fmt.Errorf("%w: %s", instance.ErrNoTarget, instance.Describe(deliveries[i].To))
		}
	}
	return results, nil
}

// Cancel ends an instance as failed with "cancelled: " and the reason. It fails with ErrNotFound when there is no such
// instance; a repeated Cancel is harmless. With instance.Cascade (gendurable.Cascade) its descendants follow. A key is resolved
// once, by a read before: a request that is sent again must not meet the key's next occupant.
func (c *Client) Cancel(ctx context.Context, ref instance.Ref, reason string, opts ...instance.CancelOption) (instance.Cancellation, error) {
	to, err := target(ref)
	if err != nil {
		return "", err
	}
	if to.GetKey() != "" {
		occupant, err := c.Get(ctx, ref)
		if err != nil {
			return "", err
		}
		to = &messages.Target{Address: &messages.Target_Id{Id: int64(occupant.ID)}}
	}
	m := &messages.Cancel{Id: c.id(), Target: to, Reason: fsm.CleanError(reason), Cascade: instance.CancellingOf(opts).Cascade}
	reply, err := c.call(ctx, m)
	if err != nil {
		return "", err
	}
	switch r, _ := reply.(*messages.Cancelled); r.GetResult() {
	case messages.Cancelled_ENDED:
		return instance.CancelEnded, nil
	case messages.Cancelled_REQUESTED:
		return instance.CancelRequested, nil
	case messages.Cancelled_TOO_LATE:
		return instance.CancelTooLate, nil
	}
	return "", unexpected(m, reply)
}

// Get reads one instance. It fails with ErrNotFound when there is none (any more).
func (c *Client) Get(ctx context.Context, ref instance.Ref) (*instance.Instance, error) {
	to, err := target(ref)
	if err != nil {
		return nil, err
	}
	m := &messages.Get{Id: c.id(), Target: to}
	reply, err := c.call(ctx, m)
	if err != nil {
		return nil, err
	}
	r, ok := reply.(*messages.Got)
	if !ok {
		return nil, unexpected(m, reply)
	}
	return instanceOf(r), nil
}

// Await waits until the instance settles: it is done, failed, or parked for a signal (see UntilTerminal). A key is resolved
// once, by the first gateway that answers. When ctx ends first the error is ErrStillBusy, which also matches ctx's own error.
// A gateway that is lost meanwhile is none of the caller's business: another one is asked.
func (c *Client) Await(ctx context.Context, ref instance.Ref, opts ...instance.AwaitOption) (instance.Settled, error) {
	to, err := target(ref)
	if err != nil {
		return instance.Settled{}, err
	}
	m := &messages.Await{Target: to, UntilTerminal: instance.AwaitingOf(opts).UntilTerminal}
	for {
		m.Id = c.id()
		m.TimeoutMicros = awaitTry.Microseconds()
		reply, err := c.await(ctx, m)
		var refused *RefusedError
		switch {
		case err == nil:
			r, ok := reply.(*messages.Settled)
			if !ok {
				return instance.Settled{ID: instance.ID(m.Target.GetId())}, unexpected(m, reply)
			}
			return instance.Settled{ID: instance.ID(r.Id), Status: fsm.Status(r.Status), Result: r.Result, Error: r.Error, Awaits: r.Awaits}, nil
		case ctx.Err() != nil:
			id := instance.ID(m.Target.GetId())
			return instance.Settled{ID: id}, fmt.Errorf("%w: %w: %s", instance.ErrStillBusy, context.Cause(ctx), instance.Describe(ref))
		case errors.As(err, &refused) && errors.Is(err, instance.ErrStillBusy):
			if refused.Instance > 0 {
				// From now on by id: the key may get another occupant.
				m = &messages.Await{Target: &messages.Target{Address: &messages.Target_Id{Id: int64(refused.Instance)}}, UntilTerminal: m.UntilTerminal}
			} else {
				m = &messages.Await{Target: m.Target, UntilTerminal: m.UntilTerminal}
			}
		default:
			return instance.Settled{ID: instance.ID(m.Target.GetId())}, err
		}
	}
}

// Poke tells schedulers that the queues have runnable work: a hint, which may get lost. It does not wait.
func (c *Client) Poke(queues ...string) {
	if len(queues) > 0 && c.done.Err() == nil {
		_ = guarded(func() { c.system.Root.Send(c.gateway(c.at.Load()), &messages.Poke{Queues: queues}) })
	}
}

// Hello asks a gateway who it is, that of the node which this client asks just now.
func (c *Client) Hello(ctx context.Context) (*messages.NodeInfo, error) {
	m := &messages.Hello{Id: c.id()}
	reply, err := c.call(ctx, m)
	if err != nil {
		return nil, err
	}
	r, ok := reply.(*messages.NodeInfo)
	if !ok {
		return nil, unexpected(m, reply)
	}
	return r, nil
}

func unexpected(request, reply any) error {
	return fmt.Errorf("gendurable: the gateway answered a %T with a %T", request, reply)
}
