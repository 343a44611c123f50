package testing

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/gendurabletest"
	"github.com/gendurable/gendurable/internal/devpg"
)

const day = 24 * time.Hour

// database is where your tests get their pool: a migrated database that they share.
func database(t *testing.T) *pgxpool.Pool { return devpg.Database(t, gendurable.Migrate) }

// provider is a payment provider that never charges one key twice.
type provider struct {
	charged  map[string]int
	declines int // so many of the next charges
}

func (p *provider) Charge(_ context.Context, key, _ string, cents int) error {
	if p.declines > 0 {
		p.declines--
		return ErrDeclined
	}
	p.charged[key] = cents
	return nil
}

// outbox keeps the mails.
type outbox []string

func (o *outbox) Send(_ context.Context, to, text string) error {
	*o = append(*o, to+": "+text)
	return nil
}

func TestTrialWithoutACard(t *testing.T) {
	t.Parallel()
	var mails outbox
	machine := NewMachine(&provider{}, &mails)
	r := gendurabletest.New(t, gendurabletest.Tx(t, database(t)), gendurabletest.Config{
		Machines: []fsm.Definition{machine},
	})

	id := r.MustInsert(machine.New(Subscription{Customer: "ada"}))
	r.Run()
	r.AssertAwaiting(id, "card", "cancel")

	r.Advance(13 * day)
	if len(mails) > 0 {
		t.Errorf("reminded too early: %q", mails)
	}
	r.Advance(day)
	if len(mails) != 1 {
		t.Errorf("the mails after the trial are %q", mails)
	}

	r.FireTimeouts(id) // however long it would take
	if got := gendurabletest.Result[Ended](r, id); got != (Ended{Why: "no card"}) {
		t.Errorf("the subscription ended as %+v", got)
	}
}

func TestAYear(t *testing.T) {
	t.Parallel()
	payments := &provider{charged: map[string]int{}}
	machine := NewMachine(payments, new(outbox))
	r := gendurabletest.New(t, gendurabletest.Tx(t, database(t)), gendurabletest.Config{
		Machines:   []fsm.Definition{machine},
		CrashSteps: true, // each step's code runs twice: nobody may be charged twice
	})

	id := r.MustInsert(machine.New(Subscription{Customer: "ada"}), fsm.CorrelationKey("subscription:ada"))
	r.MustSignal(gendurable.Key("subscription:ada"), "card", Card{Number: "4242"})
	r.Run()
	r.Advance(365 * day)
	if got := gendurabletest.State[Subscription](r, id); got.Months != 13 || len(payments.charged) != 13 {
		t.Errorf("paid %d months with %d charges", got.Months, len(payments.charged))
	}

	r.MustSignal(id, "cancel", nil)
	tally := r.Run()
	if want := (gendurabletest.Tally{Done: 1, Lost: 1}); tally != want {
		t.Errorf("ran %v, want %v", tally, want)
	}
	r.AssertDone(id)
}

func TestDeclinedCards(t *testing.T) {
	t.Parallel()
	pool := database(t)
	for name, test := range map[string]struct {
		declines int
		step     string
		status   fsm.Status
	}{
		"once":     {1, "renew", fsm.AwaitingSignal},
		"for good": {9, "charge", fsm.StatusDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			machine := NewMachine(&provider{charged: map[string]int{}, declines: test.declines}, new(outbox))
			r := gendurabletest.New(t, gendurabletest.Tx(t, pool), gendurabletest.Config{Machines: []fsm.Definition{machine}})
			id := r.MustInsert(machine.New(Subscription{Customer: "bob"}))
			r.MustSignal(id, "card", Card{Number: "4000"})
			r.Run() // the hours between the attempts do not pass
			r.AssertStep(id, test.step)
			r.AssertStatus(id, test.status)
		})
	}
}
