//===- Connection.h - Frames between two ranks ------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_TCP_CONNECTION_H
#define MGQ_RUNTIME_TCP_CONNECTION_H

#include "runtime/src/process/ProcessTransport.h"
#include "runtime/src/tcp/Sockets.h"

namespace mgq::tcp {

/// What goes ahead of bytes on a connection. Commands are indices at the rank
/// that has them.
struct Frame {
  enum Kind : uint32_t {
    Whole,  ///< A short message.
    Offer,  ///< A long one, which waits until its receiver is there.
    Accept, ///< The receiver is there.
    Piece,  ///< Bytes of a long message.
    Beat,
    Abort, ///< The rank ends with this text.
    Heard, ///< An answer to it.
    Bye    ///< Nothing follows but beats.
  };
  uint32_t kind;
  int32_t tag;
  int64_t bytes;    ///< Of the payload, or of the message that is offered.
  int64_t sender;   ///< Command. Beat: for whom the rank waits.
  int64_t receiver; ///< Command.
  int64_t at;       ///< Piece: its place. Beat: nanoseconds since a call.

  int64_t payload() const {
    return kind == Whole || kind == Piece || kind == Abort ? bytes : 0;
  }
};

/// A frame that leaves, with the command that it is of, if any.
struct Outgoing {
  Frame frame;
  const std::byte *data = nullptr;
  process::Command *command = nullptr;
};

/// What becomes of frames.
class FrameHandler {
public:
  virtual ~FrameHandler() = default;
  /// A frame has begun: where its payload goes.
  virtual std::byte *arrives(int32_t peer, const Frame &frame) = 0;
  /// It is there.
  virtual void arrived(int32_t peer, const Frame &frame) = 0;
  /// One has left.
  virtual void left(int32_t peer, const Outgoing &outgoing) = 0;
};

/// One end. Neither read() nor write() blocks; both return false when the
/// connection is broken or the other end has closed it.
class Connection {
public:
  Connection() = default;
  Connection(int32_t peer, int descriptor) : peer(peer), socket(descriptor) {}

  void send(const Outgoing &frame) { queue.push_back(frame); }
  bool read(FrameHandler &handler);
  bool write(FrameHandler &handler);

  bool isOpen() const { return bool(socket); }
  bool hasOutput() const { return first < queue.size(); }
  int descriptor() const { return socket.get(); }
  void close() { socket = Socket(); }

private:
  int32_t peer = -1;
  Socket socket;
  std::vector<Outgoing> queue; ///< From `first` on.
  size_t first = 0;
  int64_t written = 0; ///< Of the first frame and its payload.
  Frame frame = {};    ///< That arrives.
  std::byte *to = nullptr;
  int64_t done = 0; ///< Of it and its payload.
};

} // namespace mgq::tcp

#endif // MGQ_RUNTIME_TCP_CONNECTION_H
