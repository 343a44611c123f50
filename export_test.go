package gendurable

import "github.com/gendurable/gendurable/actors"

// Crash makes the engine's actor that is found by following names down from the root panic.
func (e *Engine) Crash(names ...string) {
	e.tree.system.Root.Send(e.tree.pid(names...), actors.Crash{})
}
