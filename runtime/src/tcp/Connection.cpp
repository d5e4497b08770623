//===- Connection.cpp - Frames between two ranks --------------------------===//

#include "runtime/src/tcp/Connection.h"
#include <cerrno>
#include <sys/socket.h>
#include <sys/uio.h>

using namespace mgq::tcp;

static constexpr auto headBytes = static_cast<int64_t>(sizeof(Frame));
// Frames that are read before other connections have their turn.
static constexpr int mostFrames = 16;

static bool isTemporary() { return errno == EAGAIN || errno == EINTR; }

bool Connection::read(FrameHandler &handler) {
  for (int frames = 0; frames < mostFrames;) {
    bool inHead = done < headBytes;
    std::byte *place = inHead ? reinterpret_cast<std::byte *>(&frame) + done
                              : to + (done - headBytes);
    int64_t end = inHead ? headBytes : headBytes + frame.payload();
    ssize_t size =
        recv(socket.get(), place, static_cast<size_t>(end - done), 0);
    if (size == 0)
      return false;
    if (size < 0)
      return isTemporary();
    done += size;
    if (done == headBytes) {
      if (frame.kind > Frame::Bye || frame.bytes < 0)
        return false;
      to = handler.arrives(peer, frame);
    }
    if (done >= headBytes && done == headBytes + frame.payload()) {
      done = 0;
      ++frames;
      handler.arrived(peer, frame);
    }
  }
  return true;
}

bool Connection::write(FrameHandler &handler) {
  while (hasOutput()) {
    Outgoing &outgoing = queue[first];
    int64_t whole = headBytes + outgoing.frame.payload();
    iovec parts[2] = {};
    int64_t ofHead = std::min(written, headBytes);
    parts[0].iov_base = reinterpret_cast<std::byte *>(&outgoing.frame) + ofHead;
    parts[0].iov_len = static_cast<size_t>(headBytes - ofHead);
    int64_t ofData = written - ofHead;
    parts[1].iov_base = const_cast<std::byte *>(outgoing.data) + ofData;
    parts[1].iov_len = static_cast<size_t>(whole - headBytes - ofData);
    msghdr message = {};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    ssize_t size = sendmsg(socket.get(), &message, MSG_NOSIGNAL);
    if (size < 0)
      return isTemporary();
    written += size;
    if (written < whole)
      continue;
    written = 0;
    Outgoing gone = outgoing;
    if (++first == queue.size()) {
      queue.clear();
      first = 0;
    }
    handler.left(peer, gone);
  }
  return true;
}
