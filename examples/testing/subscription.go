// Package testing shows how a machine is tested: a subscription that lives for months, in a test that takes moments. The
// machine is here, and the test beside it is the example. See docs/testing.md.
package testing

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gendurable/gendurable/fsm"
)

// Subscription is the state of the machine.
type Subscription struct {
	Customer string `json:"customer"`
	Card     string `json:"card"`
	Months   int    `json:"months"` // paid so far
	Reminded bool   `json:"reminded"`
}

// Card is the payload of the signal "card".
type Card struct {
	Number string `json:"number"`
}

// Ended is the result of the machine.
type Ended struct {
	Months int    `json:"months"`
	Why    string `json:"why"`
}

// ErrDeclined is what a payment provider says of a card that it does not take.
var ErrDeclined = errors.New("the card was declined")

// Payments charges cards. A charge with a key that was used before does nothing: a step may run twice.
type Payments interface {
	Charge(ctx context.Context, key, card string, cents int) error
}

// Mail tells customers.
type Mail interface {
	Send(ctx context.Context, to, text string) error
}

const (
	trial = 14 * 24 * time.Hour
	grace = 3 * 24 * time.Hour
	month = 30 * 24 * time.Hour
	cents = 900
)

// NewMachine makes the machine of subscriptions: a trial, a reminder, then a charge each month until the customer cancels or
// the card fails for good.
func NewMachine(payments Payments, mail Mail) *fsm.Machine[Subscription] {
	return fsm.New[Subscription]("subscription").
		Step("begin", func(context.Context, *fsm.Call[Subscription]) (fsm.Outcome, error) {
			return fsm.Await("card", "cancel").Then("trial over").Timeout(trial), nil
		}).
		Step("trial over", func(ctx context.Context, c *fsm.Call[Subscription]) (fsm.Outcome, error) {
			if len(c.Awaited) > 0 {
				return answered(c)
			}
			if c.State.Reminded {
				return fsm.Done(Ended{Why: "no card"}), nil
			}
			if err := mail.Send(ctx, c.State.Customer, "your trial is over"); err != nil {
				return nil, err
			}
			c.State.Reminded = true
			return fsm.Await("card", "cancel").Then("trial over").Timeout(grace), nil
		}).
		Step("charge", func(ctx context.Context, c *fsm.Call[Subscription]) (fsm.Outcome, error) {
			key := fmt.Sprintf("%d/%d", c.ID, c.State.Months)
			if err := payments.Charge(ctx, key, c.State.Card, cents); err != nil {
				return nil, err
			}
			c.State.Months++
			return fsm.Await("card", "cancel").Then("renew").Timeout(month), nil
		}).
		Step("renew", func(_ context.Context, c *fsm.Call[Subscription]) (fsm.Outcome, error) {
			if len(c.Awaited) > 0 {
				return answered(c)
			}
			return fsm.Next("charge"), nil
		}).
		OnError(func(_ context.Context, c *fsm.Call[Subscription], err error) (fsm.Outcome, error) {
			if errors.Is(err, ErrDeclined) && c.Attempt >= 2 {
				return fsm.Done(Ended{Months: c.State.Months, Why: err.Error()}), nil
			}
			return fsm.Retry(time.Hour << c.Attempt), nil
		})
}

// answered goes on from what the customer sent.
func answered(c *fsm.Call[Subscription]) (fsm.Outcome, error) {
	for _, signal := range c.Awaited {
		if signal.Name == "cancel" {
			return fsm.Done(Ended{Months: c.State.Months, Why: "cancelled"}), nil
		}
		var card Card
		if err := signal.Decode(&card); err != nil {
			return nil, err
		}
		c.State.Card = card.Number
	}
	return fsm.Next("charge"), nil
}
