//===- Messages.h - Between arenas of GPUs -------------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_CUDA_MESSAGES_H
#define MGQ_RUNTIME_CUDA_MESSAGES_H

#include "runtime/src/common/Accelerator.h"

namespace mgq::rt {

/// Messages of a rank to itself: a copy, enqueued to compute by whichever side
/// is begun last. Throws Error: one is for another rank, or has no other side.
std::unique_ptr<DeviceMessages> makeLocalMessages(Device &device,
                                                  const RankView &view,
                                                  const mgq_op *ops,
                                                  int32_t count);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_MESSAGES_H
