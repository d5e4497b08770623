//===- Api.cpp - The stand-in of libnccl ----------------------------------===//

#include "test/device/cuda/Settings.h"
#include "test/device/nccl/Call.h"
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <sys/random.h>
#include <thread>
#include <unistd.h>

using namespace mgq::device;

namespace {
struct Group {
  int depth = 0;
  std::vector<Call> calls;
  std::vector<ncclComm *> opening;
};
} // namespace

static thread_local Group group;
static thread_local std::string lastError;

ncclResult_t mgq::device::refuse(ncclResult_t code, const std::string &text) {
  lastError = text;
  return code;
}

//===----------------------------------------------------------------------===//
// Communicators
//===----------------------------------------------------------------------===//

NCCL_API ncclResult_t ncclGetVersion(int *version) {
  NCCL_ENTER();
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
  NCCL_ENTER();
  uint64_t random[2];
  if (getrandom(random, sizeof random, 0) != sizeof random)
    return ncclSystemError;
  std::memset(id, 0, sizeof *id);
  std::snprintf(id->internal, sizeof id->internal, "mgq-nccl-%d-%016llx%016llx",
                getpid(), (unsigned long long)random[0],
                (unsigned long long)random[1]);
  return ncclSuccess;
}

static ncclResult_t openNow(const std::vector<ncclComm *> &comms) {
  ncclResult_t status = connectAll(comms);
  if (status != ncclSuccess)
    for (ncclComm *comm : comms)
      if (!comm->text.empty())
        lastError = comm->text;
  return status;
}

NCCL_API ncclResult_t ncclCommInitRank(ncclComm_t *handle, int size,
                                       ncclUniqueId id, int rank) {
  NCCL_ENTER();
  if (size < 1 || rank < 0 || rank >= size)
    return refuse(ncclInvalidArgument, "rank " + std::to_string(rank) + " of " +
                                           std::to_string(size));
  if (currentDevice() < 0)
    return refuse(ncclUnhandledCudaError, "there is no current context");
  id.internal[sizeof id.internal - 1] = 0;
  auto *comm = new ncclComm;
  comm->id = id.internal;
  comm->rank = rank;
  comm->size = size;
  comm->device = currentDevice();
  handleMade(commKind, comm);
  *handle = comm;
  if (group.depth > 0) {
    group.opening.push_back(comm);
    return ncclSuccess;
  }
  return openNow({comm});
}

/// What the communicators of a device may have waiting at once. A message whose
/// blocks have no room, because others wait, may be what those wait for.
static void takeBlocks(ncclComm &comm, int blocks) {
  static std::mutex mutex;
  static std::map<int, int> taken; ///< By device.
  std::lock_guard<std::mutex> lock(mutex);
  comm.blocks += blocks;
  int all = taken[comm.device] += blocks;
  if (blocks > 0 && all > multiprocessors)
    report("the communicators of device " + std::to_string(comm.device) +
           " may take " + std::to_string(all) +
           " blocks at once, it has room "
           "for " +
           std::to_string(multiprocessors) +
           ": messages may wait for each other");
}

NCCL_API ncclResult_t ncclCommInitRankConfig(ncclComm_t *handle, int size,
                                             ncclUniqueId id, int rank,
                                             ncclConfig_t *config) {
  ncclResult_t status = ncclCommInitRank(handle, size, id, rank);
  if (status == ncclSuccess && config &&
      config->maxCTAs != NCCL_CONFIG_UNDEF_INT)
    takeBlocks(**handle, config->maxCTAs);
  return status;
}

/// Operations that a broken device drops are never done.
static void waitUntilFinished(ncclComm &comm) {
  while (comm.running > 0 ||
         (!isDone(comm.chain.last) && stickyFault(comm.device) == 0))
    std::this_thread::yield();
}

static ncclResult_t closeComm(ncclComm_t comm) {
  if (!handleGone(commKind, comm))
    return ncclInvalidArgument;
  waitUntilFinished(*comm);
  takeBlocks(*comm, -comm->blocks);
  disconnect(*comm);
  delete comm;
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  NCCL_ENTER();
  waitUntilFinished(*comm);
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  NCCL_ENTER();
  return comm ? closeComm(comm) : ncclSuccess;
}

NCCL_API ncclResult_t ncclCommAbort(ncclComm_t comm) {
  NCCL_ENTER();
  if (!handleExists(commKind, comm))
    return ncclInvalidArgument;
  comm->aborted = true;
  return closeComm(comm);
}

