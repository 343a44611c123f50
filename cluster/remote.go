package cluster

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/gendurable/gendurable/instance"
)

// Remote is the network side of an actor system: it is reached by other nodes, and reaches them. One a system.
type Remote struct {
	system   *actor.ActorSystem
	firewall *Firewall // nil: the host's Remote has none
	outbox   *Outbox
	own      *remote.Remote // nil: the host's, which the host stops
}

// OpenRemote makes the actor system reachable as cfg says, hardened: see Firewall. When the system has a Remote already, it
// is that one which is used, and cfg must name no address; a warning is logged when it lacks the firewall.
//
// Call it before the system has actors: those that were spawned before get no replies from other nodes. The actor library
// then also silences gRPC's own log in this process, once and for all.
func OpenRemote(system *actor.ActorSystem, cfg Config, log *slog.Logger) (*Remote, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if hosts, _ := system.Extensions.Get((*remote.Remote)(nil).ExtensionID()).(*remote.Remote); hosts != nil {
		return useHosts(system, cfg, log)
	}
	if cfg.Address == "" {
		cfg.Address = DefaultAddress
	}
	host, port, _ := hostPort(cfg.Address)
	// The library panics when it cannot listen. Nobody can be sure that the port is still free in a moment, but that is rare.
	l, err := net.Listen("tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("gendurable: cluster: listen on %s: %w", cfg.Address, err)
	}
	_ = l.Close()
	firewall := NewFirewall(system, FirewallConfig{Allow: cfg.Allow, Logger: log})
	options := []remote.ConfigOption{
		remote.WithEndpointWriterBatchSize(batchSize),
		remote.WithEndpointWriterQueueSize(1024), // to begin with
		remote.WithEndpointManagerBatchSize(batchSize),
		remote.WithEndpointManagerQueueSize(1024),
		remote.WithServerOptions(append(firewall.ServerOptions(), grpc.Creds(cfg.serverCredentials()))...),
		remote.WithDialOptions(append(firewall.DialOptions(), grpc.WithTransportCredentials(cfg.clientCredentials()))...),
		func(c *remote.Config) { c.MaxRetryCount = 1 },
	}
	if cfg.Advertise != "" {
		options = append(options, remote.WithAdvertisedHost(cfg.Advertise))
	}
	if net.ParseIP(host) != nil && net.ParseIP(host).To4() == nil {
		host = "[" + host + "]" // the library joins host and port without looking
	}
	r := &Remote{system: system, firewall: firewall, outbox: firewall.outbox, own: remote.NewRemote(system, remote.Configure(host, port, options...))}
	if err := guarded(r.own.Start); err != nil {
		return nil, fmt.Errorf("gendurable: cluster: start the remote on %s: %w", cfg.Address, err)
	}
	return r, nil
}

// useHosts takes the Remote that the host has started.
func useHosts(system *actor.ActorSystem, cfg Config, log *slog.Logger) (*Remote, error) {
	switch {
	case cfg.Address != "" || cfg.Advertise != "" || cfg.TLS != nil:
		return nil, fmt.Errorf("%w: Cluster: this actor system has a Remote already, which listens where and as it does; leave Address, Advertise and TLS empty, or hand in a system without one", instance.ErrInvalid)
	case firewallOf(system) != nil && firewallOf(system).closed.Load():
		return nil, fmt.Errorf("%w: Cluster: the Remote of this actor system was stopped with the engine that had started it, and the actor library cannot have another; hand in a new system, or start a Remote of your own that lasts", instance.ErrInvalid)
	case cfg.Allow != nil:
		return nil, fmt.Errorf("%w: Cluster.Allow: this actor system has a Remote already; what it lets in, its own firewall says: give Allow to NewFirewall", instance.ErrInvalid)
	case system.Address() == unreachable:
		return nil, fmt.Errorf("%w: Cluster: the Remote of this actor system has not been started; start it before the engine, as actors that are older get no replies", instance.ErrInvalid)
	}
	r := &Remote{system: system, firewall: firewallOf(system)}
	if r.firewall != nil {
		r.outbox = r.firewall.outbox
	} else {
		r.outbox = newOutbox(maxWaiting, maxOutbox)
		log.Warn("gendurable: the host's Remote has no firewall: whoever reaches its port can stop actors and end the process; give it the options of cluster.NewFirewall")
	}
	return r, nil
}

