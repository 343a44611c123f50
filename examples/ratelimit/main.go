// Command ratelimit sends letters through a service that takes only so many in a time, and shows that what has no limit does
// not wait for those that have to.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

// Letter is what is sent.
type Letter struct {
	To string `json:"to"`
}

// Send needs a token of the rate limit "mail" for each claim, so also for each retry.
var Send = fsm.NewJob("send", func(_ context.Context, j *fsm.JobCall[Letter]) (string, error) {
	return "sent to " + j.Args.To, nil
}, fsm.RateLimit("mail"))

// Note needs none.
var Note = fsm.NewJob("note", func(_ context.Context, j *fsm.JobCall[Letter]) (string, error) {
	return "noted " + j.Args.To, nil
})

const letters = 30

func run(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{Send, Note},
		RateLimits: map[string]gendurable.RateLimit{
			"mail": {Allowed: 20, Per: time.Second, Burst: 10},
		},
	})
	if err != nil {
		return err
	}
	defer engine.Stop(context.WithoutCancel(ctx))

	begun := time.Now()
	insts := make([]fsm.Instance, letters)
	for i := range insts {
		insts[i] = Send.New(Letter{fmt.Sprint("reader ", i)})
	}
	sent, err := engine.InsertMany(ctx, insts)
	if err != nil {
		return err
	}
	note, err := engine.Insert(ctx, Note.New(Letter{"nobody"}))
	if err != nil {
		return err
	}
	for _, id := range append([]gendurable.ID{note}, ids(sent)...) {
		if _, err := engine.Await(ctx, id, gendurable.UntilTerminal()); err != nil {
			return err
		}
	}
	// Ten letters went at once; twenty had to wait for their tokens, of which twenty come a second.
	fmt.Fprintf(out, "%d letters sent, in no less than a second: %t\n", letters, time.Since(begun) >= time.Second)
	fmt.Fprintf(out, "%d admitted\n", engine.Stats().Limits.AdmittedRows)
	return nil
}

func ids(inserted []gendurable.InsertResult) (ids []gendurable.ID) {
	for _, in := range inserted {
		ids = append(ids, in.ID)
	}
	return ids
}

func main() {
	ctx := context.Background()
	err := devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error { return run(ctx, pool, os.Stdout) })
	if err != nil {
		log.Fatal(err)
	}
}
