//===- Nccl.cpp - NCCL, found at run time ---------------------------------===//

#include "runtime/src/cuda/Nccl.h"
#include "runtime/src/common/Error.h"
#include "runtime/src/cuda/Driver.h"

using namespace mgq::rt;

// 2.18: what ncclConfig_t of the header has by then.
static constexpr int oldestLibrary = 21800;

static constexpr LibraryPlace place = {
    "libnccl.so.2", "nvidia/nccl/lib",
    "programs of several GPUs need it; 'pip install nvidia-nccl-cu13' or a "
    "package of NVIDIA has it; LD_LIBRARY_PATH says where"};

NcclLibrary::NcclLibrary() : library(place) {
#define MGQ_FIND(name) library.find(name, #name);
  MGQ_NCCL_FUNCTIONS(MGQ_FIND)
#undef MGQ_FIND
  int version = 0;
  if (ncclGetVersion(&version) == ncclSuccess && version < oldestLibrary)
    fail("{} has version {}.{}, {}.{} or later is needed; {}", place.name,
         version / 10000, version % 10000 / 100, oldestLibrary / 10000,
         oldestLibrary % 10000 / 100, place.advice);
}

const NcclLibrary &mgq::rt::nccl() {
  static const NcclLibrary loaded;
  return loaded;
}

/// "unhandled system error: what it was".
static std::string textOf(ncclResult_t status, ncclComm_t handle) {
  std::string text = nccl().ncclGetErrorString(status);
  const char *last = nccl().ncclGetLastError(handle);
  if (last && *last)
    text += fmt::format(": {}", last);
  return text;
}

void Communicator::check(ncclResult_t status, const char *call) const {
  if (status != ncclSuccess)
    fail("{} ({}): {}", call, what, textOf(status, handle));
}

ncclUniqueId mgq::rt::makeUniqueId() {
  ncclUniqueId id = {};
  if (ncclResult_t status = nccl().ncclGetUniqueId(&id); status != ncclSuccess)
    fail("ncclGetUniqueId: {}", textOf(status, nullptr));
  return id;
}

Communicator::Communicator(std::string what, const ncclUniqueId &id, int member,
                           int size, int most)
    : what(std::move(what)) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.maxCTAs = most;
  check(nccl().ncclCommInitRankConfig(&handle, size, id, member, &config),
        "ncclCommInitRankConfig");
}

Communicator::~Communicator() {
  if (handle && !isAbandoned())
    nccl().ncclCommDestroy(handle);
}

void Communicator::send(const void *data, size_t count, ncclDataType_t type,
                        int peer, cudaStream_t stream) {
  check(nccl().ncclSend(data, count, type, peer, handle, stream), "ncclSend");
}

void Communicator::receive(void *data, size_t count, ncclDataType_t type,
                           int peer, cudaStream_t stream) {
  check(nccl().ncclRecv(data, count, type, peer, handle, stream), "ncclRecv");
}

void Communicator::allGather(const void *from, void *to, size_t count,
                             ncclDataType_t type, cudaStream_t stream) {
  check(nccl().ncclAllGather(from, to, count, type, handle, stream),
        "ncclAllGather");
}

void Communicator::beginGroup() const {
  check(nccl().ncclGroupStart(), "ncclGroupStart");
}

void Communicator::endGroup() const {
  check(nccl().ncclGroupEnd(), "ncclGroupEnd");
}

void Communicator::check() const {
  ncclResult_t fault = ncclSuccess;
  check(nccl().ncclCommGetAsyncError(handle, &fault), "ncclCommGetAsyncError");
  if (fault != ncclSuccess && fault != ncclInProgress)
    fail("NCCL ({}): {}", what, textOf(fault, handle));
}

void Communicator::abort() {
  if (handle)
    nccl().ncclCommAbort(handle);
  handle = nullptr;
}
