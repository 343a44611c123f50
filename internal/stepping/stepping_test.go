package stepping

import (
	"testing"

	"github.com/gendurable/gendurable/fsm"
	"github.com/gendurable/gendurable/pg"
)

// A worker that loses a row and claims it again has the same name; only the claim's number tells the two apart.
func TestOutcomesNameTheirClaim(t *testing.T) {
	t.Parallel()
	row := &pg.Claimed{ID: 7, Claim: 3, ParentID: 2, HasInbox: true}
	for kind := range kinds {
		o := Outcome("w", row, &fsm.Encoded{Kind: kind})
		if o.ID != 7 || o.Claim != 3 || o.Worker != "w" || o.ParentID != 2 || !o.HasInbox || o.Kind != kinds[kind] {
			t.Errorf("%s: %+v does not say whose outcome it is", kind, o)
		}
	}
}
