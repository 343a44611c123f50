package pg

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// claimRetries bounds how often a claim that lost a race for a key claims again, each time a quarter of the rows.
const claimRetries = 5

// Claim takes up to r.Limit runnable rows of a queue, most urgent first, for the worker, and loads what their steps need.
// One round trip when nothing is there or nothing has an inbox or children, else two. It waits for nobody. A claim that
// loses a race for a concurrency key several times over fails with an error of the class Contention.
//
// After an error, rows may be claimed without anybody knowing it, if the answer was lost: call ReleaseUnheld.
func (s *Store) Claim(ctx context.Context, r ClaimRequest) ([]Claimed, error) {
	claimed, err := s.claim(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("pg: claim rows of queue %q: %w", r.Queue, err)
	}
	if err := s.enrich(ctx, claimed); err != nil {
		return nil, fmt.Errorf("pg: load the inboxes and children of claimed rows of queue %q: %w", r.Queue, err)
	}
	return claimed, nil
}

func (s *Store) claim(ctx context.Context, r ClaimRequest) (claimed []Claimed, err error) {
	args, limit := claimArgs(r), r.Limit
	report := r.Report
	if report == nil {
		report = new(ClaimReport)
	}
	for try := 0; ; try++ {
		args[3], report.Looked = limit, 0
		err = onFreshPlan(ctx, s.db(), func(db DB) error {
			rows, done, err := s.sendClaim(ctx, db, r, report, args)
			if err != nil {
				return err
			}
			claimed, err = readClaimed(rows, r.Queue, limit, &report.Looked)
			return errors.Join(err, done())
		})
		// Who loses a race for a key is told by its unique index. Fewer rows meet fewer keys.
		if !isState(err, "23505") {
			break
		}
		if r.Contended != nil {
			r.Contended.Add(1)
		}
		if try == claimRetries {
			break
		}
		limit = max(limit/4, 1)
	}
	if limit < r.Limit {
		report.At, report.Priorities = time.Time{}, nil // it has not looked as far as its number of rows suggests
	}
	slices.SortFunc(claimed, func(a, b Claimed) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), a.EligibleAt.Compare(b.EligibleAt), cmp.Compare(a.ID, b.ID))
	})
	return claimed, err
}

// sendClaim sends the statement, behind what else the report asks for. done is called after the rows were read.
func (s *Store) sendClaim(ctx context.Context, db DB, r ClaimRequest, report *ClaimReport, args []any) (rows pgx.Rows, done func() error, err error) {
	report.Ahead = 0
	if !report.Survey && report.Horizon <= 0 {
		rows, err = db.Query(ctx, s.sql("claim"), args...)
		return rows, func() error { return nil }, err
	}
	var b pgx.Batch
	if report.Horizon > 0 {
		b.Queue(s.sql("claim_ahead"), r.Queue, micros(report.Horizon))
	}
	if report.Survey {
		b.Queue(s.sql("claim_lanes"), r.Queue, r.Since != nil)
	}
	b.Queue(s.sql("claim"), args...)
	results := db.SendBatch(ctx, &b)
	if report.Horizon > 0 {
		var ahead *int64
		if err = results.QueryRow().Scan(&ahead); ahead != nil {
			report.Ahead = time.Duration(*ahead) * time.Microsecond
		}
	}
	if report.Survey && err == nil {
		err = results.QueryRow().Scan(&report.At, &report.Priorities)
	}
	if err == nil {
		rows, err = results.Query()
	}
	if err != nil {
		return nil, nil, errors.Join(err, results.Close())
	}
	return rows, results.Close, nil
}

// claimArgs are the arguments of the statement. Whoever names no limits sends nothing for them.
func claimArgs(r ClaimRequest) []any {
	machines, versions, steps := skipArrays(r.Skip)
	var priorities []int16
	var since []time.Time
	var others any
	if r.Since != nil {
		priorities, since = make([]int16, len(r.Since)), make([]time.Time, len(r.Since))
		for i, l := range r.Since {
			priorities[i], since[i] = l.Priority, l.Since
		}
		if !r.Others.IsZero() {
			others = r.Others
		}
	}
	limits := r.Limits
	if limits == nil {
		limits = new(ClaimLimits)
	}
	args := append([]any{r.Queue, r.Worker, micros(r.Lease), r.Limit, machines, versions, steps, priorities, since}, limits.args()...)
	return append(args, others)
}

// skipArrays are the steps to leave out as parallel arrays; nil when there are none, which spares the probe.
func skipArrays(skip []StepRef) (machines []string, versions []int32, steps []string) {
	for _, k := range skip {
		machines, versions, steps = append(machines, k.Machine), append(versions, int32(k.Version)), append(steps, k.Step)
	}
	return machines, versions, steps
}

// readClaimed reads the rows of a claim. The columns that a batch repeats share their strings.
func readClaimed(rows pgx.Rows, queue string, limit int, looked *int) ([]Claimed, error) {
	var claimed []Claimed
	var shared interned
	var raw struct { // one, because each would be allocated
		rate, key, correlation, trace *string
		parent                        *int64
		claimedAt                     time.Time
	}
	row := Claimed{Queue: queue}
	into := []any{&row.ID, &shared.machine, &row.Version, &shared.step, &row.State, &row.Attempt, &row.Awaits, &row.Priority,
		&row.EligibleAt, &raw.key, &row.ConcurrencyShard, &raw.rate, &row.Weight, &raw.correlation, &raw.parent, &row.Claim, &row.Crashes,
		&row.CancelReason, &row.HasInbox, &row.HasChildren, looked, &raw.trace, &raw.claimedAt}
	_, err := pgx.ForEachRow(rows, into, func() error {
		row.Machine, row.Step = shared.machine.text, shared.step.text
		row.ConcurrencyKey, row.RateLimit, row.CorrelationKey = text(raw.key), text(raw.rate), text(raw.correlation)
		row.TraceContext, row.Waited = text(raw.trace), max(raw.claimedAt.Sub(row.EligibleAt), 0)
		row.ParentID = 0
		if raw.parent != nil {
			row.ParentID = *raw.parent
		}
		if claimed == nil {
			claimed = make([]Claimed, 0, min(limit, 1000))
		}
		claimed = append(claimed, row)
		row.State, row.Awaits, row.ConcurrencyShard = nil, nil, nil
		return nil
	})
	return claimed, err
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// interned are columns whose value is mostly that of the row before.
type interned struct{ machine, step repeated }

type repeated struct{ text string }

// ScanBytes keeps the string it has when the column says the same again.
func (r *repeated) ScanBytes(v []byte) error {
	if r.text != string(v) {
		r.text = string(v)
	}
	return nil
}
