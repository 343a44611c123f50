package pg

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// NoticeKind is what a Notice tells.
type NoticeKind string

// The kinds of notices.
const (
	// NoticeCancel: a cancel was requested for an executing instance.
	NoticeCancel NoticeKind = "cancel"
	// NoticePause: a queue was paused.
	NoticePause NoticeKind = "pause"
)

// Notice tells the processes of an engine what an operator has done to rows that one of them may hold. It is a hint: what
// it tells is in the database, and heartbeats find it there.
type Notice struct {
	Kind  NoticeKind
	Queue string
	ID    int64 // of the instance, for NoticeCancel
	Claim int   // of it, that is to hear of the cancel: a later one is none of its business
}

const operatorsSuffix = ":ops" // a channel of ours, of which the original engine knows nothing

// payload is <token>|<kind>|<id>|<claim>|<queue>: only the queue may contain a '|'.
func (n *Notices) payload(of Notice) string {
	return n.token + "|" + string(of.Kind) + "|" + strconv.FormatInt(of.ID, 10) + "|" + strconv.Itoa(of.Claim) + "|" + of.Queue
}

// Tell sends notices to the other processes of this engine's name. One statement, one round trip. One whose queue has too
// long a name for a notification is left to the heartbeats.
func (n *Notices) Tell(ctx context.Context, notices []Notice) error {
	payloads := make([]string, 0, len(notices))
	for _, notice := range notices {
		if p := n.payload(notice); len(p) <= maxNotice {
			payloads = append(payloads, p)
		}
	}
	if len(payloads) == 0 {
		return nil
	}
	err := onFreshPlan(ctx, n.store.pool, func(db DB) error {
		_, err := db.Exec(ctx, n.store.sql("notify"), n.operators, payloads)
		return err
	})
	if err != nil {
		return fmt.Errorf("pg: tell other processes of %d cancels and pauses: %w", len(payloads), err)
	}
	return nil
}

// hearOperator takes a payload of the operators' channel apart.
func (n *Notices) hearOperator(payload string, ear Ear) {
	parts := strings.SplitN(payload, "|", 5)
	if len(parts) != 5 || parts[0] == "" || parts[4] == "" {
		ear.Refused()
		return
	}
	id, err := strconv.ParseInt(parts[2], 10, 64)
	claim, claimErr := strconv.Atoi(parts[3])
	notice := Notice{Kind: NoticeKind(parts[1]), Queue: parts[4], ID: id, Claim: claim}
	switch {
	case err != nil || claimErr != nil || notice.Kind != NoticeCancel && notice.Kind != NoticePause:
		ear.Refused() // or the word of a later release
	case parts[0] != n.token && ear.Told != nil:
		ear.Told(notice)
	}
}
