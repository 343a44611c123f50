// Package docs_test holds the code of the guides in this folder, so that it compiles. The test TestSnippets in the
// root of the module holds both against each other.
package docs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

type (
	Request struct {
		Title string `json:"title"`
	}
	Approval struct {
		By string `json:"by"`
	}
	Decision struct {
		Approved bool   `json:"approved"`
		By       string `json:"by"`
	}
	Poll struct {
		Voters int `json:"voters"`
	}
	Greeting struct {
		Name string `json:"name"`
	}
	Order struct {
		ID int `json:"id"`
	}
	Image struct {
		Path string `json:"path"`
	}
	ChargeArgs struct {
		Tenant string `json:"tenant"`
	}
)

// signals.md

var approvalMachine = fsm.New[Request]("approval").
	Step("ask", func(ctx context.Context, c *fsm.Call[Request]) (fsm.Outcome, error) {
		return fsm.Await("approved", "rejected").Then("decide").Timeout(72 * time.Hour), nil
	}).
	Step("decide", func(ctx context.Context, c *fsm.Call[Request]) (fsm.Outcome, error) {
		if len(c.Awaited) == 0 {
			return fsm.Stop(errors.New("nobody decided in three days")), nil
		}
		if c.Awaited[0].Name == "rejected" {
			return fsm.Done(Decision{Approved: false}), nil
		}
		var a Approval
		if err := c.Awaited[0].Decode(&a); err != nil {
			return nil, err
		}
		return fsm.Done(Decision{Approved: true, By: a.By}), nil
	})

func approve(ctx context.Context, engine *gendurable.Engine) error {
	err := engine.Signal(ctx, gendurable.Key("order:42"), "approved", Approval{By: "ada"}, gendurable.DedupKey("evt-7"))
	if errors.Is(err, gendurable.ErrNoTarget) {
		return nil // it has ended, or never was; nothing was stored
	}
	return err
}

var pollMachine = fsm.New[Poll]("poll").
	Step("count", func(ctx context.Context, c *fsm.Call[Poll]) (fsm.Outcome, error) {
		if len(c.Awaited) < c.State.Voters {
			return fsm.Await("vote").Then("count"), nil
		}
		return fsm.Next("tally"), nil
	}).
	Step("tally", func(ctx context.Context, c *fsm.Call[Poll]) (fsm.Outcome, error) {
		votes := c.Awaited
		for c.MoreInbox {
			page, err := c.NextInbox(ctx)
			if err != nil {
				return nil, err
			}
			for _, s := range page {
				if s.Name == "vote" {
					votes = append(votes, s)
				}
			}
		}
		return fsm.Done(len(votes)), nil
	})

// children.md

var parentMachine = fsm.New[Request]("parent").
	Step("join", func(ctx context.Context, c *fsm.Call[Request]) (fsm.Outcome, error) {
		var failed []string
		for _, child := range c.Children {
			if child.Status == fsm.StatusFailed {
				failed = append(failed, child.Error)
			}
		}
		children := c.Children
		for c.MoreChildren {
			page, err := c.NextChildren(ctx)
			if err != nil {
				return nil, err
			}
			children = append(children, page...)
		}
		return fsm.Done(fmt.Sprintf("%d of %d failed", len(failed), len(children))), nil
	})

// identity.md

var Checkout = fsm.New[Order]("checkout").
	Step("start", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) { return fsm.Done(nil), nil })

var Greet = fsm.NewJob("greet", func(ctx context.Context, j *fsm.JobCall[Greeting]) (string, error) {
	return "Hello, " + j.Args.Name + "!", nil
})

func occupant(ctx context.Context, engine *gendurable.Engine) (gendurable.ID, error) {
	id, err := engine.Insert(ctx, Checkout.New(Order{ID: 42}), fsm.CorrelationKey("order:42"))
	var taken *gendurable.DuplicateError
	if errors.As(err, &taken) {
		id, err = taken.Occupant, nil // it is on its way already
	}
	return id, err
}

func keepOccupied(ctx context.Context, engine *gendurable.Engine) error {
	once := fsm.CorrelationScope(fsm.Runnable, fsm.Executing, fsm.AwaitingSignal, fsm.AwaitingChildren,
		fsm.StatusDone, fsm.StatusFailed)
	_, err := engine.Insert(ctx, Checkout.New(Order{ID: 42}), fsm.CorrelationKey("order:42"), once)
	return err
}

func repeatable(ctx context.Context, engine *gendurable.Engine) (gendurable.ID, error) {
	id, err := engine.Insert(ctx, Greet.New(Greeting{Name: "ada"}), fsm.RequestID("signup-7781"))
	return id, err
}

// scheduling.md

func makeThumbnail(ctx context.Context, j *fsm.JobCall[Image]) (string, error) {
	return j.Args.Path + ".thumb", nil
}

