package cluster_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gendurable/gendurable/actors"
	"github.com/gendurable/gendurable/cluster"
	"github.com/gendurable/gendurable/instance"
)

// The other processes of these tests are the test binary itself, told by its environment what to be.
const (
	envRole = "GENDURABLE_TEST_ROLE" // one of roles
	envAt   = "GENDURABLE_TEST_AT"   // the address of a gateway
	envTLS  = "GENDURABLE_TEST_TLS"  // a directory with certificates; empty = no TLS
)

var roles = map[string]func(ctx context.Context) error{"node": playNode, "client": playClient, "bare host": playBareHost, "host": playHost}

// play runs a role until it ends, or its parent does.
func play(role string) int {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	if err := roles[role](ctx); err != nil {
		fmt.Fprintln(os.Stderr, role+":", err)
		return 1
	}
	return 0
}

// playNode is a node with a gateway. It prints its address.
func playNode(ctx context.Context) error {
	cfg, err := reachable()
	if err != nil {
		return err
	}
	n, err := newNode(cfg)
	if err != nil {
		return err
	}
	fmt.Println(n.remote.Address())
	<-ctx.Done()
	n.remote.Close()
	if _, err := cluster.OpenRemote(n.system, cluster.Config{}, quiet()); !errors.Is(err, instance.ErrInvalid) {
		return fmt.Errorf("a Remote was opened after the first one was closed: %v", err)
	}
	return nil
}

// playClient asks a gateway over and over, and prints a line for each answer.
func playClient(ctx context.Context) error {
	cfg, err := reachable()
	if err != nil {
		return err
	}
	client, err := cluster.NewClient(cluster.ClientConfig{Config: cfg, Gateways: []string{os.Getenv(envAt)}, Logger: quiet(), Patience: patience})
	if err != nil {
		return err
	}
	defer client.Close()
	for ctx.Err() == nil {
		info, err := client.Hello(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		fmt.Println(info.GetEngine())
	}
	return nil
}

// playBareHost looks what becomes of a Remote that the host has started itself, without the firewall.
func playBareHost(context.Context) error {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	bare := actors.NewSystem(quiet())
	own := remote.NewRemote(bare, remote.Configure("127.0.0.1", 0))
	if _, err := cluster.OpenRemote(bare, cluster.Config{}, logger); !errors.Is(err, instance.ErrInvalid) {
		return fmt.Errorf("a Remote that was not started: %v", err)
	}
	own.Start()
	if _, err := cluster.OpenRemote(bare, cluster.Config{Address: "127.0.0.1:0"}, logger); !errors.Is(err, instance.ErrInvalid) {
		return fmt.Errorf("an address besides the host's Remote: %v", err)
	}
	everything := func(string, string) bool { return true }
	if _, err := cluster.OpenRemote(bare, cluster.Config{Allow: everything}, logger); !errors.Is(err, instance.ErrInvalid) {
		return fmt.Errorf("an allow list besides the host's Remote: %v", err)
	}
	r, err := cluster.OpenRemote(bare, cluster.Config{}, logger)
	if err != nil || r.Firewall() != nil || !strings.Contains(log.String(), "has no firewall") {
		return fmt.Errorf("without the firewall: %v, logged %q", err, log.String())
	}
	r.Close() // leaves the host's as it is
	if conn, err := net.Dial("tcp", r.Address()); err != nil {
		return err
	} else {
		return conn.Close()
	}
}

// playHost is the same with the firewall.
func playHost(context.Context) error {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	system := actors.NewSystem(quiet())
	firewall := cluster.NewFirewall(system, cluster.FirewallConfig{Logger: quiet()})
	remote.NewRemote(system, remote.Configure("127.0.0.1", 0,
		remote.WithServerOptions(firewall.ServerOptions()...),
		remote.WithDialOptions(append(firewall.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...),
	)).Start()
	r, err := cluster.OpenRemote(system, cluster.Config{}, logger)
	if err != nil || r.Firewall() != firewall || log.Len() > 0 {
		return fmt.Errorf("with the firewall: %v, logged %q", err, log.String())
	}
	conn, err := grpc.NewClient("passthrough:///"+r.Address(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := remote.NewRemotingClient(conn).ListProcesses(ctx, new(remote.ListProcessesRequest)); err == nil || firewall.Stats().Calls != 1 {
		return fmt.Errorf("a call came through: %v, %+v", err, firewall.Stats())
	}
	return nil
}

// reachable is how the process in a role is reached.
func reachable() (cluster.Config, error) {
	dir := os.Getenv(envTLS)
	if dir == "" {
		return cluster.Config{}, nil
	}
	t, err := certificates(dir)
	return cluster.Config{TLS: t}, err
}

func certificates(dir string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	if err != nil {
		return nil, err
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}, nil
}

// process starts the test binary in a role and returns its lines. It ends with the test at the latest.
func process(t *testing.T, role string, env ...string) (*exec.Cmd, <-chan string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), envRole+"="+role), env...)
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
	lines, done := make(chan string), make(chan struct{})
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(stdout); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-done:
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		_ = stdin.Close()
		_ = cmd.Process.Signal(syscall.SIGCONT)
		for range lines {
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v", role, err)
		}
	})
	return cmd, lines
}

