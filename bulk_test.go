package gendurable_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

func TestInsertBulk(t *testing.T) {
	t.Parallel()
	pool := database(t)
	engine := start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{double},
		Queues:   map[string]gendurable.Queue{"default": {Concurrency: 20}},
	})
	if err := engine.InsertBulk(t.Context(), doubles(300)); err != nil {
		t.Fatal(err)
	}
	if err := engine.Tx(t.Context(), func(tx pgx.Tx) error { return engine.InsertBulkTx(t.Context(), tx, doubles(200)) }); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all of them are done", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE status = 'done'`) == 500
	})
	for name, opt := range map[string]fsm.InsertOption{"a key": fsm.CorrelationKey("k"), "a request id": fsm.RequestID("r")} {
		if err := engine.InsertBulk(t.Context(), []fsm.Instance{double.New(number{1}, opt)}); err == nil {
			t.Errorf("an instance with %s was accepted", name)
		}
	}
}
