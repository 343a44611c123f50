package cluster

import (
	"fmt"
	"strings"
	"time"

	"github.com/gendurable/gendurable/instance"
)

// NamePlacer is the name of a node's placer below its engine's root.
const NamePlacer = "placer"

// NamesLane says whether a name is, or could be, that of a lane of the queue or of its sweeper.
func NamesLane(queue, name string) bool { return strings.HasPrefix(name, queue+"#") }

// validateMembership reports what is wrong with the part of the configuration that says who belongs to the cluster.
func (c *Config) validateMembership() []error {
	var errs []error
	if c.TTL != 0 && (c.TTL < time.Second || c.TTL > 10*time.Minute) {
		errs = append(errs, fmt.Errorf("%w: Cluster.TTL %v: must be between 1s and 10m", instance.ErrInvalid, c.TTL))
	}
	if c.Host != nil && c.Provider != nil {
		errs = append(errs, fmt.Errorf("%w: Cluster.Provider: the Host's cluster has one already", instance.ErrInvalid))
	}
	return errs
}
