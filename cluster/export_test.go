package cluster

// DialOptions is how peers are dialled, with shorter patience.
var DialOptions = dialOptions

// NewOutbox makes one with other bounds.
var NewOutbox = newOutbox

// Waiting is how many bytes wait for a peer, and Held how many for all, those included that are being sent.
func (o *Outbox) Waiting(peer string) (waiting, held int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.waiting[peer], o.held
}

// MaxWaiting is a node's bound for a peer.
const MaxWaiting = maxWaiting

// ServerOptions are those of a firewall, with another interval of pings.
var ServerOptions = (*Firewall).serverOptions

// The intervals of a node.
const (
	KeepaliveTime    = keepaliveTime
	KeepaliveTimeout = keepaliveTimeout
)
