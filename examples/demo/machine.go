package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gendurable/gendurable/fsm"
)

// Payment is the payload of the signal "payment".
type Payment struct {
	Cents int `json:"cents"`
}

// Shipment is the arguments of the job that ships one line of an order.
type Shipment struct {
	Order int    `json:"order"`
	Line  int    `json:"line"`
	Item  string `json:"item"`
}

// Receipt is the result of an order that was shipped.
type Receipt struct {
	Order  int `json:"order"`
	Parcel int `json:"parcels"`
	Cents  int `json:"cents"`
}

// pipeline holds what the steps need besides their state.
type pipeline struct {
	ledger         *ledger
	paymentTimeout time.Duration
}

// machine is the order pipeline: validate → reserve → await the payment → charge → ship each line as a child → done.
func (p *pipeline) machine() *fsm.Machine[Order] {
	return fsm.New[Order]("order", fsm.Queue("orders")).
		Step("validate", p.validate).
		Step("reserve", p.reserve).
		Step("payment", p.payment).
		Step("charge", p.charge).
		Step("finish", p.finish)
}

// shipment is the job that ships one line.
func (p *pipeline) shipment() *fsm.Job[Shipment, string] {
	return fsm.NewJob("shipment", func(ctx context.Context, j *fsm.JobCall[Shipment]) (string, error) {
		if err := p.ledger.run(ctx, j.Args.Order, fmt.Sprintf("ship:%d", j.Args.Line)); err != nil {
			return "", err
		}
		work()
		return fmt.Sprintf("parcel %d-%d (%s)", j.Args.Order, j.Args.Line, j.Args.Item), nil
	}, fsm.Queue("shipments"))
}

func (p *pipeline) validate(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
	if err := p.ledger.run(ctx, c.State.Order, "validate"); err != nil {
		return again(err)
	}
	work()
	if len(c.State.Lines) == 0 {
		return fsm.Stop(errors.New(endInvalid + ": no lines")), nil
	}
	for _, l := range c.State.Lines {
		if l.Quantity < 1 || l.PriceCents < 0 {
			return fsm.Stop(fmt.Errorf("%s: %d × %s at %d cents", endInvalid, l.Quantity, l.Item, l.PriceCents)), nil
		}
	}
	return fsm.Next("reserve"), nil
}

func (p *pipeline) reserve(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
	if err := p.ledger.run(ctx, c.State.Order, "reserve"); err != nil {
		return again(err)
	}
	work()
	return fsm.Await("payment").Then("payment").Timeout(p.paymentTimeout), nil
}

func (p *pipeline) payment(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
	if err := p.ledger.run(ctx, c.State.Order, "payment"); err != nil {
		return again(err)
	}
	if len(c.Awaited) == 0 {
		return fsm.Stop(errors.New(endUnpaid + ": the payment never came")), nil
	}
	var paid Payment
	if err := c.Awaited[0].Decode(&paid); err != nil {
		return nil, err
	}
	c.State.PaidCents = paid.Cents
	return fsm.Next("charge"), nil
}

func (p *pipeline) charge(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
	if err := p.ledger.run(ctx, c.State.Order, "charge"); err != nil {
		return again(err)
	}
	// A step that was interrupted runs again, so its effect has to be one that may be repeated.
	if err := p.ledger.charge(ctx, c.State.Order, c.State.PaidCents); err != nil {
		return again(err)
	}
	work()
	ship := p.shipment()
	var parcels []fsm.Instance
	for i, l := range c.State.Lines {
		parcels = append(parcels, ship.New(Shipment{Order: c.State.Order, Line: i, Item: l.Item}))
	}
	return fsm.ScheduleChildren(parcels...).Then("finish"), nil
}

func (p *pipeline) finish(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
	if err := p.ledger.run(ctx, c.State.Order, "finish"); err != nil {
		return again(err)
	}
	for _, parcel := range c.Children {
		if parcel.Status != fsm.StatusDone {
			return fsm.Stop(fmt.Errorf("a parcel was lost: %s", parcel.Error)), nil
		}
	}
	return fsm.Done(Receipt{Order: c.State.Order, Parcel: len(c.Children), Cents: c.State.PaidCents}), nil
}

// again runs a step once more when the ledger could not be written: without its entry the run must not count.
func again(error) (fsm.Outcome, error) { return fsm.Retry(time.Second), nil }

// work stands for calling the outside world.
func work() { time.Sleep(10*time.Millisecond + rand.N(20*time.Millisecond)) }
