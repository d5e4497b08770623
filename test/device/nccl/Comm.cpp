//===- Comm.cpp - Communicators over sockets ------------------------------===//

#include "test/device/nccl/Comm.h"
#include "test/device/cuda/Settings.h"
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

using namespace mgq::device;

void ncclComm::fail(ncclResult_t code, const std::string &what,
                    bool isReported) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (fault != ncclSuccess)
      return;
    text = what;
    fault = code;
  }
  if (isReported)
    report(name() + ": " + what);
  // Peers that wait for this rank wait no longer.
  for (const std::vector<int> *sockets : {&toPeer, &fromPeer})
    for (int socket : *sockets)
      if (socket >= 0)
        shutdown(socket, SHUT_RDWR);
}

const char *mgq::device::typeName(ncclDataType_t type) {
  static const char *const names[] = {"i8",  "u8",  "i32", "u32", "i64",
                                      "u64", "f16", "f32", "f64", "bf16"};
  return unsigned(type) < 10 ? names[type] : "unknown type";
}

size_t mgq::device::typeBytes(ncclDataType_t type) {
  static const size_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return unsigned(type) < 10 ? bytes[type] : 0;
}

//===----------------------------------------------------------------------===//
// Meeting
//===----------------------------------------------------------------------===//

namespace {
using Time = std::chrono::steady_clock;

/// What the connecting side says first.
struct Hello {
  int32_t rank, size, device;
  int32_t dataComesFromHere;
};
} // namespace

static bool isOver(Time::time_point start) {
  return Time::now() - start > std::chrono::seconds(settings().timeout);
}

/// An address without a file, known to those who know the id.
static socklen_t makeAddress(const std::string &id, int rank,
                             sockaddr_un &address) {
  address = {};
  address.sun_family = AF_UNIX;
  int length = std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1,
                             "%.80s.%d", id.c_str(), rank);
  return socklen_t(offsetof(sockaddr_un, sun_path) + 1 + size_t(length));
}

