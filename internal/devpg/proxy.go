package devpg

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync"
)

// A Proxy sits between clients and a server and breaks connections on demand. It listens on a free port
// of 127.0.0.1 and connects to the server anew for each client, so a server that restarts on its port is
// found again. All methods may be called at any time from any goroutine.
type Proxy struct {
	listener net.Listener
	target   string
	url      string

	mu      sync.Mutex
	resumed *sync.Cond // on mu; signalled when paused, closed or a connection's fate changes
	conns   map[*proxyConn]struct{}
	paused  bool
	refuse  bool
	closed  bool
	traps   []*trap
	onBytes func(server []byte) bool
	running sync.WaitGroup
}

// trap waits for a request and breaks its connection.
type trap struct {
	match   func(client []byte) bool
	deliver bool // let the server have the request and withhold its reply
	done    chan struct{}
}

// proxyConn is one client with its connection to the server.
type proxyConn struct {
	client, server net.Conn
	trap           *trap  // set while the reply to a request is to be withheld; guarded by Proxy.mu
	tail           []byte // the end of the withheld reply; used by the server's copier only
}

// NewProxy starts a proxy in front of the server that dsn, a URL, names. Close ends it.
func NewProxy(dsn string) (*Proxy, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Hostname() == "" {
		return nil, fmt.Errorf("devpg: a proxy needs the URL of a server that listens on TCP, as Server.URL returns; got %q", dsn)
	}
	target := u.Host
	if u.Port() == "" {
		target = net.JoinHostPort(u.Hostname(), "5432")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("devpg: listen for the proxy: %w", err)
	}
	u.Host = l.Addr().String()
	q := u.Query()
	q.Set("sslmode", "disable") // the proxy must be able to read the traffic
	u.RawQuery = q.Encode()
	p := &Proxy{listener: l, target: target, url: u.String(), conns: map[*proxyConn]struct{}{}}
	p.resumed = sync.NewCond(&p.mu)
	p.running.Add(1)
	go p.accept()
	return p, nil
}

// URL returns the connection string that leads to the server through the proxy.
func (p *Proxy) URL() string { return p.url }

// Cut resets all connections at once and returns how many there were.
func (p *Proxy) Cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.conns)
	for c := range p.conns {
		p.cut(c)
	}
	return n
}

// Pause holds back all traffic, in both directions, until Resume. Connections stay open.
func (p *Proxy) Pause() { p.set(func() { p.paused = true }) }

// Resume lets the traffic flow again.
func (p *Proxy) Resume() { p.set(func() { p.paused = false }) }

// Refuse makes the proxy reset new connections at once, or stop doing so. Existing ones are not touched.
func (p *Proxy) Refuse(yes bool) { p.set(func() { p.refuse = yes }) }

// OnServerBytes has f look at everything that the server sends, before the client gets it. When f returns
// false, these bytes are dropped and the connection is reset. f must not keep the slice nor call the
// proxy's methods; it is called for one chunk at a time. A nil f removes it.
func (p *Proxy) OnServerBytes(f func(server []byte) bool) { p.set(func() { p.onBytes = f }) }

// CutReply lets the next request through to the server, waits until the server has carried it out, and
// then resets the connection instead of delivering the reply: the client cannot know whether, for
// instance, its COMMIT counted. It works once, on the first request for which match returns true; nil
// matches any. The returned channel is closed when the connection has been reset.
//
// match gets the bytes as they are on the wire, one chunk for what the client sent in one write. COMMIT
// and other statements without parameters are readable; pgx sends the text of a statement with
// parameters once in a connection, and only its parameters after that.
func (p *Proxy) CutReply(match func(client []byte) bool) <-chan struct{} {
	return p.setTrap(match, true)
}

// CutRequest resets the connection instead of passing the request on: the server never hears of it and
// rolls the transaction back. Otherwise it is like CutReply.
func (p *Proxy) CutRequest(match func(client []byte) bool) <-chan struct{} {
	return p.setTrap(match, false)
}

