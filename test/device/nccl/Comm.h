//===- Comm.h - Communicators over sockets ----------------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_NCCL_COMM_H
#define MGQ_TEST_DEVICE_NCCL_COMM_H

#include "test/device/cuda/Stream.h"
#include <atomic>
#include <mutex>
#include <nccl.h>
#include <string>
#include <vector>

/// One rank's end. Between two ranks there are two sockets, one for each
/// direction of data.
struct ncclComm {
  std::string id;
  int rank = 0, size = 0, device = 0;
  int blocks = 0; ///< Of the device, at most; 0: not said.
  int listener = -1;
  std::vector<int> toPeer, fromPeer; ///< Sockets, -1 for this rank.
  mgq::device::Chain chain;
  std::atomic<ncclResult_t> fault{ncclSuccess}; ///< ncclCommGetAsyncError
  std::atomic<bool> aborted{false};
  std::atomic<int> running{0}; ///< Operations, on the threads of streams.
  std::mutex mutex;
  std::string text; ///< Of the fault.

  /// The first fault stays. `isReported`: it is one of the program.
  void fail(ncclResult_t code, const std::string &what, bool isReported);
  std::string name() const { return "NCCL rank " + std::to_string(rank); }
};

namespace mgq::device {

/// Opens communicators of a group: all listen, then all connect.
ncclResult_t connectAll(const std::vector<ncclComm *> &comms);
void disconnect(ncclComm &comm);

/// What both sides of a message must agree on.
struct Header {
  uint32_t kind;   ///< Message::Kind
  uint32_t type;   ///< ncclDataType_t
  uint32_t detail; ///< Reduction or root.
  uint32_t reserved;
  uint64_t count;
};

/// One message. A receiver says that it is there before data flows, as on a
/// GPU: a send without its receive does not end.
struct Message {
  enum Kind : uint32_t {
    PointToPoint,
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce
  };
  ncclComm *comm;
  bool isSend;
  int peer;
  Header header;
  std::vector<char> data;
  // Progress.
  enum State { Greeting, Answer, Data, Done } state = Greeting;
  size_t moved = 0;
  Header met{};
};

/// Moves all messages together. Those between two ranks in one direction go in
/// order. Returns when all are done or a communicator has failed.
void exchange(std::vector<Message> &messages);

const char *typeName(ncclDataType_t type);
size_t typeBytes(ncclDataType_t type); ///< 0: no type

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_NCCL_COMM_H