static int openSocket() {
  return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static ncclResult_t listen(ncclComm &comm) {
  sockaddr_un address;
  socklen_t length = makeAddress(comm.id, comm.rank, address);
  comm.listener = openSocket();
  if (bind(comm.listener, reinterpret_cast<sockaddr *>(&address), length) ||
      listen(comm.listener, 2 * comm.size)) {
    comm.fail(ncclInvalidUsage,
              "another process has this rank of the "
              "communicator",
              true);
    return ncclInvalidUsage;
  }
  return ncclSuccess;
}

static bool readAll(int socket, void *data, size_t bytes) {
  return recv(socket, data, bytes, MSG_WAITALL) == ssize_t(bytes);
}
static bool writeAll(int socket, const void *data, size_t bytes) {
  return send(socket, data, bytes, MSG_NOSIGNAL) == ssize_t(bytes);
}

/// A socket to a lower rank, which may not be there yet.
static int connectTo(ncclComm &comm, int peer, bool dataComesFromHere) {
  sockaddr_un address;
  socklen_t length = makeAddress(comm.id, peer, address);
  Time::time_point start = Time::now();
  while (!isOver(start)) {
    int socket = openSocket();
    if (connect(socket, reinterpret_cast<sockaddr *>(&address), length) == 0) {
      Hello hello{comm.rank, comm.size, comm.device, dataComesFromHere};
      writeAll(socket, &hello, sizeof hello);
      return socket;
    }
    close(socket);
    usleep(2000);
  }
  return -1;
}

static ncclResult_t connectLower(ncclComm &comm) {
  for (int peer = 0; peer < comm.rank; ++peer) {
    comm.toPeer[size_t(peer)] = connectTo(comm, peer, true);
    comm.fromPeer[size_t(peer)] = connectTo(comm, peer, false);
    if (comm.toPeer[size_t(peer)] < 0 || comm.fromPeer[size_t(peer)] < 0) {
      comm.fail(ncclSystemError,
                "rank " + std::to_string(peer) +
                    " did not come to "
                    "ncclCommInitRank within " +
                    std::to_string(settings().timeout) + " s",
                true);
      return ncclSystemError;
    }
  }
  return ncclSuccess;
}

/// Takes one connection; says whether both sides want the same.
static ncclResult_t acceptOne(ncclComm &comm) {
  pollfd waiting{comm.listener, POLLIN, 0};
  if (poll(&waiting, 1, settings().timeout * 1000) <= 0) {
    comm.fail(ncclSystemError,
              "not all ranks came to ncclCommInitRank within " +
                  std::to_string(settings().timeout) + " s",
              true);
    return ncclSystemError;
  }
  int socket = accept4(comm.listener, nullptr, nullptr, SOCK_CLOEXEC);
  Hello hello;
  if (!readAll(socket, &hello, sizeof hello))
    return ncclSystemError;
  if (hello.size != comm.size) {
    comm.fail(ncclInvalidArgument,
              "rank " + std::to_string(hello.rank) + " says that there are " +
                  std::to_string(hello.size) + " ranks, this one " +
                  std::to_string(comm.size),
              true);
    return ncclInvalidArgument;
  }
  if (hello.device == comm.device) {
    comm.fail(ncclInvalidUsage,
              "rank " + std::to_string(hello.rank) + " has the same device, " +
                  std::to_string(comm.device),
              true);
    return ncclInvalidUsage;
  }
  auto &sockets = hello.dataComesFromHere ? comm.fromPeer : comm.toPeer;
  sockets[size_t(hello.rank)] = socket;
  return ncclSuccess;
}

ncclResult_t mgq::device::connectAll(const std::vector<ncclComm *> &comms) {
  for (ncclComm *comm : comms) {
    comm->toPeer.assign(size_t(comm->size), -1);
    comm->fromPeer.assign(size_t(comm->size), -1);
    if (ncclResult_t status = listen(*comm))
      return status;
  }
  for (ncclComm *comm : comms)
    if (ncclResult_t status = connectLower(*comm))
      return status;
  for (ncclComm *comm : comms)
    for (int i = 0; i < 2 * (comm->size - 1 - comm->rank); ++i)
      if (ncclResult_t status = acceptOne(*comm))
        return status;
  for (ncclComm *comm : comms) {
    close(comm->listener);
    comm->listener = -1;
    for (const std::vector<int> *sockets : {&comm->toPeer, &comm->fromPeer})
      for (int socket : *sockets)
        if (socket >= 0)
          fcntl(socket, F_SETFL, O_NONBLOCK);
  }
  return ncclSuccess;
}

void mgq::device::disconnect(ncclComm &comm) {
  if (comm.listener >= 0)
    close(comm.listener);
  for (const std::vector<int> *sockets : {&comm.toPeer, &comm.fromPeer})
    for (int socket : *sockets)
      if (socket >= 0)
        close(socket);
}

//===----------------------------------------------------------------------===//
// Messages
//===----------------------------------------------------------------------===//

static std::string describe(const Header &header) {
  static const char *const kinds[] = {"message",        "all-reduce",
                                      "reduce-scatter", "all-gather",
                                      "broadcast",      "reduce"};
  std::string kind = header.kind < 6 ? kinds[header.kind] : "unknown operation";
  return kind + " of " + std::to_string(header.count) + " " +
         typeName(ncclDataType_t(header.type)) +
         (header.detail
              ? " (root or reduction " + std::to_string(header.detail) + ")"
              : "");
}

static int socketOf(const Message &message) {
  auto peer = size_t(message.peer);
  return message.isSend ? message.comm->toPeer[peer]
                        : message.comm->fromPeer[peer];
}

namespace {
enum class Moved { Some, Nothing, Broken };
} // namespace

/// Moves bytes of a part of a message on; `done` when all are.
static Moved move(int socket, bool out, void *part, size_t bytes, size_t &moved,
                  bool &done) {
  char *at = static_cast<char *>(part) + moved;
  ssize_t n = 0;
  if (moved < bytes) {
    n = out ? send(socket, at, bytes - moved, MSG_NOSIGNAL | MSG_DONTWAIT)
            : recv(socket, at, bytes - moved, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
      return Moved::Nothing;
    if (n <= 0)
      return Moved::Broken;
    moved += size_t(n);
  }
  done = moved == bytes;
  return Moved::Some;
}

/// The receiver has the sender's header.
static bool agree(Message &message) {
  if (std::memcmp(&message.met, &message.header, sizeof(Header)) == 0)
    return true;
  message.comm->fail(ncclInvalidUsage,
                     describe(message.header) + " met a " +
                         describe(message.met) + " of rank " +
                         std::to_string(message.peer),
                     true);
  return false;
}

/// One step of a message. Both sides pass the states Greeting (the sender's
/// header), Answer (a byte of the receiver), Data.
static Moved step(Message &message) {
  int socket = socketOf(message);
  bool done = false;
  Moved moved = Moved::Nothing;
  char answer = 1;
  switch (message.state) {
  case Message::Greeting:
    moved = move(socket, message.isSend,
                 message.isSend ? &message.header : &message.met,
                 sizeof(Header), message.moved, done);
    if (done && !message.isSend && !agree(message))
      return Moved::Broken;
    break;
  case Message::Answer:
    moved = move(socket, !message.isSend, &answer, 1, message.moved, done);
    break;
  case Message::Data:
    moved = move(socket, message.isSend, message.data.data(),
                 message.data.size(), message.moved, done);
    break;
  case Message::Done:
    break;
  }
  if (done) {
    message.state = Message::State(message.state + 1);
    if (message.state == Message::Data && message.data.empty())
      message.state = Message::Done;
    message.moved = 0;
  }
  return moved;
}

/// Messages that may move: the first of each direction between two ranks.
static std::vector<Message *> findHeads(std::vector<Message> &messages) {
  std::map<int, Message *> heads;
  for (Message &message : messages)
    if (message.state != Message::Done)
      heads.emplace(socketOf(message), &message);
  std::vector<Message *> result;
  for (auto &[socket, message] : heads)
    result.push_back(message);
  return result;
}

static short awaited(const Message &message) {
  bool out = message.isSend != (message.state == Message::Answer);
  return out ? POLLOUT : POLLIN;
}

static void failAll(const std::vector<Message *> &messages, ncclResult_t code,
                    const std::string &text, bool isReported) {
  for (Message *message : messages)
    message->comm->fail(
        code,
        text + (message->isSend ? ": send to rank " : ": receive from rank ") +
            std::to_string(message->peer) + ", " + describe(message->header),
        isReported);
}

static bool isBroken(const std::vector<Message> &messages) {
  for (const Message &message : messages)
    if (message.comm->fault != ncclSuccess || message.comm->aborted)
      return true;
  return false;
}

void mgq::device::exchange(std::vector<Message> &messages) {
  Time::time_point start = Time::now();
  while (!isBroken(messages)) {
    std::vector<Message *> heads = findHeads(messages);
    if (heads.empty())
      return;
    std::vector<pollfd> waiting;
    for (Message *message : heads)
      waiting.push_back({socketOf(*message), awaited(*message), 0});
    poll(waiting.data(), waiting.size(), 50);
    for (size_t i = 0; i < heads.size(); ++i) {
      if (!waiting[i].revents)
        continue;
      Moved moved = step(*heads[i]);
      if (moved == Moved::Some)
        start = Time::now();
      if (moved == Moved::Broken)
        // The peer says itself what was wrong.
        failAll({heads[i]}, ncclRemoteError, "the peer is gone", false);
    }
    if (isOver(start))
      failAll(heads, ncclInternalError,
              "waited " + std::to_string(settings().timeout) + " s in " +
                  runningOperation(),
              true);
  }
}