// Close resets all connections, stops listening and waits until all is done. Calling it again does
// nothing.
func (p *Proxy) Close() error {
	p.set(func() {
		p.closed = true
		for c := range p.conns {
			p.cut(c)
		}
	})
	err := p.listener.Close()
	p.running.Wait()
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("devpg: close the proxy: %w", err)
	}
	return nil
}

func (p *Proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.resumed.Broadcast()
}

func (p *Proxy) setTrap(match func([]byte) bool, deliver bool) <-chan struct{} {
	if match == nil {
		match = func([]byte) bool { return true }
	}
	t := &trap{match: match, deliver: deliver, done: make(chan struct{})}
	p.set(func() { p.traps = append(p.traps, t) })
	return t.done
}

func (p *Proxy) accept() {
	defer p.running.Done()
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Add(1)
		go p.serve(client)
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.running.Done()
	p.mu.Lock()
	refuse := p.refuse || p.closed
	p.mu.Unlock()
	var server net.Conn
	if !refuse {
		server, _ = net.Dial("tcp", p.target)
	}
	if server == nil {
		reset(client)
		return
	}
	c := &proxyConn{client: client, server: server}
	p.mu.Lock()
	if p.closed || p.refuse {
		p.cut(c)
	} else {
		p.conns[c] = struct{}{}
	}
	p.mu.Unlock()

	replies := make(chan struct{})
	go func() {
		defer close(replies)
		p.copy(c, server, client, p.reply)
	}()
	p.copy(c, client, server, p.request)
	<-replies
}

// copy passes bytes on until either side closes or judge says that the connection is to be cut.
func (p *Proxy) copy(c *proxyConn, from, to net.Conn, judge func(*proxyConn, []byte) verdict) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			switch p.decide(c, buf[:n], judge) {
			case pass:
				if _, werr := to.Write(buf[:n]); werr != nil {
					err = werr
				}
			case cut:
				return
			}
		}
		if err != nil {
			p.mu.Lock()
			p.end(c)
			p.mu.Unlock()
			return
		}
	}
}

type verdict int

const (
	pass verdict = iota
	withhold
	cut
)

// decide waits while traffic is paused and then has judge look at the bytes.
func (p *Proxy) decide(c *proxyConn, b []byte, judge func(*proxyConn, []byte) verdict) verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.paused {
		if _, alive := p.conns[c]; !alive {
			return cut
		}
		p.resumed.Wait()
	}
	v := judge(c, b)
	if v == cut {
		p.cut(c)
	}
	return v
}

// request judges what the client sent. p.mu is held.
func (p *Proxy) request(c *proxyConn, b []byte) verdict {
	for i, t := range p.traps {
		if c.trap != nil || !t.match(b) {
			continue
		}
		p.traps = append(p.traps[:i:i], p.traps[i+1:]...)
		c.trap = t
		if !t.deliver {
			return cut
		}
		break
	}
	return pass
}

// readyForQuery is how the server ends the reply to a request; one byte for the state of the transaction
// follows.
var readyForQuery = []byte{'Z', 0, 0, 0, 5}

// reply judges what the server sent. p.mu is held.
func (p *Proxy) reply(c *proxyConn, b []byte) verdict {
	if p.onBytes != nil && !p.onBytes(b) {
		return cut
	}
	if c.trap == nil {
		return pass
	}
	c.tail = append(c.tail, b...)
	c.tail = c.tail[max(0, len(c.tail)-len(readyForQuery)-1):]
	if bytes.HasPrefix(c.tail, readyForQuery) {
		return cut
	}
	return withhold
}

// cut resets both sides of a connection. p.mu is held.
func (p *Proxy) cut(c *proxyConn) {
	reset(c.client)
	reset(c.server)
	p.forget(c)
}

// end closes both sides after one of them did. p.mu is held.
func (p *Proxy) end(c *proxyConn) {
	if c.trap != nil {
		reset(c.client)
	}
	c.client.Close()
	c.server.Close()
	p.forget(c)
}

func (p *Proxy) forget(c *proxyConn) {
	if c.trap != nil {
		close(c.trap.done)
		c.trap = nil
	}
	delete(p.conns, c)
	p.resumed.Broadcast()
}

// reset closes a connection so that its other side sees an error, not an orderly end.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	c.Close()
}
