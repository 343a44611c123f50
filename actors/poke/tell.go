package poke

import (
	"context"

	"github.com/gendurable/gendurable/pg"
)

// maxNotices bounds the notices that wait to be sent, and so one statement. What an operator does beyond that at once is
// found by heartbeats.
const maxNotices = 1000

// notices are what is to be told to other processes of cancels and pauses.
type notices struct {
	unsent []pg.Notice
	// sending: a call of Tell is on its way, or the pause after one.
	sending bool
}

type (
	// told says what became of a call of Tell.
	told struct {
		n   int
		err error
	}
	// rested is the end of the pause after a call of Tell.
	rested struct{}
	// heardNotice is a notice of another process.
	heardNotice struct{ notice pg.Notice }
)

// tell takes a notice. Unlike an announcement it is not tried again when it cannot be sent: a heartbeat finds what it says.
func (w *wire) tell(n pg.Notice) {
	if len(w.notices.unsent) < maxNotices {
		w.notices.unsent = append(w.notices.unsent, n)
	}
	w.sendNotices()
}

func (w *wire) sendNotices() {
	t := &w.notices
	if t.sending || len(t.unsent) == 0 {
		return
	}
	list := t.unsent
	t.unsent, t.sending = nil, true
	w.life.GoFor(sendTimeout, func(ctx context.Context) any {
		return told{len(list), w.Network.Tell(ctx, list)}
	})
}

func (w *wire) toldOthers(m told) {
	if m.err != nil {
		w.Counters.NoticeErrors.Add(1)
		w.Logger.Warn("gendurable: other processes could not be told of a cancel or pause, their heartbeats find it",
			"notices", m.n, "error", m.err)
	} else {
		w.Counters.NoticesSent.Add(int64(m.n))
	}
	w.life.After(Pace, rested{})
}

// passNotice gives a notice of another process to whoever may hold the rows.
func (w *wire) passNotice(n pg.Notice) {
	if w.Told != nil && w.shared.mine[n.Queue] {
		w.Told(n)
	}
}
