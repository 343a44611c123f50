package scheduler

import (
	"maps"
	"slices"
	"time"

	"github.com/asynkron/protoactor-go/actor"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/scheduler/core"
)

// scheduler is one incarnation of the actor that decides.
type scheduler struct {
	cfg         *Config
	life        *life
	steps       *actor.PID
	incarnation int64

	core  *core.Core
	self  *actor.PID
	root  *actor.RootContext
	timer *time.Timer
	armed time.Time // when the timer fires; zero = it does not
	// awaits is the earlier life whose look at what is unheld is on its way; 0 = none is.
	awaits int64
}

type (
	// answer is what a call to the database came to.
	answer struct {
		actors.Quiet
		incarnation int64
		event       core.Event
	}
	// tick is the timer's message.
	tick struct {
		actors.Quiet
		incarnation int64
	}
	// stepsRestarted tells that the steps actor has forgotten what it ran.
	stepsRestarted struct{ actors.Quiet }
)

func newScheduler(cfg *Config, life *life, steps *actor.PID) *scheduler {
	return &scheduler{cfg: cfg, life: life, steps: steps, incarnation: life.schedulers.Add(1)}
}

func (s *scheduler) Receive(ctx actor.Context) {
	switch m := ctx.Message().(type) {
	case *actor.Started:
		s.start(ctx)
	case *actor.Stopping, *actor.Restarting:
		s.stop()
	case actors.StepsEnded:
		s.on(core.Ended{Rows: m.Ended})
	case handedOver:
		if rows := s.life.handed.take(); len(rows) > 0 {
			s.on(core.Handed{Rows: rows})
			clear(rows)
		}
	case returning:
		switch {
		case m.life == s.incarnation:
			s.on(core.Returning{Rows: m.rows})
		case m.life == 0 && s.core.Known():
			s.returning()
		}
	case answer:
		s.answered(m)
	case tick:
		if m.incarnation == s.incarnation {
			s.armed = time.Time{}
			s.on(core.Tick{})
		}
	case actors.Poke:
		s.on(core.Poked{In: m.In})
	case actors.LimitsInForce:
		s.on(core.InForce{Config: m.Config})
	case actors.SlotsFreed:
		s.on(core.Freed{Keys: m.Keys})
	case actors.CancelRequested:
		s.on(core.CancelRequested{ID: m.ID, Claim: m.Claim, Reason: m.Reason})
	case actors.CancelsRequested:
		s.on(core.CancelsRequested{Cancels: m.Cancels})
	case actors.QueuePaused:
		s.on(core.Paused{})
	case actors.Running:
		if m.Life == s.incarnation {
			s.on(core.Running{IDs: m.IDs, Committing: m.Committing})
			s.returning() // those that came before it was known what runs
		}
	case stepsRestarted:
		s.on(core.StepsRestarted{})
	case actors.Drain:
		s.drain()
	case actors.Crash:
		panic("told to crash")
	}
}

// start begins a life. The first one has the identity for itself; a later one finds what the earlier left.
func (s *scheduler) start(ctx actor.Context) {
	s.self, s.root = ctx.Self(), ctx.ActorSystem().Root
	cfg := s.cfg.core()
	cfg.Gates = slices.Collect(maps.Keys(*s.life.gates.Load()))
	s.core = core.New(cfg, s.incarnation > 1, time.Now())
	if s.awaits = s.life.looking.Load(); s.awaits > 0 {
		s.core.AwaitLook()
	}
	if s.cfg.LeftOut != nil {
		s.cfg.LeftOut(nil) // this life has none yet
	}
	clear(s.life.returning.take()) // they ask again: see steps
	clear(s.life.handed.take())    // an earlier life was told of them, or has died of it: they count as running until they end
	s.on(core.Tick{})
	s.drain()
}

func (s *scheduler) stop() {
	if s.timer != nil {
		s.timer.Stop()
	}
	c := s.cfg.QueueCounters
	c.BufferedNow.Store(0)
	if s.core != nil {
		c.UnknownSteps.Add(-int64(s.core.Misfits())) // the next incarnation finds out anew
	}
}

func (s *scheduler) drain() {
	if left, draining := s.life.drainTime(time.Now()); draining {
		s.on(core.Drain{Timeout: left})
	}
}

