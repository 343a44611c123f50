package actors_test

import (
	"testing"
	"time"

	"github.com/gendurable/gendurable/actors"
)

func TestRescanTakesATenthOfTheTime(t *testing.T) {
	t.Parallel()
	var r actors.Rescan
	now := time.Unix(0, 0)
	if !r.Due(now) {
		t.Error("the first is not due")
	}
	r.Took(time.Second, now)
	if r.Due(now.Add(9*time.Second - 1)) {
		t.Error("after a second it is due in less than nine")
	}
	if !r.Due(now.Add(9 * time.Second)) {
		t.Error("after a second it is not due in nine")
	}
}
