package pg

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/gendurable/gendurable/internal/devpg"
)

// hearing listens in the background and returns what is heard ("" = refused). It returns once the listener is ready.
func hearing(t *testing.T, n *Notices) (heard <-chan string, ended <-chan error) {
	t.Helper()
	all, ready, end := make(chan string, 10_000), make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		end <- n.Listen(ctx, Ear{
			Ready:   func(bool) { close(ready) },
			Heard:   func(q string) { all <- q },
			Refused: func() { all <- "" },
		})
	}()
	t.Cleanup(func() {
		cancel()
		wait, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		n.Wait(wait)
		if wait.Err() != nil {
			t.Error("the listener does not end")
		}
	})
	select {
	case <-ready:
	case err := <-end:
		t.Fatalf("the listener ended: %v", err)
	}
	return all, end
}

func notices(t *testing.T, s *Store, host *pgxpool.Pool, token, url string) *Notices {
	t.Helper()
	n, err := s.Notices(token, host, url)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNotices(t *testing.T) {
	s, host := openWithHost(t, Options{Engine: `odd "name'`})
	ctx := testContext(t)
	a, b := notices(t, s, host, "aaaa", ""), notices(t, s, host, "bbbb", "")
	heardA, _ := hearing(t, a)
	heardB, _ := hearing(t, b)
	long := strings.Repeat("q", 8000)
	if err := a.Send(ctx, []string{"one", long, "t|wo"}); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(ctx, []string{long}); err != nil {
		t.Fatal(err)
	}
	// As the original engine would, and as it would not.
	for _, payload := range []string{"node@host|three", "nonsense", "|q", "t|", ""} {
		exec(t, s, `SELECT pg_notify('gen_durable:odd "name''' || ':poke', $1)`, payload)
	}
	exec(t, s, `SELECT pg_notify('gen_durable:other:poke', 'x|y')`)
	if err := b.Send(ctx, []string{"last"}); err != nil {
		t.Fatal(err)
	}
	want := func(who string, heard <-chan string, queues ...string) {
		t.Helper()
		for _, q := range queues {
			select {
			case got := <-heard:
				if got != q {
					t.Errorf("%s heard %q, want %q", who, got, q)
				}
			case <-ctx.Done():
				t.Fatalf("%s waits for %q", who, q)
			}
		}
	}
	want("b", heardB, "one", "t|wo", "three", "", "", "", "")
	want("a", heardA, "three", "", "", "", "", "last")
	if len(heardB) > 0 {
		t.Errorf("b heard itself: %q", <-heardB)
	}
}

func TestNoticesAreAboutOneDatabaseAndEngine(t *testing.T) {
	s, host := openWithHost(t, Options{})
	elsewhere, elsewhereHost := openWithHost(t, Options{})
	here, _ := hearing(t, notices(t, s, host, "a", ""))
	for _, n := range []*Notices{notices(t, elsewhere, elsewhereHost, "b", ""), notices(t, s, host, "c", "")} {
		if err := n.Send(testContext(t), []string{"from " + n.token}); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-here; got != "from c" {
		t.Errorf("heard %q", got)
	}
}

func TestAListenerThatIsCutSaysSo(t *testing.T) {
	s, host := openWithHost(t, Options{})
	proxy, err := devpg.NewProxy(host.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	n := notices(t, s, host, "a", proxy.URL())
	_, ended := hearing(t, n)
	proxy.Cut()
	if err := <-ended; Classify(err) != Connection {
		t.Errorf("the listener ended with %v, class %v", err, Classify(err))
	}
	proxy.Refuse(true)
	if err := n.Listen(testContext(t), Ear{}); Classify(err) != Connection {
		t.Errorf("no connection: %v, class %v", err, Classify(err))
	}
}

func TestTheListenerConnectsAsTheHost(t *testing.T) {
	s, host := openWithHost(t, Options{})
	cfg := host.Config()
	user := cfg.ConnConfig.User
	cfg.ConnConfig.User = "nobody of that name"
	cfg.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.User = user
		return nil
	}
	for _, mode := range modes {
		cfg.ConnConfig.DefaultQueryExecMode = mode
		hooked, err := pgxpool.NewWithConfig(testContext(t), cfg)
		if err != nil {
			t.Fatal(err)
		}
		n := notices(t, s, hooked, "a", "")
		hooked.Close()
		heard, _ := hearing(t, n)
		if err := notices(t, s, host, "b", "").Send(testContext(t), []string{mode.String()}); err != nil {
			t.Fatal(err)
		}
		if got := <-heard; got != mode.String() {
			t.Errorf("heard %q, want %q", got, mode)
		}
	}
}

func TestNoticesRefuseWhatHasNoChannel(t *testing.T) {
	s, host := openWithHost(t, Options{Engine: strings.Repeat("n", MaxNoticeName)})
	heard, _ := hearing(t, notices(t, s, host, "a", ""))
	if err := notices(t, s, host, "b", "").Send(testContext(t), []string{"q"}); err != nil || <-heard != "q" {
		t.Errorf("the longest name: %v", err)
	}
	s.engine += "n"
	if _, err := s.Notices("a", host, ""); err == nil {
		t.Error("a name that is cut was accepted")
	}
	s.engine = "n"
	for _, token := range []string{"", "a|b"} {
		if _, err := s.Notices(token, host, ""); err == nil {
			t.Errorf("the token %q was accepted", token)
		}
	}
	if _, err := s.Notices("a", host, "postgres://u:secret@h:port/"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("a bad address: %v", err)
	}
}

func TestAnIdleListenerIsLookedAfter(t *testing.T) {
	s, host := openWithHost(t, Options{})
	n := notices(t, s, host, "a", "")
	n.checkEvery = 5 * time.Millisecond
	heard, ended := hearing(t, n)
	looks := map[time.Time]bool{}
	for len(looks) < 5 {
		at := value[time.Time](t, s, `SELECT query_start FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'gendurable listener'`)
		looks[at] = true
	}
	if err := notices(t, s, host, "b", "").Send(testContext(t), []string{"q"}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-heard:
	case err := <-ended:
		t.Fatalf("the listener ended: %v", err)
	}
	exec(t, s, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'gendurable listener'`)
	if err := <-ended; Classify(err) != Connection {
		t.Errorf("the listener ended with %v, class %v", err, Classify(err))
	}
}

// TestOperatorsNotices: what one process tells, the others hear, word for word, and nobody else's words are taken for it.
func TestOperatorsNotices(t *testing.T) {
	t.Parallel()
	s, host := openWithHost(t, Options{Engine: "ops"})
	ctx := testContext(t)
	a, b := notices(t, s, host, "aaaa", ""), notices(t, s, host, "bbbb", "")
	told, refused, ready := make(chan Notice, 100), make(chan struct{}, 100), make(chan struct{})
	listening, cancel := context.WithCancel(ctx)
	go func() {
		_ = b.Listen(listening, Ear{Ready: func(bool) { close(ready) }, Heard: func(string) {}, Told: func(n Notice) { told <- n }, Refused: func() { refused <- struct{}{} }})
	}()
	defer func() { cancel(); b.Wait(context.Background()) }()
	select {
	case <-ready:
	case <-ctx.Done():
		t.Fatal("the listener does not begin")
	}
	sent := []Notice{{NoticeCancel, "q", 1 << 40, 3}, {NoticePause, "a|b", 0, 0}, {NoticePause, strings.Repeat("q", 8000), 0, 0}, {NoticePause, "last", 0, 0}}
	if err := b.Tell(ctx, sent[:1]); err != nil {
		t.Fatal(err)
	}
	for _, payload := range []string{"", "x", "x|cancel|1|1|", "|cancel|1|1|q", "x|explode|1|1|q", "x|cancel|one|1|q", "x|cancel|1|q"} {
		exec(t, s, `SELECT pg_notify('gen_durable:ops:ops', $1)`, payload)
	}
	if err := a.Tell(ctx, sent); err != nil {
		t.Fatal(err)
	}
	for _, want := range []Notice{sent[0], sent[1], sent[3]} {
		select {
		case got := <-told:
			if got != want {
				t.Errorf("told %+v, want %+v", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("in vain waited for %+v", want)
		}
	}
	if len(refused) != 7 {
		t.Errorf("%d payloads were refused, want 7", len(refused))
	}
}
