package fsm_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gendurable/gendurable/fsm"
)

// The snippets of docs/machines.md.

var errCardDeclined = errors.New("card declined")

func charge(ctx context.Context, order int, key string) error {
	if order == 0 {
		return errCardDeclined
	}
	return ctx.Err()
}

var Payments = fsm.New[Order]("payments", fsm.StepTimeout(time.Minute)).
	Step("charge", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		// The step may run twice: the provider recognises the repetition by the key.
		if err := charge(ctx, c.State.ID, fmt.Sprintf("charge-%d", c.ID)); err != nil {
			return nil, err
		}
		return fsm.Next("remind").After(30 * 24 * time.Hour), nil
	}, fsm.To("remind")).
	Step("remind", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Done(nil), nil
	}, fsm.Timeout(10*time.Second)).
	OnError(func(ctx context.Context, c *fsm.Call[Order], err error) (fsm.Outcome, error) {
		if errors.Is(err, errCardDeclined) || c.Attempt >= 5 {
			return fsm.Stop(err), nil
		}
		return fsm.Retry(time.Minute << c.Attempt), nil
	})

type Approval struct {
	By []string `json:"by"`
}

var TwoApprovals = fsm.New[Approval]("two-approvals").
	Step("ask", func(ctx context.Context, c *fsm.Call[Approval]) (fsm.Outcome, error) {
		return fsm.Await("approve").Then("collect"), nil
	}).
	Step("collect", func(ctx context.Context, c *fsm.Call[Approval]) (fsm.Outcome, error) {
		if len(c.Awaited) < 2 {
			return fsm.Await("approve").Then("collect"), nil // sleeps until a new one
		}
		for _, s := range c.Awaited {
			var by string
			if err := s.Decode(&by); err != nil {
				return nil, err
			}
			c.State.By = append(c.State.By, by)
		}
		return fsm.Next("act"), nil // consumes both
	}).
	Step("act", func(ctx context.Context, c *fsm.Call[Approval]) (fsm.Outcome, error) {
		return fsm.Done(c.State.By), nil
	})

type Report struct {
	Days []string `json:"days"`
	Rows int      `json:"rows"`
}

var Reports = fsm.New[Report]("reports").
	Step("split", func(ctx context.Context, c *fsm.Call[Report]) (fsm.Outcome, error) {
		var days []fsm.Instance
		for _, day := range c.State.Days {
			days = append(days, CountRows.New(CountArgs{Day: day}))
		}
		return fsm.ScheduleChildren(days...).Then("sum"), nil
	}).
	Step("sum", func(ctx context.Context, c *fsm.Call[Report]) (fsm.Outcome, error) {
		if n := c.ChildCounts[fsm.StatusFailed]; n > 0 {
			return fsm.Stop(fmt.Errorf("%d days failed", n)), nil
		}
		for page := c.Children; len(page) > 0; {
			for _, child := range page {
				var rows int
				if err := child.DecodeResult(&rows); err != nil {
					return nil, err
				}
				c.State.Rows += rows
			}
			var err error
			if page, err = c.NextChildren(ctx); err != nil {
				return nil, err
			}
		}
		return fsm.Done(c.State.Rows), nil
	})

type Node struct {
	Depth int `json:"depth"`
}

var Tree = fsm.New[Node]("tree").
	Step("grow", func(ctx context.Context, c *fsm.Call[Node]) (fsm.Outcome, error) {
		if c.State.Depth == 0 {
			return fsm.Done(nil), nil
		}
		child := Node{Depth: c.State.Depth - 1}
		return fsm.ScheduleChildren(c.New(child), c.New(child)).Then("grown"), nil
	}).
	Step("grown", func(ctx context.Context, c *fsm.Call[Node]) (fsm.Outcome, error) {
		return fsm.Done(nil), nil
	})

var CheckoutV2 = fsm.New[Order]("checkout", fsm.Version(2)).
	Step("start", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Done(nil), nil
	})

func ExampleMachine_OnError() {
	show := func(attempt int, state string) {
		in := &fsm.Input{Step: "charge", Attempt: attempt, State: []byte(state)}
		out := fsm.Run(context.Background(), Payments.Spec(), in).Encoded
		fmt.Printf("%s: step %q, delay %s, error %q\n", out.Kind, out.Step, out.Delay, out.Error)
	}
	show(0, `{"id": 1}`)
	show(0, `{"id": 0}`)
	// Output:
	// next: step "remind", delay 720h0m0s, error ""
	// stop: step "", delay 0s, error "card declined"
}

func ExampleAwait() {
	signal := func(id int64, by string) fsm.Signal {
		return fsm.Signal{ID: id, Name: "approve", Payload: []byte(by)}
	}
	show := func(inbox ...fsm.Signal) {
		in := &fsm.Input{Step: "collect", Awaits: []string{"approve"}, Inbox: inbox}
		out := fsm.Run(context.Background(), TwoApprovals.Spec(), in).Encoded
		fmt.Println(out.Kind, out.Step, string(out.State), out.Handed)
	}
	show(signal(1, `"ann"`))
	show(signal(1, `"ann"`), signal(2, `"bob"`))
	// Output:
	// await collect {"by":null} [1]
	// next act {"by":["ann","bob"]} [1 2]
}

func ExampleScheduleChildren() {
	out := fsm.Run(context.Background(), Reports.Spec(), &fsm.Input{
		Step: "split", State: []byte(`{"days": ["mon", "tue"]}`),
	}).Encoded
	fmt.Println(out.Kind, out.Step, len(out.Children), string(out.Children[0].State))
	out = fsm.Run(context.Background(), Reports.Spec(), &fsm.Input{
		Step: "sum", ChildCounts: map[fsm.Status]int64{fsm.StatusDone: 2},
		Children: []fsm.Child{{ID: 1, Result: []byte("20")}, {ID: 2, Result: []byte("22")}},
	}).Encoded
	fmt.Println(out.Kind, string(out.Result))
	// Output:
	// children sum 2 {"day":"mon"}
	// done 42
}

func ExampleCall_New() {
	out := fsm.Run(context.Background(), Tree.Spec(), &fsm.Input{Step: "grow", State: []byte(`{"depth": 3}`)}).Encoded
	fmt.Println(out.Kind, len(out.Children), out.Children[0].Machine, string(out.Children[0].State))
	// Output: children 2 tree {"depth":2}
}
