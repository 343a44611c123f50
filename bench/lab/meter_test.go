package lab

import "testing"

func TestParseStat(t *testing.T) {
	// The name of the process has a space and a parenthesis, as Postgres's backends have.
	const line = "4711 (postgres: a) b) S 12 4711 4711 0 -1 4194304 100 200 0 0 31 7 500 60 20 0 1 0 1000 2000 30"
	got, ok := parseStat(line)
	if want := (stat{pid: 4711, parent: 12, own: 38, ended: 560}); !ok || got != want {
		t.Errorf("parseStat = %+v, %v, want %+v", got, ok, want)
	}
}

func TestParseStatRefusesWhatItCannotRead(t *testing.T) {
	for _, line := range []string{"", "1 (x", "1 (x) S 2 3", "x (x) S 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1"} {
		if got, ok := parseStat(line); ok {
			t.Errorf("parseStat(%q) = %+v, want a refusal", line, got)
		}
	}
}

func TestOwnCPUGrows(t *testing.T) {
	before := selfCPU()
	for x, i := 0, 0; selfCPU() <= before; i++ {
		x += i // until the clock of CPU time has moved; the test's own deadline bounds it
	}
}
