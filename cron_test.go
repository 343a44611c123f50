package gendurable_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/gendurable/gendurable"
	"github.com/gendurable/gendurable/fsm"
)

// TestCronOnThreeNodes: each occurrence is inserted once, whichever node comes first, and found at once.
func TestCronOnThreeNodes(t *testing.T) {
	t.Parallel()
	pool := database(t)
	each := func(name string, missed gendurable.MissedPolicy) gendurable.Cron {
		return gendurable.Cron{Name: name, Schedule: "* * * * * *", TimeZone: "Asia/Tokyo", Missed: missed, New: func(at time.Time) fsm.Instance {
			return double.New(number{int(at.Unix())}).With(fsm.Queue(name))
		}}
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO gen_durable_cron VALUES ('all', now() - interval '30 s'), ('latest', now() - interval '10 years')`); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		start(t, pool, gendurable.Config{
			Machines: []fsm.Definition{double}, Queues: map[string]gendurable.Queue{"all": {}, "latest": {}},
			PollBusy: time.Hour, PollIdle: time.Hour,
			Crons: []gendurable.Cron{each("all", gendurable.MissedAll), each("latest", "")},
		})
	}
	eventually(t, "some occurrences", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable WHERE queue = 'all' AND status = 'done'`) >= 33 &&
			count(t, pool, `SELECT count(*) FROM gen_durable WHERE queue = 'latest' AND status = 'done'`) >= 3
	})
	if n := count(t, pool, `SELECT count(*) FROM (SELECT FROM gen_durable GROUP BY queue, state HAVING count(*) > 1) t`); n != 0 {
		t.Errorf("%d occurrences were inserted twice", n)
	}
	if n := count(t, pool, `SELECT count(*) - (max((state->>'n')::bigint) - min((state->>'n')::bigint) + 1) FROM gen_durable WHERE queue = 'all'`); n != 0 {
		t.Errorf("of all occurrences %d are missing", -n)
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE queue = 'latest' AND (state->>'n')::bigint < extract(epoch FROM inserted_at) - 120`); n != 0 {
		t.Errorf("%d occurrences of long ago were inserted", n)
	}
}

// TestCronPolicies: a missed occurrence that nobody wants is passed over; one whose key is occupied, too.
func TestCronPolicies(t *testing.T) {
	t.Parallel()
	pool := database(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO gen_durable_cron SELECT n, now() - interval '40 years' FROM unnest('{none,keyed,broken}'::text[]) n`); err != nil {
		t.Fatal(err)
	}
	yearly := func(name string, missed gendurable.MissedPolicy, inst fsm.Instance) gendurable.Cron {
		return gendurable.Cron{Name: name, Schedule: "0 0 29 2 *", Missed: missed, New: func(time.Time) fsm.Instance { return inst }}
	}
	engine := start(t, pool, gendurable.Config{Machines: []fsm.Definition{double}, Queues: map[string]gendurable.Queue{}, Logger: quietly()})
	occupant := insert(t, engine, double.New(number{7}), fsm.CorrelationKey("k"))
	start(t, pool, gendurable.Config{
		Machines: []fsm.Definition{double}, Queues: map[string]gendurable.Queue{}, Logger: quietly(),
		Crons: []gendurable.Cron{
			yearly("broken", "", double.New(number{}).With(fsm.RequestID("r"))),
			yearly("keyed", "", double.New(number{}).With(fsm.CorrelationKey("k"))),
			yearly("none", gendurable.MissedNone, double.New(number{})),
		},
	})
	eventually(t, "the occurrences to be passed over", func() bool {
		return count(t, pool, `SELECT count(*) FROM gen_durable_cron WHERE name IN ('none', 'keyed') AND last > now() - interval '5 years'`) == 2
	})
	if n := count(t, pool, `SELECT count(*) FROM gen_durable WHERE id <> $1`, occupant); n != 0 {
		t.Errorf("%d instances were inserted", n)
	}
	if n := count(t, pool, `SELECT count(*) FROM gen_durable_cron WHERE name = 'broken' AND last > now() - interval '39 years'`); n != 0 {
		t.Error("an occurrence whose instance cannot be made was passed over")
	}
}

func TestCronConfig(t *testing.T) {
	t.Parallel()
	pool := database(t)
	_, err := gendurable.Start(t.Context(), pool, gendurable.Config{Crons: []gendurable.Cron{
		{Name: "a", Schedule: "* * * *"}, {Name: "a", Schedule: "@daily", TimeZone: "Nowhere/City", Missed: "some"}, {},
	}})
	if !errors.Is(err, gendurable.ErrInvalid) {
		t.Fatalf("%v", err)
	}
	for _, want := range []string{`Crons["a"].Schedule: the expression "* * * *"`, `"a" is used twice`, `there is no time zone "Nowhere/City"`, `Crons["a"].New is nil`, `Crons["a"].Missed "some"`, "Crons[2].Name"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
}
