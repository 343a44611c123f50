package core

import (
	"time"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/limiter"
	"github.com/gendurable/gendurable/pg"
)

// Event is something that happened to the queue. The time at which it happened is On's argument.
type Event interface{ event() }

type (
	// ClaimResult answers Effects.Claim.
	ClaimResult struct {
		Rows []pg.Claimed
		Err  error
		// Unknown says that the claim failed in a way that leaves open whether rows were claimed (the connection
		// was lost, the call was given up).
		Unknown bool
		// Took is the length of the round trip.
		Took time.Duration
		// Pending says that so many rows more were claimed, of which the limiter decides: an AdmitResult follows.
		Pending int
		// Looked is how many rows could have been claimed, if that is more than were.
		Looked int
		// Gained is how many of the rows, pending ones included, are among those that Effects.Passed says.
		Gained int
		// Ahead answers Effects.Ahead: in what time the next row becomes eligible that is scheduled for later; 0 = none does.
		Ahead time.Duration
		// Priorities, At and the place of the least urgent row, pending ones included, answer Effects.Survey.
		Priorities   []int16
		At           time.Time
		LastPriority int16
		LastEligible time.Time
	}
	// AdmitResult follows a ClaimResult with Pending rows: these rows, and what the limiter said of each. With an error it
	// is not known.
	AdmitResult struct {
		Rows      []pg.Claimed
		Decisions []limiter.Decision
		Err       error
	}
	// InForce says which limits there are.
	InForce struct{ Config limiter.Config }
	// Freed says that slots of gates' keys were given back by this process.
	Freed struct{ Keys []string }
	// Handed says that the outcomes of running rows are with a flusher: their code has ended. As a rule each precedes the row's
	// Ended; one that comes later says nothing.
	Handed struct{ Rows []HandedRow }
	// Returning says that rows which have given up their slots have to run code again. It may be repeated.
	Returning struct{ Rows []ReturningRow }
	// Ended says that started rows are through, in whatever way.
	Ended struct{ Rows []actors.StepEnded }
	// Poked says that the queue has runnable work, or will have it In from now.
	Poked struct{ In time.Duration }
	// Tick says that the time of Effects.Wake has come. A tick that comes early or twice is harmless.
	Tick struct{}
	// BeatResult answers Effects.Beat.
	BeatResult struct {
		Beats []pg.Beat
		Err   error
	}
	// ExtendResult answers one id of Effects.Extend.
	ExtendResult struct {
		Beat pg.Beat
		Err  error
	}
	// ReleaseResult answers Effects.Release. Kept says that some rows could not be given back just now because
	// somebody holds their locks. Ending is of how many of those that were given back a cancel was requested.
	ReleaseResult struct {
		Ending int
		Kept   bool
		Err    error
	}
	// UnheldResult answers Effects.ReleaseUnheld; Kept as above.
	UnheldResult struct {
		Released int
		Kept     bool
		Err      error
	}
	// Running answers Effects.AskRunning: what runs, by the word of the actor that runs it.
	// Committing are those of the IDs whose outcome may be committed already.
	Running struct{ IDs, Committing []int64 }
	// StepsRestarted says that the actor that runs steps lost what it ran.
	StepsRestarted struct{}
	// CancelRequested says that a cancel was requested for an instance.
	CancelRequested struct {
		ID     int64
		Claim  int
		Reason string
	}
	// CancelsRequested says it of many.
	CancelsRequested struct{ Cancels []actors.CancelRequested }
	// Paused says that the queue was paused: nothing that was claimed before is to be started. The claims themselves
	// find nothing until the queue goes on; one that finds rows again is the end of the pause.
	Paused struct{}
	// Orphaned says that a claim of an earlier life of this scheduler came to its end only now.
	Orphaned struct{}
	// Drain asks for the end: see actors.Drain.
	Drain struct{ Timeout time.Duration }
)

