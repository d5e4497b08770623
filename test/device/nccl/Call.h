//===- Call.h - Operations that NCCL is asked for ---------------*- C++ -*-===//
#ifndef MGQ_TEST_DEVICE_NCCL_CALL_H
#define MGQ_TEST_DEVICE_NCCL_CALL_H

#include "test/device/cuda/Settings.h"
#include "test/device/nccl/Comm.h"
#include <functional>

#define NCCL_API extern "C" __attribute__((visibility("default")))
#define NCCL_ENTER()                                                           \
  do {                                                                         \
    if (int code = injectedFailure(__func__))                                  \
      return ncclResult_t(code);                                               \
  } while (false)

namespace mgq::device {

constexpr const char *commKind = "NCCL communicator";

/// What a call has asked for: messages, made when the operation runs, and what
/// becomes of those that arrive.
struct Call {
  ncclComm *comm;
  cudaStream_t stream;
  std::string name;
  /// False: device memory that it names is none.
  std::function<bool(std::vector<Message> &)> begin;
  std::function<bool(Message *)> end; ///< Gets its messages, in order.
};

/// Enqueues a call, at the end of its group if there is one.
ncclResult_t add(Call call);

/// Returns `code`, and keeps what ncclGetLastError says.
ncclResult_t refuse(ncclResult_t code, const std::string &text);

} // namespace mgq::device

#endif // MGQ_TEST_DEVICE_NCCL_CALL_H
