package pg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/limiter"
)

// envPickers makes the test binary a process that picks: its value is the database's URL. See pickers.
const envPickers = "GENDURABLE_TEST_PICKERS"

// TestMain lets the test binary be a process of its own in tests of what several processes do to each other.
func TestMain(m *testing.M) {
	if url := os.Getenv(envPickers); url != "" {
		if err := pickers(url, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "pickers:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pickers is the life of a picking process. It reads what each of its pickers is to ask for, says that it is ready, lets all
// of them ask at once when it is told to, and says how many rows were admitted; and again, until nobody writes to it any more.
func pickers(url string, in io.Reader, out io.Writer) error {
	ctx := context.Background()
	host, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer host.Close()
	pool, err := EnginePool(ctx, host, 4)
	if err != nil {
		return err
	}
	defer pool.Close()
	s, err := Open(ctx, pool, Options{})
	if err != nil {
		return err
	}
	read, write := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var each [][]limiter.Request
		if err := read.Decode(&each); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := write.Encode("ready"); err != nil {
			return err
		}
		var told string
		if err := read.Decode(&told); err != nil {
			return err
		}
		admitted := make([]int, len(each))
		failed := make([]error, len(each))
		var all sync.WaitGroup
		for i, rows := range each {
			all.Go(func() { admitted[i], failed[i] = pick(ctx, s.NewLimiter(), rows) })
		}
		all.Wait()
		if err := errors.Join(failed...); err != nil {
			return err
		}
		sum := 0
		for _, n := range admitted {
			sum += n
		}
		if err := write.Encode(sum); err != nil {
			return err
		}
	}
}

// pick asks until each row is admitted or finds its limit exhausted.
func pick(ctx context.Context, l limiter.Limiter, rows []limiter.Request) (admitted int, err error) {
	for len(rows) > 0 {
		answer, err := l.Admit(ctx, alice, rows)
		if errors.Is(err, limiter.ErrContended) {
			continue
		} else if err != nil {
			return admitted, err
		}
		var again []limiter.Request
		for i, d := range answer {
			switch d.Verdict {
			case limiter.Admitted:
				admitted++
			case limiter.Saturated:
			case limiter.Contended:
				again = append(again, rows[i])
			default:
				return admitted, fmt.Errorf("row %+v: %+v", rows[i], d)
			}
		}
		rows = again
	}
	return admitted, nil
}

// pickingProcess is the test's end of one.
type pickingProcess struct {
	in  *json.Encoder
	out *json.Decoder
}

// startPickers starts a picking process, which ends with the test.
func startPickers(t *testing.T, url string) *pickingProcess {
	t.Helper()
	cmd := osexec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), envPickers+"="+url)
	cmd.Stderr = t.Output()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		if t.Failed() {
			_ = cmd.Process.Kill()
		}
		if err := cmd.Wait(); err != nil && !t.Failed() {
			t.Errorf("a picking process ended badly: %v", err)
		}
	})
	return &pickingProcess{json.NewEncoder(stdin), json.NewDecoder(stdout)}
}

func (p *pickingProcess) tell(t *testing.T, what any) {
	t.Helper()
	if err := p.in.Encode(what); err != nil {
		t.Fatal(err)
	}
}

func (p *pickingProcess) hear(t *testing.T, what any) {
	t.Helper()
	if err := p.out.Decode(what); err != nil {
		t.Fatalf("a picking process says nothing: %v", err)
	}
}

// TestColdKeysRaceOverProcesses: eight pickers in four processes meet keys that nobody has asked for before. Together they are
// granted exactly what a key has: never more, and never less because a counter was being made just then.
func TestColdKeysRaceOverProcesses(t *testing.T) {
	t.Parallel()
	const processes, each, rows, burst = 4, 2, 5, 13 // 40 rows want 13
	s, host := openWithHost(t, Options{})
	configure(t, s, limiter.Config{
		Gates: []limiter.Gate{{Name: "g1", Limit: burst}, {Name: "g4", Limit: burst, Shards: 4}},
		Rates: []limiter.Rate{{Name: "r1", Allowed: burst, Per: forAges}, {Name: "r4", Allowed: burst, Per: forAges, Shards: 4}},
	})
	var all []*pickingProcess
	for range processes {
		all = append(all, startPickers(t, host.Config().ConnString()))
	}
	for round := range 2 {
		for _, names := range [][2]string{{"g1", ""}, {"g4", ""}, {"", "r1"}, {"", "r4"}, {"g1", "r4"}, {"g4", "r1"}} {
			gate, rate := names[0], names[1]
			if gate != "" {
				gate += fmt.Sprint(":", round, rate)
			}
			if rate != "" {
				rate += fmt.Sprint(":", round, names[0])
			}
			for _, p := range all {
				var wanted [][]limiter.Request
				for range each {
					wanted = append(wanted, asking(t, s, rows, gate, rate))
				}
				p.tell(t, wanted)
			}
			for _, p := range all {
				var ready string
				p.hear(t, &ready)
			}
			for _, p := range all {
				p.tell(t, "go")
			}
			granted := 0
			for _, p := range all {
				var n int
				p.hear(t, &n)
				granted += n
			}
			if granted != burst {
				t.Errorf("the pickers of %q and %q were granted %d, expected exactly %d", gate, rate, granted, burst)
			}
			if left := value[float64](t, s, `SELECT sum(available)::float8 FROM gen_durable_buckets WHERE key IN ($1, $2)`, gate, rate); left > 1e-6 {
				t.Errorf("of %q and %q there is %v left", gate, rate, left)
			}
		}
	}
}