func (ClaimResult) event()      {}
func (AdmitResult) event()      {}
func (InForce) event()          {}
func (Freed) event()            {}
func (Handed) event()           {}
func (Returning) event()        {}
func (Ended) event()            {}
func (Poked) event()            {}
func (Tick) event()             {}
func (BeatResult) event()       {}
func (ExtendResult) event()     {}
func (ReleaseResult) event()    {}
func (UnheldResult) event()     {}
func (Running) event()          {}
func (StepsRestarted) event()   {}
func (CancelRequested) event()  {}
func (CancelsRequested) event() {}
func (Paused) event()           {}
func (Orphaned) event()         {}
func (Drain) event()            {}

// HandedRow is a row of Handed, as it was claimed, that gives up its slot for the Turn-th time. Took is for how long it has held slots, in
// all; 0 when it is to run another step before it ends.
type HandedRow struct {
	Row  *pg.Claimed
	Turn int
	Took time.Duration
}

// ReturningRow is a row of Returning, as it was claimed. Turn is how often it has given up its slot. One with the next step of a chain
// can be put back instead of waiting for long.
type ReturningRow struct {
	Row   *pg.Claimed
	Turn  int
	Chain bool
}

// Resumed tells a returning row, by the Turn in which it asked, that it has a slot again, or that it is to be put back.
type Resumed struct {
	ID      int64
	Turn    int
	PutBack bool
}

// Effects is the work that an event asks for. Everything in it is to be carried out in the order of the fields.
type Effects struct {
	// Cancel cancels the contexts of running rows.
	Cancel []Cancel
	// Abandon stops waiting for these running rows; each answers with an Ended.
	Abandon []int64
	// Start runs these rows.
	Start []*pg.Claimed
	// Resume answers returning rows.
	Resume []Resumed
	// AskRunning asks for a Running event. The question follows the starts, and what ends after the answer was
	// given is reported after the answer.
	AskRunning bool
	// Release gives up these claims, whose rows go back untouched; one ReleaseResult answers for all of them.
	Release []pg.ClaimRef
	// Beat extends the leases of these ids; one BeatResult answers.
	Beat []int64
	// Extend extends the lease of each id alone; an ExtendResult answers for each.
	Extend []int64
	// ReleaseUnheld gives back every row that is claimed under this identity and is not in Held.
	ReleaseUnheld bool
	Held          []int64
	// Claim, when above 0, claims so many rows, without those in Skip and what Limits leave out, from Since on, and from Others on
	// in priorities that it does not name. Survey asks how far it looked. Ahead, when above 0, asks when the next row becomes eligible, up to that time from now.
	Claim  int
	Skip   []pg.StepRef
	Limits *pg.ClaimLimits
	Since  []pg.Lane
	Others time.Time
	// Passed is what other claims pass over while this one, which looks at everything, does not.
	Passed Passed
	Survey bool
	Ahead  time.Duration
	// Wake is when the next Tick is due; it replaces the one asked for before. Zero = none.
	Wake time.Time
	// Drained says, once, that a drain has come to its end.
	Drained bool

	// LostSlots are slots of gates of buffered rows that were lost: whoever took the rows gives them back.
	LostSlots []limiter.Slot

	// Lost is how many rows turned out to be lost; Unknown the steps that this process was found unable to run, Forgiven how many
	// of which are forgotten; Misfits, when not nil, are all of them that are left;
	// Outage and Recovered tell the beginning and the end of a time in which the database does not answer.
	Lost      int
	Unknown   []pg.StepRef
	Forgiven  int
	Misfits   []pg.StepRef
	Outage    error
	Recovered bool
}

// Cancel is one context to cancel.
type Cancel struct {
	ID    int64
	Cause error
}

// reset empties the effects. Slices that are handed to others for longer than the call start afresh.
func (e *Effects) reset() {
	clear(e.Start)
	*e = Effects{Start: e.Start[:0], Cancel: e.Cancel[:0]}
}
