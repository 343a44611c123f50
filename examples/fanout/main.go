// Command fanout splits work into children, waits for all of them, and joins their results.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/internal/devpg"
)

type Page struct {
	Text string `json:"text"`
}

type Book struct {
	Pages []string `json:"pages"`
}

// CountWords is the child: one page.
var CountWords = fsm.NewJob("count-words", func(ctx context.Context, j *fsm.JobCall[Page]) (int, error) {
	return len(strings.Fields(j.Args.Text)), nil
})

// CountBook is the parent. The children are inserted and the parent is parked in one transaction; it wakes once,
// when the last child has ended.
var CountBook = fsm.New[Book]("count-book").
	Step("split", func(ctx context.Context, c *fsm.Call[Book]) (fsm.Outcome, error) {
		var pages []fsm.Instance
		for _, text := range c.State.Pages {
			pages = append(pages, CountWords.New(Page{Text: text}))
		}
		return fsm.ScheduleChildren(pages...).Then("sum"), nil
	}).
	Step("sum", func(ctx context.Context, c *fsm.Call[Book]) (fsm.Outcome, error) {
		total := 0
		for _, page := range c.Children {
			var words int
			if err := page.DecodeResult(&words); err != nil {
				return nil, err // a failed child has no result
			}
			total += words
		}
		return fsm.Done(total), nil
	})

func run(ctx context.Context, pool *pgxpool.Pool, out io.Writer) error {
	if err := gendurable.Migrate(ctx, pool); err != nil {
		return err
	}
	engine, err := gendurable.Start(ctx, pool, gendurable.Config{
		Machines: []fsm.Definition{CountBook, CountWords},
	})
	if err != nil {
		return err
	}
	defer engine.Stop(context.WithoutCancel(ctx))

	book := Book{Pages: []string{"it was a dark night", "and it rained", "the end"}}
	id, err := engine.Insert(ctx, CountBook.New(book))
	if err != nil {
		return err
	}
	settled, err := engine.Await(ctx, id)
	if err != nil {
		return err
	}
	var words int
	if err := settled.Decode(&words); err != nil {
		return err
	}
	fmt.Fprintf(out, "%d words on %d pages\n", words, len(book.Pages))
	return nil
}

func main() {
	ctx := context.Background()
	err := devpg.With(ctx, devpg.Options{}, func(pool *pgxpool.Pool) error { return run(ctx, pool, os.Stdout) })
	if err != nil {
		log.Fatal(err)
	}
}
