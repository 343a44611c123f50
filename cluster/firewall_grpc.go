package cluster

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	// maxMessage is the largest gRPC message, a batch. Requests are bounded well below by the client.
	maxMessage = 64 << 20
	// partSize is from where on a batch is sent in parts.
	partSize = 8 << 20
	// batchSize is how many messages go into one batch.
	batchSize = 64
	// keepaliveTime and keepaliveTimeout bound how long a peer that stands still goes unnoticed. Less than 10 s gRPC takes for
	// 10 s, at the dialling side.
	keepaliveTime, keepaliveTimeout = 10 * time.Second, 3 * time.Second
	// connectTimeout bounds how long a peer may take to accept a connection, greetTimeout until it has greeted on it.
	connectTimeout, greetTimeout = 5 * time.Second, 10 * time.Second
	// sendTimeout bounds how long a peer may leave a batch unread while it answers pings.
	sendTimeout = 30 * time.Second
)

// ServerOptions are the options for the gRPC server of a host's own Remote (remote.WithServerOptions), together with the
// host's credentials: the firewall, a bound for messages that fits DialOptions, and keepalive.
func (f *Firewall) ServerOptions() []grpc.ServerOption { return f.serverOptions(keepaliveTime) }

// serverOptions has the interval of pings: those that the server sends, and those that it expects.
func (f *Firewall) serverOptions(ping time.Duration) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(f.unary),
		grpc.ChainStreamInterceptor(f.stream),
		grpc.ForceServerCodecV2(newCodec()),
		grpc.MaxRecvMsgSize(maxMessage),
		grpc.MaxSendMsgSize(maxMessage),
		grpc.MaxConcurrentStreams(16),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: ping, Timeout: keepaliveTimeout}),
		// A peer that pings more often loses its connection. Half the interval: pings that were delayed may arrive in a bunch.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: ping / 2, PermitWithoutStream: true}),
		// When the server has been stopped, no stream of it touches the library's state any more.
		grpc.WaitForHandlers(true),
	}
}

// DialOptions are the options for the connections that a host's own Remote makes (remote.WithDialOptions), together with the
// host's credentials. Peers that stand still, or read nothing, are noticed by them and cut off.
func (f *Firewall) DialOptions() []grpc.DialOption {
	return dialOptions(f.outbox, greetTimeout, sendTimeout)
}

func dialOptions(outbox *Outbox, greet, send time.Duration) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string,
			streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return patiently(ctx, desc, cc, method, streamer, opts, outbox, greet, send)
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage)),
		grpc.WithNoProxy(), // nodes reach each other directly
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			Time: keepaliveTime, Timeout: keepaliveTimeout, PermitWithoutStream: true,
		}),
	}
}

// unary denies all calls: the library's implementations of them panic.
func (f *Firewall) unary(ctx context.Context, _ any, info *grpc.UnaryServerInfo, _ grpc.UnaryHandler) (any, error) {
	f.drop(&f.counts.calls, peerOf(ctx), "a call", "method", info.FullMethod)
	return nil, status.Error(codes.PermissionDenied, "gendurable: this node answers no such calls")
}

// stream guards the one stream that a peer has.
func (f *Firewall) stream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	who := peerOf(ss.Context())
	defer f.peers.Add(-1)
	if f.peers.Add(1) > maxPeers {
		f.drop(&f.counts.refused, who, "a peer, as there are too many")
		return status.Error(codes.ResourceExhausted, "gendurable: too many peers")
	}
	defer func() {
		if r := recover(); r != nil {
			f.counts.panics.Add(1)
			f.log.Error("gendurable: the actor library panicked under a message from outside",
				"peer", who, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "gendurable: the node failed under this message")
		}
	}()
	return handler(srv, &guardedStream{ServerStream: ss, f: f, peer: who})
}

func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return "unknown"
}

// guardedStream hands the library only what it can bear. It is used by one goroutine.
type guardedStream struct {
	grpc.ServerStream
	f    *Firewall
	peer string
	// announced is where the peer says it can be reached; empty = it has not introduced itself.
	announced string
}

// RecvMsg returns the next message that has something for us.
func (s *guardedStream) RecvMsg(m any) error {
	for {
		if err := s.ServerStream.RecvMsg(m); err != nil {
			switch status.Code(err) {
			case codes.ResourceExhausted:
				s.f.drop(&s.f.counts.oversized, s.peer, "an oversized batch", "error", err)
			case codes.Internal: // what a frame holds is no message
				s.f.drop(&s.f.counts.malformed, s.peer, "a stream of garbage", "error", err)
			}
			return err
		}
		if msg, ok := m.(*remote.RemoteMessage); ok && s.take(msg) {
			return nil
		}
	}
}

// take decides about a message of the stream, and takes out of it what is to be dropped.
func (s *guardedStream) take(m *remote.RemoteMessage) bool {
	switch t := m.MessageType.(type) {
	case *remote.RemoteMessage_ConnectRequest:
		server := t.ConnectRequest.GetServerConnection()
		if s.announced != "" || server.GetAddress() == "" {
			break
		}
		// "nonhost" is what the library calls every process by that has no Remote: replies to it would go to our own actors.
		if server.Address == s.f.system.Address() || server.Address == unreachable {
			s.f.drop(&s.f.counts.forged, s.peer, "a peer that claims this node's address")
			return false
		}
		s.announced = server.Address
		return true
	case *remote.RemoteMessage_MessageBatch:
		if s.announced == "" || t.MessageBatch == nil {
			break
		}
		if t.MessageBatch == oversized {
			s.f.drop(&s.f.counts.oversized, s.peer, "an oversized batch")
			return false
		}
		s.f.filter(s.peer, s.announced, t.MessageBatch)
		return len(t.MessageBatch.Envelopes) > 0
	}
	s.f.drop(&s.f.counts.malformed, s.peer, "a message out of turn")
	return false
}

// patiently makes a stream to a peer that ends when the peer does not greet in time, or reads nothing for too long. The
// library itself would wait for ever, and everything sent to that peer with it.
func patiently(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer,
	opts []grpc.CallOption, outbox *Outbox, greet, send time.Duration) (grpc.ClientStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	late := time.AfterFunc(greet, cancel)
	inner, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil {
		late.Stop()
		cancel()
		return nil, err
	}
	return &patientStream{ClientStream: inner, outbox: outbox, cancel: cancel, late: late, send: send}, nil
}

type patientStream struct {
	grpc.ClientStream
	outbox *Outbox
	cancel context.CancelFunc
	late   *time.Timer // until the peer has greeted
	send   time.Duration
}

func (s *patientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	s.late.Stop()
	if err != nil {
		s.cancel() // the stream is over, and so is its context
	}
	return err
}

// SendMsg sends a batch in parts if it is large.
func (s *patientStream) SendMsg(m any) error {
	if batch, ok := m.(*remote.RemoteMessage); ok {
		defer s.outbox.sending(batch)()
		for _, part := range parts(batch, partSize) {
			if err := s.sendOne(part); err != nil {
				return err
			}
		}
		return nil
	}
	return s.sendOne(m)
}

func (s *patientStream) sendOne(m any) error {
	slow := time.AfterFunc(s.send, s.cancel)
	defer slow.Stop()
	return s.ClientStream.SendMsg(m)
}