// answered takes an answer. What an earlier life asked for is of no interest, but for a claim, whose rows are ours and known to
// nobody, and for a look at what is unheld, which this life has waited for.
func (s *scheduler) answered(m answer) {
	if m.incarnation == s.incarnation {
		s.on(m.event)
		return
	}
	switch r := m.event.(type) {
	case core.ClaimResult:
		if r.Err != nil || len(r.Rows) > 0 || r.Pending > 0 {
			s.on(core.Orphaned{})
		}
	case core.AdmitResult:
		s.on(core.Orphaned{})
	case core.UnheldResult:
		if m.incarnation == s.awaits {
			s.awaits = 0
			s.on(r)
		}
	}
}

func (s *scheduler) returning() {
	if rows := s.life.returning.take(); len(rows) > 0 {
		s.on(core.Returning{Rows: rows})
		clear(rows)
	}
}

// on feeds the core and does what it asks for.
func (s *scheduler) on(e core.Event) {
	now := time.Now()
	fx := s.core.On(e, now)
	s.life.tight.Store(s.core.Tight()) // before the steps that this starts could ask
	s.life.brisk.Store(s.core.Brisk(now))
	s.life.paused.Store(s.core.Paused())
	s.tell(fx)
	s.call(fx)
	s.arm(fx.Wake, now)
	s.note(fx)
	if fx.Drained {
		s.life.over()
	}
}

// tell sends the steps actor its part.
func (s *scheduler) tell(fx *core.Effects) {
	for _, c := range fx.Cancel {
		s.root.Send(s.steps, actors.CancelStep{ID: c.ID, Cause: c.Cause})
	}
	if len(fx.Abandon) > 0 {
		s.root.Send(s.steps, abandon{ids: fx.Abandon})
	}
	if len(fx.Start) > 0 {
		start := make([]actors.RunStep, len(fx.Start))
		for i, row := range fx.Start {
			start[i] = actors.RunStep{Claimed: row, Spec: s.cfg.Specs(row.Machine, row.Version)}
		}
		s.root.Send(s.steps, actors.RunSteps{Steps: start})
	}
	if len(fx.Resume) > 0 {
		s.root.Send(s.steps, resume{rows: fx.Resume})
	}
	if fx.AskRunning {
		s.root.Send(s.steps, actors.ListRunning{Life: s.incarnation})
	}
	if len(fx.LostSlots) > 0 && s.cfg.Limiter != nil {
		s.root.Send(s.cfg.Limiter, actors.CreditSlots{Lost: fx.LostSlots})
	}
}

// arm sets the timer, unless it fires before that anyway: an early tick does no harm.
func (s *scheduler) arm(at, now time.Time) {
	if at.IsZero() || !s.armed.IsZero() && !s.armed.After(at) {
		return
	}
	s.armed = at
	d := max(0, at.Sub(now))
	if s.timer != nil && s.timer.Stop() {
		s.timer.Reset(d)
		return
	}
	root, self, message := s.root, s.self, tick{incarnation: s.incarnation}
	s.timer = time.AfterFunc(d, func() { root.Send(self, message) })
}

// note counts and logs.
func (s *scheduler) note(fx *core.Effects) {
	c := s.cfg.QueueCounters
	c.Lost.Add(int64(fx.Lost))
	c.CommittingNow.Store(int64(s.core.Handed())) // first: who finds nothing running finds this
	c.RunningNow.Store(int64(s.core.Running()))
	c.BufferedNow.Store(int64(s.core.Buffered()))
	if fx.Lost > 0 {
		s.cfg.Logger.Warn("gendurable: rows were lost to another worker, their steps were cancelled",
			"queue", s.cfg.Queue, "rows", fx.Lost)
	}
	if fx.Misfits != nil && s.cfg.LeftOut != nil {
		s.cfg.LeftOut(fx.Misfits)
	}
	c.UnknownSteps.Add(int64(len(fx.Unknown) - fx.Forgiven))
	for _, u := range fx.Unknown {
		s.cfg.Logger.Warn("gendurable: this process cannot run a step and leaves it to others; "+
			"register the machine's version here, or deploy one whose state type fits",
			"queue", s.cfg.Queue, "machine", u.Machine, "version", u.Version, "step", u.Step)
	}
	if fx.Outage != nil {
		s.cfg.Logger.Warn("gendurable: the statements of a queue fail, it tries on", "queue", s.cfg.Queue, "error", fx.Outage)
	}
	if fx.Recovered {
		s.cfg.Logger.Info("gendurable: the statements of a queue succeed again", "queue", s.cfg.Queue)
	}
}
