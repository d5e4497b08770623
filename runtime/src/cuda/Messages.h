//===- Messages.h - Between arenas of GPUs ----------------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_MESSAGES_H
#define MGQ_RUNTIME_CUDA_MESSAGES_H

#include "runtime/src/common/Accelerator.h"
#include "runtime/src/cuda/CudaDevice.h"

namespace mgq::rt {

/// The messages of a rank's ops. Those to itself are copies, enqueued to
/// compute by whichever side is begun last; others go over the links of the
/// network, which must be connected when the first is begun. Throws Error: one
/// has no other side.
std::unique_ptr<DeviceMessages>
makeDeviceMessages(CudaDevice &device, Network &network, const RankView &view,
                   const mgq_op *ops, int32_t count);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_MESSAGES_H