NCCL_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm,
                                            ncclResult_t *fault) {
  NCCL_ENTER();
  *fault = comm->fault;
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommCount(const ncclComm_t comm, int *count) {
  *count = comm->size;
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device) {
  *device = comm->device;
  return ncclSuccess;
}
NCCL_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank) {
  *rank = comm->rank;
  return ncclSuccess;
}

NCCL_API const char *ncclGetErrorString(ncclResult_t code) {
  switch (code) {
  case ncclSuccess:
    return "no error";
  case ncclUnhandledCudaError:
    return "unhandled cuda error";
  case ncclSystemError:
    return "unhandled system error";
  case ncclInternalError:
    return "internal error";
  case ncclInvalidArgument:
    return "invalid argument";
  case ncclInvalidUsage:
    return "invalid usage";
  case ncclRemoteError:
    return "remote process exited or there was a network error";
  case ncclInProgress:
    return "NCCL operation in progress";
  default:
    return "unknown result code";
  }
}

NCCL_API const char *ncclGetLastError(ncclComm_t comm) {
  if (comm && handleExists(commKind, comm)) {
    std::lock_guard<std::mutex> lock(comm->mutex);
    if (!comm->text.empty())
      lastError = comm->text;
  }
  return lastError.c_str();
}

//===----------------------------------------------------------------------===//
// Groups
//===----------------------------------------------------------------------===//

/// Runs the calls of a group that share a stream: all messages move together.
static int runCalls(const std::vector<Call> &calls) {
  std::vector<Message> messages;
  std::vector<size_t> first;
  bool isUsable = true, isInside = true;
  exclusively([&] {
    for (const Call &call : calls) {
      ++call.comm->running;
      isUsable &= call.comm->fault == ncclSuccess && !call.comm->aborted;
      first.push_back(messages.size());
      isInside &= call.begin(messages);
    }
  });
  if (isUsable && isInside)
    exchange(messages);
  bool isDone = isUsable && isInside;
  for (const Message &message : messages)
    isDone &= message.state == Message::Done;
  if (isDone)
    exclusively([&] {
      for (size_t i = 0; i < calls.size(); ++i)
        isInside &= calls[i].end(messages.data() + first[i]);
    });
  for (const Call &call : calls)
    --call.comm->running;
  return isInside ? 0 : CUDA_ERROR_ILLEGAL_ADDRESS;
}

static ncclResult_t enqueueCalls(cudaStream_t stream, std::vector<Call> calls) {
  std::set<ncclComm *> comms;
  std::string name;
  for (const Call &call : calls) {
    comms.insert(call.comm);
    name += (name.empty() ? "" : " + ") + call.name;
  }
  std::vector<Chain *> chains;
  for (ncclComm *comm : comms)
    chains.push_back(&comm->chain);
  int status = enqueueOn(
      reinterpret_cast<CUstream>(stream), name,
      [calls = std::move(calls)] { return runCalls(calls); }, Run::Freely,
      chains);
  return status ? refuse(ncclUnhandledCudaError, "the stream is not usable")
                : ncclSuccess;
}

static ncclResult_t closeGroup() {
  std::vector<Call> calls = std::move(group.calls);
  std::vector<ncclComm *> opening = std::move(group.opening);
  group.calls.clear();
  group.opening.clear();
  if (!opening.empty())
    if (ncclResult_t status = openNow(opening))
      return status;
  std::map<ncclComm *, cudaStream_t> streams;
  std::map<cudaStream_t, std::vector<Call>> byStream;
  for (Call &call : calls) {
    if (!streams.emplace(call.comm, call.stream).second &&
        streams[call.comm] != call.stream) {
      report("not supported yet: a group with several streams for one "
             "communicator");
      return ncclInvalidUsage;
    }
    byStream[call.stream].push_back(std::move(call));
  }
  for (auto &[stream, each] : byStream)
    if (ncclResult_t status = enqueueCalls(stream, std::move(each)))
      return status;
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclGroupStart() {
  NCCL_ENTER();
  ++group.depth;
  return ncclSuccess;
}

NCCL_API ncclResult_t ncclGroupEnd() {
  NCCL_ENTER();
  if (group.depth == 0)
    return refuse(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  return --group.depth > 0 ? ncclSuccess : closeGroup();
}

ncclResult_t mgq::device::add(Call call) {
  group.calls.push_back(std::move(call));
  return group.depth > 0 ? ncclSuccess : closeGroup();
}