// line waits for the next line of a process.
func line(t *testing.T, lines <-chan string) string {
	t.Helper()
	select {
	case s, ok := <-lines:
		if !ok {
			t.Fatal("the process has ended")
		}
		return s
	case <-time.After(patience):
		t.Fatal("the process says nothing")
	}
	return ""
}

// TestPeerThatStandsStill: a client in another process is stopped in the middle of its requests. Others are served, and it
// goes on when it wakes up.
func TestPeerThatStandsStill(t *testing.T) {
	t.Parallel()
	n := sharedNode(t)
	still, lines := process(t, "client", envAt+"="+n.remote.Address())
	_, others := process(t, "client", envAt+"="+n.remote.Address())
	line(t, lines)
	if err := still.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		line(t, others)
	}
	if err := still.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		line(t, lines)
	}
}

// TestMutualTLS: who has no certificate that the nodes' CA vouches for, gets nothing.
func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ours, theirs := certify(t), certify(t)
	_, lines := process(t, "node", envTLS+"="+ours)
	address := line(t, lines)
	_, answers := process(t, "client", envTLS+"="+ours, envAt+"="+address)
	if got := line(t, answers); got != engine {
		t.Errorf("a peer with a certificate got %q", got)
	}
	good, err := certificates(ours)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := certificates(theirs)
	if err != nil {
		t.Fatal(err)
	}
	const welcome = "one of ours"
	for what, config := range map[string]*tls.Config{
		welcome:                {RootCAs: good.RootCAs, Certificates: good.Certificates},
		"no certificate":       {RootCAs: good.RootCAs},
		"of another authority": {RootCAs: good.RootCAs, Certificates: stranger.Certificates},
		"an old version":       {RootCAs: good.RootCAs, Certificates: good.Certificates, MaxVersion: tls.VersionTLS12},
		"does not trust us":    stranger,
	} {
		config.NextProtos = []string{"h2"}
		conn, err := tls.Dial("tcp", address, config)
		if err == nil { // with TLS 1.3 the server's verdict comes after the client believes to be through
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, _ = conn.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"))
			var n int
			if n, err = conn.Read(make([]byte, 1)); (n > 0) != (what == welcome) { // who is let in is greeted first of all
				t.Errorf("%s: was let in is %v, until %v", what, n > 0, err)
			}
			_ = conn.Close()
		}
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			t.Errorf("%s: is neither let in nor refused", what)
		}
	}
}

// certify makes an authority and a certificate for 127.0.0.1, and returns their directory.
func certify(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	key := func() *ecdsa.PrivateKey {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	write := func(name, kind string, der []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	authority, own := key(), key()
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "node"}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, authority.Public(), authority)
	if err != nil {
		t.Fatal(err)
	}
	leafDER, err := x509.CreateCertificate(rand.Reader, leaf, ca, own.Public(), authority)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(own)
	if err != nil {
		t.Fatal(err)
	}
	write("ca.pem", "CERTIFICATE", caDER)
	write("cert.pem", "CERTIFICATE", leafDER)
	write("key.pem", "EC PRIVATE KEY", keyDER)
	return dir
}

// TestHostsOwnRemote plays in a process of its own: the library's Start changes a global of gRPC.
func TestHostsOwnRemote(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"bare host", "host"} {
		_, lines := process(t, role)
		for range lines {
		}
	}
}