// Address is where other nodes reach this one.
func (r *Remote) Address() string { return r.system.Address() }

// Firewall returns the firewall, nil when the host's Remote was started without.
func (r *Remote) Firewall() *Firewall { return r.firewall }

// Outbox bounds what waits for peers that do not read. Replies of gateways go through it.
func (r *Remote) Outbox() *Outbox { return r.outbox }

// Close ends the connections; a Remote of the host stays as it is. Stop the system's actors first: what they still send is
// lost. It may be called once.
func (r *Remote) Close() {
	if r.own == nil {
		return
	}
	r.firewall.closed.Store(true)
	// First the server alone, and its streams: the library's own order changes state that they read. Then the rest; it may
	// close a channel that is closed.
	_ = guarded(func() { r.own.Shutdown(false) })
	_ = guarded(func() { r.own.Shutdown(true) })
}

// guarded makes an error of a panic.
func guarded(f func()) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if err, _ = r.(error); err == nil {
				err = fmt.Errorf("%v", r)
			}
		}
	}()
	f()
	return nil
}

// Validate reports every problem of the configuration, each matching ErrInvalid.
func (c *Config) Validate() error {
	return errors.Join(append(c.validateRemote(), c.validateMembership()...)...)
}

func (c *Config) validateRemote() []error {
	var errs []error
	refuse := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: Cluster."+format, append([]any{instance.ErrInvalid}, args...)...))
	}
	reachable := false // from other machines
	if c.Address != "" {
		host, _, err := hostPort(c.Address)
		reachable = err == nil && !loopback(host)
		if err != nil {
			refuse("Address %q: must be host:port: %v", c.Address, err)
		} else if ip := net.ParseIP(host); (host == "" || ip != nil && ip.IsUnspecified()) && c.Advertise == "" {
			refuse("Address %q: is that of all interfaces, which no peer can connect to; say in Advertise which one they use", c.Address)
		}
	}
	if c.Advertise != "" {
		if host, port, err := hostPort(c.Advertise); err != nil || host == "" || port == 0 {
			refuse("Advertise %q: must be the host:port under which peers reach this node", c.Advertise)
		}
	}
	if reachable && c.TLS == nil && !c.Insecure {
		refuse("Address %q: can be reached from other machines, so it needs TLS; or set Insecure if the network lets only friends through", c.Address)
	}
	if t := c.TLS; t != nil {
		if len(t.Certificates) == 0 && (t.GetCertificate == nil || t.GetClientCertificate == nil) {
			refuse("TLS: needs this node's certificate in Certificates, for both sides of a connection")
		}
		if t.RootCAs == nil {
			refuse("TLS: needs RootCAs, those that vouch for your nodes; with the system's, every public web site could be one")
		}
		if t.GetConfigForClient != nil {
			refuse("TLS: GetConfigForClient could let in peers without a certificate; for one that changes use GetCertificate and GetClientCertificate")
		}
		if t.InsecureSkipVerify {
			refuse("TLS: InsecureSkipVerify lets anybody be a node")
		}
		if c.Insecure {
			refuse("Insecure: contradicts TLS")
		}
	}
	return errs
}

func (c *Config) serverCredentials() credentials.TransportCredentials {
	if c.TLS == nil {
		return insecure.NewCredentials()
	}
	t := c.TLS.Clone()
	t.MinVersion = tls.VersionTLS13
	t.ClientAuth = tls.RequireAndVerifyClientCert
	if t.ClientCAs == nil {
		t.ClientCAs = t.RootCAs
	}
	return credentials.NewTLS(t)
}

func (c *Config) clientCredentials() credentials.TransportCredentials {
	if c.TLS == nil {
		return insecure.NewCredentials()
	}
	t := c.TLS.Clone()
	t.MinVersion = tls.VersionTLS13
	return credentials.NewTLS(t)
}
