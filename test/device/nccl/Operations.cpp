//===- Operations.cpp - Messages and collectives --------------------------===//
//
// A collective is messages between all pairs; what arrives is combined in the
// order of ranks, so all ranks get the same bits in every run.
//
//===----------------------------------------------------------------------===//

#include "test/device/nccl/Call.h"
#include "test/device/nccl/Reduce.h"
#include <cstring>
#include <memory>

using namespace mgq::device;

using Messages = std::vector<Message>;

static ncclResult_t check(ncclComm_t comm, ncclDataType_t type, int peer) {
  if (!comm || !handleExists(commKind, comm))
    return refuse(ncclInvalidArgument, "there is no such communicator");
  if (typeBytes(type) == 0)
    return refuse(ncclInvalidArgument,
                  "type " + std::to_string(type) + " is not supported");
  if (peer < 0 || peer >= comm->size)
    return refuse(ncclInvalidArgument, "rank " + std::to_string(peer) + " of " +
                                           std::to_string(comm->size));
  return comm->fault;
}

/// A message with the bytes at `from`.
static Message outgoing(ncclComm *comm, int peer, const Header &header,
                        const void *from, size_t bytes) {
  auto *first = static_cast<const char *>(from);
  return {comm, true, peer, header, std::vector<char>(first, first + bytes)};
}
static Message incoming(ncclComm *comm, int peer, const Header &header,
                        size_t bytes) {
  return {comm, false, peer, header, std::vector<char>(bytes)};
}

static bool reads(const void *from, size_t bytes) {
  return touchOrReport(from, int64_t(bytes), MGQ_TWIN_READ);
}
/// Copies what has arrived to device memory.
static bool deliver(void *to, const void *from, size_t bytes) {
  if (!touchOrReport(to, int64_t(bytes), MGQ_TWIN_WRITE))
    return false;
  std::memmove(to, from, bytes);
  return true;
}

NCCL_API ncclResult_t ncclSend(const void *from, size_t count,
                               ncclDataType_t type, int peer, ncclComm_t comm,
                               cudaStream_t stream) {
  NCCL_ENTER();
  if (ncclResult_t status = check(comm, type, peer))
    return status;
  if (peer == comm->rank)
    return refuse(ncclInvalidUsage, "not supported yet: a send to itself");
  size_t bytes = count * typeBytes(type);
  Header header{Message::PointToPoint, uint32_t(type), 0, 0, count};
  auto begin = [=](Messages &messages) {
    if (!reads(from, bytes))
      return false;
    messages.push_back(outgoing(comm, peer, header, from, bytes));
    return true;
  };
  return add({comm, stream, "ncclSend", begin, [](Message *) { return true; }});
}

NCCL_API ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type,
                               int peer, ncclComm_t comm, cudaStream_t stream) {
  NCCL_ENTER();
  if (ncclResult_t status = check(comm, type, peer))
    return status;
  if (peer == comm->rank)
    return refuse(ncclInvalidUsage, "not supported yet: a receive from itself");
  size_t bytes = count * typeBytes(type);
  Header header{Message::PointToPoint, uint32_t(type), 0, 0, count};
  auto begin = [=](Messages &messages) {
    messages.push_back(incoming(comm, peer, header, bytes));
    return true;
  };
  auto end = [=](Message *message) {
    return deliver(to, message->data.data(), bytes);
  };
  return add({comm, stream, "ncclRecv", begin, end});
}

/// Each rank gives every other a part, of `bytes`, `stride` after the last.
static void scatter(ncclComm *comm, const Header &header, const void *from,
                    size_t bytes, size_t stride, Messages &messages) {
  for (int peer = 0; peer < comm->size; ++peer) {
    if (peer == comm->rank)
      continue;
    auto *part = static_cast<const char *>(from) + size_t(peer) * stride;
    messages.push_back(outgoing(comm, peer, header, part, bytes));
    messages.push_back(incoming(comm, peer, header, bytes));
  }
}

/// The parts that ranks gave, with `mine` of this one. Messages are those of
/// scatter().
static std::vector<const void *> partsOf(const ncclComm *comm,
                                         const Message *messages,
                                         const std::vector<char> &mine) {
  std::vector<const void *> parts;
  for (int rank = 0; rank < comm->size; ++rank) {
    int index = rank < comm->rank ? rank : rank - 1;
    parts.push_back(rank == comm->rank ? mine.data()
                                       : messages[2 * index + 1].data.data());
  }
  return parts;
}

static ncclResult_t addReduction(const char *name, Message::Kind kind,
                                 const void *from, void *to, size_t count,
                                 ncclDataType_t type, ncclRedOp_t reduction,
                                 ncclComm_t comm, cudaStream_t stream) {
  if (ncclResult_t status = check(comm, type, 0))
    return status;
  if (!canReduce(type, reduction))
    return refuse(ncclInvalidArgument, "the reduction is not supported");
  size_t bytes = count * typeBytes(type);
  bool isScatter = kind == Message::ReduceScatter;
  size_t stride = isScatter ? bytes : 0;
  size_t whole = isScatter ? bytes * size_t(comm->size) : bytes;
  Header header{kind, uint32_t(type), uint32_t(reduction), 0, count};
  auto mine = std::make_shared<std::vector<char>>();
  auto begin = [=](Messages &messages) {
    if (!reads(from, whole))
      return false;
    auto *own = static_cast<const char *>(from) + size_t(comm->rank) * stride;
    mine->assign(own, own + bytes);
    scatter(comm, header, from, bytes, stride, messages);
    return true;
  };
  auto end = [=](Message *messages) {
    std::vector<char> result(bytes);
    reduce(result.data(), partsOf(comm, messages, *mine), count, type,
           reduction);
    return deliver(to, result.data(), bytes);
  };
  return add({comm, stream, name, begin, end});
}

