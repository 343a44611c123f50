package gendurable

import (
	"fmt"
	"strings"
	"time"

	"github.com/gendurable/gendurable/fsm"
)

// String is the explanation as a person reads it: where the instance stands, then a line for each cause.
func (e *Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "instance %d (%s/%d, step %q, queue %q) is %s", e.ID, e.Machine, e.Version, e.Step, e.Queue,
		strings.ReplaceAll(string(e.Status), "_", " "))
	if e.Attempt > 0 {
		fmt.Fprintf(&b, ", attempt %d", e.Attempt)
	}
	for _, c := range e.Causes {
		b.WriteString("\n- " + c.text(e.At))
	}
	switch {
	case e.LastError == "":
	case e.Status == fsm.StatusFailed:
		b.WriteString("\n- its error: " + e.LastError)
	default:
		b.WriteString("\n- the error of its last attempt: " + e.LastError)
	}
	return b.String()
}

// text is one cause as a line, seen at a time.
func (c *Cause) text(at time.Time) string {
	switch c.Reason {
	case NotEligible:
		return "it is not eligible before " + moment(c.Until, at)
	case QueuePaused:
		return "its queue was paused " + moment(c.Since, at) + "; Resume lets it go on"
	case NoNode:
		return "no live process runs its queue; start one, or add the queue to the Config.Queues of one"
	case UnknownMachine:
		return "of the processes that run its queue, none knows its machine in this version, or its step: " + list(c.Nodes)
	case Undecodable:
		return "the processes that know its step leave it out, because a state did not fit the type that they have for it: " + list(c.Nodes)
	case KeyHeld:
		return fmt.Sprintf("its concurrency key %q is held by instance %d, which is executed by %s since %s", c.Key, c.Holder,
			c.worker(at), moment(c.Since, at))
	case CorrelationHeld:
		return fmt.Sprintf("the correlation key that it needs to execute is occupied by instance %d", c.Holder)
	case GateFull:
		return fmt.Sprintf("all %d slots of the gate of its concurrency key %q are taken", c.Limit, c.Key)
	case UnknownLimit:
		return fmt.Sprintf("it names the rate limit %q, which is not configured; a process that declares it must start", c.Key)
	case BucketEmpty:
		if c.Until.IsZero() {
			return fmt.Sprintf("its rate limit %q never has as many tokens as it needs", c.Key)
		}
		return fmt.Sprintf("its rate limit %q has too few tokens; if nobody else takes them, it has enough %s", c.Key, moment(c.Until, at))
	case AwaitingSignals:
		return c.awaiting(at)
	case AwaitingChildren:
		text := fmt.Sprintf("it waits for %d children, since %s", c.Pending, moment(c.Since, at))
		if len(c.Children) > 0 {
			text += "; among them " + strings.Trim(fmt.Sprint(c.Children), "[]")
		}
		return text
	case Executing:
		return c.executing(at)
	case Ended:
		return "it ended " + moment(c.Since, at)
	}
	return c.ready(at)
}

func (c *Cause) awaiting(at time.Time) string {
	text := "it waits for a signal " + quoted(c.Names, " or ") + ", since " + moment(c.Since, at)
	switch {
	case c.Until.IsZero():
		text += ", without a timeout"
	case c.Until.After(at):
		text += "; the timeout is " + moment(c.Until, at)
	default:
		text += "; the timeout was " + moment(c.Until, at) + ", the next sweep of any engine wakes it"
	}
	if len(c.Other) > 0 {
		text += "; its inbox has other signals: " + quoted(c.Other, ", ")
	}
	return text
}

func (c *Cause) executing(at time.Time) string {
	text := "it is executed by " + c.worker(at) + " since " + moment(c.Since, at)
	if c.Until.After(at) {
		text += ", with a lease until " + moment(c.Until, at)
	} else {
		text += "; its lease ended " + moment(c.Until, at) + ", the next sweep of any engine gives it back"
	}
	if c.Cancelling {
		text += "; a cancel was requested, and it ends as failed when the step returns"
	}
	return text
}

func (c *Cause) worker(at time.Time) string {
	switch {
	case c.Node == "":
		return c.Worker
	case c.LastBeat.IsZero():
		return fmt.Sprintf("node %q (gone: it has no row any more)", c.Node)
	}
	return fmt.Sprintf("node %q (last heard of %s)", c.Node, moment(c.LastBeat, at))
}

func (c *Cause) ready(at time.Time) string {
	text := "nothing keeps it since " + moment(c.Since, at) + "; the next free slot of its queue takes it"
	switch {
	case c.Ahead >= lookedAhead:
		text += fmt.Sprintf(", after at least %d others", c.Ahead)
	case c.Ahead > 0:
		text += fmt.Sprintf(", after %d others", c.Ahead)
	}
	return text + ", on " + list(c.Nodes)
}

// lookedAhead is as far as the statement counts.
const lookedAhead = 1000

// moment is a time, and how far it is from now.
func moment(t, now time.Time) string {
	far := t.Sub(now)
	round := time.Second
	if far.Abs() < 10*time.Second {
		round = time.Millisecond
	}
	stamp := t.UTC().Format("2006-01-02 15:04:05Z")
	if far > 0 {
		return fmt.Sprintf("%s (in %v)", stamp, far.Round(round))
	}
	return fmt.Sprintf("%s (%v ago)", stamp, (-far).Round(round))
}

// list names some nodes.
func list(nodes []string) string {
	const most = 10
	if len(nodes) > most {
		return fmt.Sprintf("%s and %d more", quoted(nodes[:most], ", "), len(nodes)-most)
	}
	return quoted(nodes, ", ")
}

func quoted(names []string, between string) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return strings.Join(out, between)
}
