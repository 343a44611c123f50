package cluster

// DialOptions is how peers are dialled, with shorter patience.
var DialOptions = dialOptions

// ServerOptions are those of a firewall, with another interval of pings.
var ServerOptions = (*Firewall).serverOptions

// The intervals of a node.
const (
	KeepaliveTime    = keepaliveTime
	KeepaliveTimeout = keepaliveTimeout
)
