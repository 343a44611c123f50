package actors

import (
	"context"
	"log/slog"
	"time"

	"github.com/asynkron/protoactor-go/actor"
)

// NewSystem makes an ActorSystem for an engine that was not given one. The library's own lines go to logger:
// its dead-letter lines, which print whole messages, not at all, and its informational ones as debug. The
// system's metrics are off. It holds no goroutine, so that stopping its actors is all the clean-up it needs.
func NewSystem(logger *slog.Logger) *actor.ActorSystem {
	quiet := slog.New(quietHandler{logger.Handler()})
	return actor.NewActorSystem(
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger { return quiet }),
		actor.WithDeadLetterRequestLogging(false),
		actor.WithDeadLetterThrottleCount(-1), // below the first letter: none is ever logged
		// The throttle starts a goroutine for each interval in which a letter came; a short one ends soon.
		actor.WithDeadLetterThrottleInterval(time.Millisecond),
	)
}

// quietHandler drops what the library says of dead letters and plays down its informational lines.
type quietHandler struct{ slog.Handler }

func (h quietHandler) Enabled(ctx context.Context, l slog.Level) bool {
	return h.Handler.Enabled(ctx, played(l))
}

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "[DeadLetter]" {
		return nil
	}
	r.Level = played(r.Level)
	return h.Handler.Handle(ctx, r)
}

func (h quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(attrs)}
}

func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name)}
}

func played(l slog.Level) slog.Level {
	if l == slog.LevelInfo {
		return slog.LevelDebug
	}
	return l
}
