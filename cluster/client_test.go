package cluster_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/actors/gateway"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/instance"
	"github.com/gendurable/gendurable/messages"
)

// clientOf returns a client of a gateway in the same system.
func clientOf(t *testing.T, answer func(messages.Request) messages.Reply) *cluster.Client {
	t.Helper()
	system := actors.NewSystem(quiet())
	pid, err := system.Root.SpawnNamed(gateway.Props(gateway.Config{Logger: quiet(), Timeout: patience,
		Answer: func(_ context.Context, m messages.Request) messages.Reply { return answer(m) }}), gatewayName)
	if err != nil {
		t.Fatal(err)
	}
	client, err := cluster.NewClient(cluster.ClientConfig{System: system, Patience: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		client.Close()
		_ = system.Root.StopFuture(pid).Wait()
	})
	return client
}

// TestCancelSparesTheNextOccupant: the answer to a cancel by key is lost, and the key has another occupant when it is sent again.
func TestCancelSparesTheNextOccupant(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	occupant, cancelled := int64(7), []int64{}
	client := clientOf(t, func(request messages.Request) messages.Reply {
		mu.Lock()
		defer mu.Unlock()
		switch m := request.(type) {
		case *messages.Get:
			return &messages.Got{RequestId: m.Id, Id: occupant}
		case *messages.Cancel:
			id := m.GetTarget().GetId()
			if m.GetTarget().GetKey() != "" {
				id = occupant
			}
			cancelled = append(cancelled, id)
			if len(cancelled) == 1 {
				occupant = 8
				return &messages.Refused{RequestId: m.Id, Reason: messages.Refused_FAILED, Text: "it is done, but who knows"}
			}
			return &messages.Cancelled{RequestId: m.Id, Result: messages.Cancelled_TOO_LATE}
		}
		return &messages.Refused{RequestId: request.GetId(), Reason: messages.Refused_INVALID}
	})
	if result, err := client.Cancel(t.Context(), instance.Key("order:1"), "enough"); err != nil || result != instance.CancelTooLate {
		t.Errorf("%v, %v", result, err)
	}
	if !slices.Equal(cancelled, []int64{7, 7}) {
		t.Errorf("cancelled %v", cancelled)
	}
}
