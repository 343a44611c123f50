package gendurable_test

import "os"

// chaos says that tests may run for long: make chaos.
var chaos = os.Getenv("GENDURABLE_CHAOS") != ""

// oneKeyRows is how many rows of one key a queue drains.
var oneKeyRows = ifChaos(10_000, 500)

func ifChaos(long, short int) int {
	if chaos {
		return long
	}
	return short
}