NCCL_API ncclResult_t ncclAllReduce(const void *from, void *to, size_t count,
                                    ncclDataType_t type, ncclRedOp_t reduction,
                                    ncclComm_t comm, cudaStream_t stream) {
  NCCL_ENTER();
  return addReduction("ncclAllReduce", Message::AllReduce, from, to, count,
                      type, reduction, comm, stream);
}

NCCL_API ncclResult_t ncclReduceScatter(const void *from, void *to,
                                        size_t count, ncclDataType_t type,
                                        ncclRedOp_t reduction, ncclComm_t comm,
                                        cudaStream_t stream) {
  NCCL_ENTER();
  return addReduction("ncclReduceScatter", Message::ReduceScatter, from, to,
                      count, type, reduction, comm, stream);
}

NCCL_API ncclResult_t ncclAllGather(const void *from, void *to, size_t count,
                                    ncclDataType_t type, ncclComm_t comm,
                                    cudaStream_t stream) {
  NCCL_ENTER();
  if (ncclResult_t status = check(comm, type, 0))
    return status;
  size_t bytes = count * typeBytes(type);
  Header header{Message::AllGather, uint32_t(type), 0, 0, count};
  auto mine = std::make_shared<std::vector<char>>();
  auto begin = [=](Messages &messages) {
    if (!reads(from, bytes))
      return false;
    auto *own = static_cast<const char *>(from);
    mine->assign(own, own + bytes);
    scatter(comm, header, from, bytes, 0, messages);
    return true;
  };
  auto end = [=](Message *messages) {
    bool isInside = true;
    auto *at = static_cast<char *>(to);
    for (const void *part : partsOf(comm, messages, *mine)) {
      isInside &= deliver(at, part, bytes);
      at += bytes;
    }
    return isInside;
  };
  return add({comm, stream, "ncclAllGather", begin, end});
}

NCCL_API ncclResult_t ncclBroadcast(const void *from, void *to, size_t count,
                                    ncclDataType_t type, int root,
                                    ncclComm_t comm, cudaStream_t stream) {
  NCCL_ENTER();
  if (ncclResult_t status = check(comm, type, root))
    return status;
  size_t bytes = count * typeBytes(type);
  bool isRoot = comm->rank == root;
  Header header{Message::Broadcast, uint32_t(type), uint32_t(root), 0, count};
  auto begin = [=](Messages &messages) {
    if (!isRoot) {
      messages.push_back(incoming(comm, root, header, bytes));
      return true;
    }
    if (!reads(from, bytes))
      return false;
    for (int peer = 0; peer < comm->size; ++peer)
      if (peer != root)
        messages.push_back(outgoing(comm, peer, header, from, bytes));
    return true;
  };
  auto end = [=](Message *messages) {
    if (isRoot)
      return to == from || deliver(to, from, bytes);
    return deliver(to, messages->data.data(), bytes);
  };
  return add({comm, stream, "ncclBroadcast", begin, end});
}

NCCL_API ncclResult_t ncclBcast(void *buffer, size_t count, ncclDataType_t type,
                                int root, ncclComm_t comm,
                                cudaStream_t stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

NCCL_API ncclResult_t ncclReduce(const void *from, void *to, size_t count,
                                 ncclDataType_t type, ncclRedOp_t reduction,
                                 int root, ncclComm_t comm,
                                 cudaStream_t stream) {
  NCCL_ENTER();
  if (ncclResult_t status = check(comm, type, root))
    return status;
  if (!canReduce(type, reduction))
    return refuse(ncclInvalidArgument, "the reduction is not supported");
  size_t bytes = count * typeBytes(type);
  bool isRoot = comm->rank == root;
  Header header{Message::Reduce, uint32_t(type),
                uint32_t(reduction) << 16 | uint32_t(root), 0, count};
  auto begin = [=](Messages &messages) {
    if (!reads(from, bytes))
      return false;
    if (!isRoot)
      messages.push_back(outgoing(comm, root, header, from, bytes));
    for (int peer = 0; isRoot && peer < comm->size; ++peer)
      if (peer != root)
        messages.push_back(incoming(comm, peer, header, bytes));
    return true;
  };
  auto end = [=](Message *messages) {
    if (!isRoot)
      return true;
    std::vector<const void *> parts;
    for (int rank = 0; rank < comm->size; ++rank)
      parts.push_back(
          rank == root ? from
                       : messages[rank < root ? rank : rank - 1].data.data());
    std::vector<char> result(bytes);
    reduce(result.data(), parts, count, type, reduction);
    return deliver(to, result.data(), bytes);
  };
  return add({comm, stream, "ncclReduce", begin, end});
}
