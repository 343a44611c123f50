package devpg_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/gendurable/gendurable/internal/devpg"
)

func isCommit(b []byte) bool { return bytes.Contains(bytes.ToLower(b), []byte("commit")) }

// proxied returns a proxy, a connection through it and the direct URL of the test's database.
func proxied(t *testing.T) (*devpg.Proxy, *pgx.Conn, string) {
	t.Helper()
	direct := devpg.Database(t, createTable).Config().ConnString()
	p, err := devpg.NewProxy(direct)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	conn, err := pgx.Connect(t.Context(), p.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return p, conn, direct
}

func TestProxyCut(t *testing.T) {
	p, conn, _ := proxied(t)
	if _, err := conn.Exec(t.Context(), "insert into things values (1)"); err != nil {
		t.Fatal(err)
	}
	if n := p.Cut(); n != 1 {
		t.Errorf("cut %d connections, want 1", n)
	}
	if _, err := conn.Exec(t.Context(), "select 1"); err == nil {
		t.Error("a connection that was cut still works")
	}
	exec(t, p.URL(), "select * from things")
}

func TestProxyRefuse(t *testing.T) {
	p, conn, _ := proxied(t)
	p.Refuse(true)
	if _, err := pgx.Connect(t.Context(), p.URL()); err == nil {
		t.Error("a new connection is accepted")
	}
	if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
		t.Errorf("the old connection broke: %v", err)
	}
	p.Refuse(false)
	exec(t, p.URL(), "select 1")
}

func TestProxyPause(t *testing.T) {
	p, conn, direct := proxied(t)
	p.Pause()
	done := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "insert into things values (1)")
		done <- err
	}()
	// Whatever the proxy lets through would be there after some round trips to the server beside it.
	for range 20 {
		if got := queryString(t, direct, "select count(*)::text from things"); got != "0" {
			t.Fatalf("%s rows arrived", got)
		}
	}
	select {
	case err := <-done:
		t.Fatalf("the statement ended while paused: %v", err)
	default:
	}
	p.Resume()
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	p.Pause()
	go func() {
		_, err := conn.Exec(context.Background(), "insert into things values (2)")
		done <- err
	}()
	p.Cut()
	if err := <-done; err == nil {
		t.Error("a paused connection that was cut still works")
	}
}

func TestProxyLosesTheReplyToCommit(t *testing.T) {
	p, conn, direct := proxied(t)
	lost := p.CutReply(isCommit)
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "insert into things values (1)")
		return err
	})
	if err == nil {
		t.Error("the client heard of its commit")
	}
	await(t, lost)
	if got := queryString(t, direct, "select count(*)::text from things"); got != "1" {
		t.Errorf("%s rows, want the committed one", got)
	}
	exec(t, p.URL(), "begin", "commit") // it works once
}

func TestProxyLosesTheCommit(t *testing.T) {
	p, conn, direct := proxied(t)
	lost := p.CutRequest(isCommit)
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "insert into things values (1)")
		return err
	})
	if err == nil {
		t.Error("the client heard of a commit")
	}
	await(t, lost)
	// The lock waits for the end of the transaction that lost its client.
	exec(t, direct, "begin", "lock table things", "commit")
	if got := queryString(t, direct, "select count(*)::text from things"); got != "0" {
		t.Errorf("%s rows, want none", got)
	}
}

// A reply of many packets is withheld to its end.
func TestProxyWithholdsALongReply(t *testing.T) {
	p, conn, direct := proxied(t)
	lost := p.CutReply(nil)
	_, err := conn.Exec(t.Context(), "insert into things select generate_series(1, 1000) returning id, repeat('x', 1000)")
	if err == nil {
		t.Error("the client got a reply")
	}
	await(t, lost)
	if got := queryString(t, direct, "select count(*)::text from things"); got != "1000" {
		t.Errorf("%s rows, want 1000", got)
	}
}

func TestProxyShowsServerBytes(t *testing.T) {
	p, conn, _ := proxied(t)
	var seen atomic.Bool
	p.OnServerBytes(func(b []byte) bool {
		secret := bytes.Contains(b, []byte("open sesame"))
		if secret {
			seen.Store(true)
		}
		return !secret
	})
	if _, err := conn.Exec(t.Context(), "select 1"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "select 'open ' || 'sesame'"); err == nil {
		t.Error("the connection was not cut")
	}
	if !seen.Load() {
		t.Error("the hook did not see the reply")
	}
	p.OnServerBytes(nil)
	exec(t, p.URL(), "select 'open ' || 'sesame'")
}

func TestProxyFindsARestartedServer(t *testing.T) {
	s := devpg.ServerFor(t, devpg.Options{})
	p, err := devpg.NewProxy(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	exec(t, p.URL(), "select 1")
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.Connect(t.Context(), p.URL()); err == nil {
		t.Error("the proxy reaches a killed server")
	}
	if err := s.Restart(t.Context(), "fast"); err != nil {
		t.Fatal(err)
	}
	exec(t, p.URL(), "select 1")
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := devpg.NewProxy("host=/tmp"); err == nil {
		t.Error("a proxy accepts a server without an address")
	}
}

func await(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("the connection was not reset in time")
	}
}
