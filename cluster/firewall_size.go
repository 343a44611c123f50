package cluster

import (
	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// A bound of bytes is none of memory: an element of a list may have two bytes on the wire and hundreds when it is decoded. So
// elements are counted before anything is decoded. An element is a message inside another one, or an entry of a list or map.
const (
	// maxFrame is the most elements of a batch, its messages not looked into: envelopes, names and addresses of all of
	// them, and some headers.
	maxFrame = 16 * maxEnvelopes
	// maxElements is the most in one message, and maxBatchElements that of all messages of a batch. A request of maxMany
	// parts has fewer, and so have those in a part of partSize.
	maxElements, maxBatchElements = 200_000, 1_000_000
	// maxMany is the most instances or signals in one request of a Client.
	maxMany = 20_000
)

// elements counts the elements of an encoded message, and stops counting above most. Bytes that do not decode count as far as
// they do.
func elements(data []byte, of protoreflect.MessageDescriptor, most int) int {
	n := 0
	for len(data) > 0 && n <= most {
		num, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			break
		}
		data = data[size:]
		if size = protowire.ConsumeFieldValue(num, kind, data); size < 0 {
			break
		}
		field := of.Fields().ByNumber(num)
		if field != nil && (field.IsList() || field.Message() != nil) {
			n++
			if field.Message() != nil && kind == protowire.BytesType {
				inner, _ := protowire.ConsumeBytes(data)
				n += elements(inner, field.Message(), most-n)
			}
		}
		data = data[size:]
	}
	return n
}

// countingCodec is gRPC's own, which decodes no batch that would take far more memory than bytes.
type countingCodec struct{ encoding.CodecV2 }

func newCodec() encoding.CodecV2 { return countingCodec{encoding.GetCodecV2(grpcproto.Name)} }

// oversized stands for a batch that was not decoded. It is compared, and neither read nor changed.
var oversized = new(remote.MessageBatch)

func (c countingCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*remote.RemoteMessage)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	buffer := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buffer.Free()
	if elements(buffer.ReadOnlyData(), m.ProtoReflect().Descriptor(), maxFrame) > maxFrame {
		// No error: that would end the stream, and with it what is good.
		proto.Reset(m)
		m.MessageType = &remote.RemoteMessage_MessageBatch{MessageBatch: oversized}
		return nil
	}
	return proto.Unmarshal(buffer.ReadOnlyData(), m)
}

// parts splits a batch by the bytes of its messages, so that a gRPC message bears each part, and a slow peer has the time
// of one for each. A message that is larger is a part of its own.
func parts(m *remote.RemoteMessage, most int) []*remote.RemoteMessage {
	b := m.GetMessageBatch()
	first, size := 0, 0
	var out []*remote.RemoteMessage
	cut := func(end int) {
		out = append(out, &remote.RemoteMessage{MessageType: &remote.RemoteMessage_MessageBatch{MessageBatch: &remote.MessageBatch{
			TypeNames: b.TypeNames, Targets: b.Targets, Senders: b.Senders, Envelopes: b.Envelopes[first:end]}}})
		first, size = end, 0
	}
	for i, e := range b.GetEnvelopes() {
		if i > first && size+len(e.GetMessageData()) > most {
			cut(i)
		}
		size += len(e.GetMessageData())
	}
	if len(out) == 0 {
		return []*remote.RemoteMessage{m}
	}
	cut(len(b.Envelopes))
	return out
}
