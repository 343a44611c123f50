package cluster

import (
	"crypto/tls"
	"net"
	"strconv"
	"time"

	protocluster "github.com/asynkron/protoactor-go/cluster"
)

// DefaultAddress is where a node listens when it is not told: on loopback, on a free port.
const DefaultAddress = "127.0.0.1:0"

// Config says how a process is reached by other nodes, and by clients of its gateway. The zero value is good for nodes
// on one machine.
type Config struct {
	// Address is the host and port to listen on; port 0 is a free one. Default DefaultAddress. An address that is not
	// a loopback one needs TLS, or Insecure. It stays empty when the host's ActorSystem has a Remote: that one is used.
	Address string
	// Advertise is the host and port under which others reach this node, when that is not the address it listens on: it
	// is named when Address is that of all interfaces, or behind a forwarded port. Default: the address it listens on.
	Advertise string
	// TLS is this node's certificate and what it trusts; it serves both sides of a connection. Certificates (or
	// GetCertificate and GetClientCertificate) and RootCAs are needed. A peer must have a certificate that ClientCAs
	// (default: RootCAs) vouch for, whatever ClientAuth says, and TLS 1.3.
	TLS *tls.Config
	// Insecure allows an address that is not loopback without TLS. Whoever reaches the port can then insert, signal and cancel.
	Insecure bool
	// Allow, if not nil, lets messages of the host's own actors through the firewall: it is asked for each message that is not
	// for an engine's actor, with the name of the target and the full name of the message's type. See Firewall.
	Allow func(target, message string) bool

	// TTL is how long a node is believed to live without a beat, and so how long the lanes of one that was killed stand still.
	// A node beats ten times as often. All nodes of a cluster need the same. Between 1 s and 10 min; default DefaultTTL.
	TTL time.Duration
	// Provider makes what says who belongs to the cluster, any ClusterProvider of the actor library: a new one each time this
	// node joins anew, or an error, after which it tries again. Default: the database, by the engine's own table of nodes.
	Provider func() (protocluster.ClusterProvider, error)
	// Host is the host's own cluster of the actor library, started already: then it says who belongs, this node is reached
	// through its Remote, and the host shuts it down after the engine.
	Host *protocluster.Cluster
}

// hostPort takes an address apart.
func hostPort(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	if err == nil && (port < 0 || port > 65535) {
		err = &net.AddrError{Err: "a port is between 0 and 65535", Addr: address}
	}
	return host, port, err
}

// loopback reports whether an address can be reached from this machine only.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
