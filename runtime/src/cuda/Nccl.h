//===- Nccl.h - NCCL, found at run time -------------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_NCCL_H
#define MGQ_RUNTIME_CUDA_NCCL_H

#include "runtime/src/cuda/Library.h"
#include <nccl.h>

#define MGQ_NCCL_FUNCTIONS(X)                                                  \
  X(ncclGetVersion)                                                            \
  X(ncclGetUniqueId)                                                           \
  X(ncclCommInitRankConfig)                                                    \
  X(ncclCommDestroy)                                                           \
  X(ncclCommAbort)                                                             \
  X(ncclCommGetAsyncError)                                                     \
  X(ncclGetErrorString)                                                        \
  X(ncclGetLastError)                                                          \
  X(ncclGroupStart)                                                            \
  X(ncclGroupEnd)                                                              \
  X(ncclAllGather)                                                             \
  X(ncclSend)                                                                  \
  X(ncclRecv)

namespace mgq::rt {

struct NcclLibrary {
  /// Throws Error: it is not there, or too old.
  NcclLibrary();

  Library library;
#define MGQ_MEMBER(name) decltype(&::name) name;
  MGQ_NCCL_FUNCTIONS(MGQ_MEMBER)
#undef MGQ_MEMBER
};

/// The process' library, loaded by the first call.
const NcclLibrary &nccl();

/// Ranks that exchange messages, numbered anew.
class Communicator {
public:
  /// All members at once. `what` says which, for errors: "messages from rank 0
  /// to rank 1". `most`: blocks of the GPU that a message may take.
  Communicator(std::string what, const ncclUniqueId &id, int member, int size,
               int most);
  Communicator(const Communicator &) = delete;
  Communicator &operator=(const Communicator &) = delete;
  ~Communicator();

  /// Enqueues; between begin() and end() all together.
  void send(const void *data, size_t count, ncclDataType_t type, int peer,
            cudaStream_t stream);
  void receive(void *data, size_t count, ncclDataType_t type, int peer,
               cudaStream_t stream);
  /// `to` gets `count` elements of each member, in their order; this one's are
  /// at `from`, outside of it.
  void allGather(const void *from, void *to, size_t count, ncclDataType_t type,
                 cudaStream_t stream);
  void beginGroup() const;
  void endGroup() const;

  /// Throws Error with what has gone wrong since, if anything has.
  void check() const;
  /// Ends what is enqueued; nothing else may follow.
  void abort();

private:
  void check(ncclResult_t status, const char *call) const;

  std::string what;
  ncclComm_t handle = nullptr;
};

/// A name for members of a communicator, made by one of them.
ncclUniqueId makeUniqueId();

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_NCCL_H
