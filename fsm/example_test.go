package fsm_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gendurable/gendurable/fsm"
)

type Order struct {
	ID   int `json:"id"`
	Paid int `json:"paid"`
}

type Payment struct {
	Amount int `json:"amount"`
}

type Receipt struct {
	Order int `json:"order"`
}

var Checkout = fsm.New[Order]("checkout", fsm.Queue("checkout")).
	Step("start", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Await("payment").Then("ship").Timeout(24 * time.Hour), nil
	}).
	Step("ship", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		if len(c.Awaited) == 0 {
			return fsm.Stop(errors.New("payment never came")), nil
		}
		var p Payment
		if err := c.Awaited[0].Decode(&p); err != nil {
			return nil, err // goes to the machine's error handler
		}
		c.State.Paid = p.Amount
		return fsm.Done(Receipt{Order: c.State.ID}), nil
	})

// The engine calls Run for each step; tests of a single step can do so too.
func Example() {
	show := func(in *fsm.Input) {
		out := fsm.Run(context.Background(), Checkout.Spec(), in).Encoded
		fmt.Printf("%s: step %q, awaits %q, result %s, error %q\n", out.Kind, out.Step, out.Awaits, out.Result, out.Error)
	}
	state := []byte(`{"id": 42}`)
	show(&fsm.Input{Step: "start", State: state})
	show(&fsm.Input{
		Step: "ship", State: state, Awaits: []string{"payment"},
		Inbox: []fsm.Signal{{ID: 1, Name: "payment", Payload: []byte(`{"amount": 100}`)}},
	})
	show(&fsm.Input{Step: "ship", State: state, Awaits: []string{"payment"}}) // after the timeout
	// Output:
	// await: step "ship", awaits ["payment"], result , error ""
	// done: step "", awaits [], result {"order":42}, error ""
	// stop: step "", awaits [], result , error "payment never came"
}

// Instances carry options; what is wrong with them is told when they are inserted.
func ExampleMachine_New() {
	inst := Checkout.New(Order{ID: 42}, fsm.CorrelationKey("order:42"), fsm.ScheduleIn(time.Hour))
	row, err := inst.Insertion(fsm.Limits{}) // the engine's Insert does this
	fmt.Println(row.Machine, row.Step, row.Queue, string(row.State), row.Delay, err)

	_, err = Checkout.New(Order{ID: 42}, fsm.Priority(100_000)).Insertion(fsm.Limits{})
	fmt.Println(errors.Is(err, fsm.ErrInvalid), err)
	// Output:
	// checkout start checkout {"id":42,"paid":0} 1h0m0s <nil>
	// true fsm: Priority must be between -32768 and 32767, is 100000
}