var Thumbnail = fsm.NewJob("thumbnail", makeThumbnail, fsm.Queue("images"), fsm.Priority(10))

var Charge = fsm.NewJob("charge", func(ctx context.Context, j *fsm.JobCall[ChargeArgs]) (string, error) {
	return j.Args.Tenant, nil
})

func inBulk(ctx context.Context, engine *gendurable.Engine, path string) error {
	_, err := engine.Insert(ctx, Thumbnail.New(Image{Path: path}), fsm.Queue("images-bulk"))
	return err
}

func queues() gendurable.Config {
	cfg := gendurable.Config{
		Machines: []fsm.Definition{Thumbnail},
		Queues: map[string]gendurable.Queue{
			"default": {Concurrency: 50},
			"images":  {Concurrency: 4},
		},
		InsertQueues: []string{"images-bulk"}, // run by other processes
	}
	return cfg
}

func later(ctx context.Context, engine *gendurable.Engine) error {
	_, err := engine.Insert(ctx, Greet.New(Greeting{Name: "ada"}), fsm.ScheduleIn(48*time.Hour))
	return err
}

func oneAtATime(ctx context.Context, engine *gendurable.Engine) error {
	_, err := engine.Insert(ctx, Charge.New(ChargeArgs{Tenant: "acme"}), fsm.ConcurrencyKey("tenant:acme"))
	return err
}

// operations.md

func printSQL(w io.Writer) error {
	up, _, err := pg.MigrationSQL("workflows")
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, up)
	return err
}

func otherSchema(ctx context.Context, pool *pgxpool.Pool) error {
	if err := pg.NewMigrator(pool, "workflows").Up(ctx); err != nil {
		return err
	}
	return nil
}

func watch(ctx context.Context, engine *gendurable.Engine) error {
	select {
	case <-ctx.Done(): // SIGTERM
		drain, cancel := context.WithTimeout(context.Background(), 28*time.Second)
		defer cancel()
		return engine.Stop(drain)
	case <-engine.Done():
		return engine.Err() // exit with an error, so that something starts the process again
	}
}

func start(ctx context.Context, pool *pgxpool.Pool, logger *slog.Logger) (*gendurable.Engine, error) {
	return gendurable.Start(ctx, pool, gendurable.Config{
		NodeName: os.Getenv("POD_NAME"),
		Machines: []fsm.Definition{Checkout, CheckoutV2},
		Logger:   logger,
	})
}

// CheckoutV2 is for new orders; the old ones finish under Checkout, their version 1.
var CheckoutV2 = fsm.New[Order]("checkout", fsm.Version(2)).
	Step("reserve", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Done(nil), nil
	})

// inline.md

var Pipeline = fsm.New[Image]("pipeline", fsm.Inline()).
	Step("fetch", func(ctx context.Context, c *fsm.Call[Image]) (fsm.Outcome, error) {
		return fsm.Next("resize"), nil
	}).
	Step("resize", func(ctx context.Context, c *fsm.Call[Image]) (fsm.Outcome, error) {
		return fsm.Next("publish"), nil
	}).
	Step("publish", func(ctx context.Context, c *fsm.Call[Image]) (fsm.Outcome, error) {
		return fsm.Done(nil), nil
	})

var oneInline = fsm.New[Image]("one-inline").
	Step("prepare", func(ctx context.Context, c *fsm.Call[Image]) (fsm.Outcome, error) {
		return fsm.Next("send").Inline(), nil
	}).
	Step("send", func(ctx context.Context, c *fsm.Call[Image]) (fsm.Outcome, error) {
		return fsm.Done(nil), nil
	})

func longChains() gendurable.Config {
	cfg := gendurable.Config{
		Machines:    []fsm.Definition{Pipeline},
		InlineLimit: 20,
	}
	return cfg
}

// troubleshooting.md

func explainOrder(ctx context.Context, client *gendurable.Client) error {
	why, err := client.Explain(ctx, gendurable.Key("order:42"))
	if err != nil {
		return err
	}
	fmt.Println(why)
	for _, cause := range why.Causes {
		if cause.Reason == gendurable.KeyHeld {
			fmt.Printf("blocked by instance %d on node %s\n", cause.Holder, cause.Node)
		}
	}
	return nil
}

// The machines above, so that none of them counts as unused.
var _ = []fsm.Definition{approvalMachine, pollMachine, parentMachine, oneInline}

var _ = []any{approve, occupant, keepOccupied, repeatable, inBulk, queues, later, oneAtATime, printSQL, otherSchema, watch, start, longChains, explainOrder}

// rate-limits.md

var _ = fsm.New[Order]("charging").
	Step("begin", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Next("charge").RateLimit("stripe:eu", 2), nil
	}).
	Step("charge", func(ctx context.Context, c *fsm.Call[Order]) (fsm.Outcome, error) {
		return fsm.Done(nil), nil
	})
