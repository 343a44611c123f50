package fsm

import "time"

// Together is an outcome that an engine commits together with work of its own kind, in one transaction: what the
// engine's InTx is made of (see gendurable.InTx). This package knows neither databases nor what work is; it checks the
// outcome, and hands the work and the timeout (0 = the engine's default) on. An engine that does not know this kind of
// work refuses the outcome.
func Together(outcome Outcome, work any, timeout time.Duration) Outcome {
	return togetherOutcome{outcome: outcome, work: work, timeout: timeout}
}

type togetherOutcome struct {
	outcome Outcome
	work    any
	timeout time.Duration
}

func (o togetherOutcome) encode(e *Encoded, c *checker) error {
	switch o.outcome.(type) {
	case nil:
		return invalid("outcome of InTx", "must not be nil")
	case togetherOutcome:
		return invalid("outcome of InTx", "must not be another InTx; do all of the work in one function")
	}
	if o.work == nil {
		return invalid("function of InTx", "must not be nil")
	}
	if err := CheckDuration("timeout of InTx", o.timeout); err != nil {
		return err
	}
	if err := o.outcome.encode(e, c); err != nil {
		return err
	}
	e.Work, e.WorkTimeout, e.Inline = o.work, o.timeout, false
	return nil
}
