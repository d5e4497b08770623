//===- ShardGather.h - Frozen weights of which GPUs have slices -*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_SHARDGATHER_H
#define MGQ_RUNTIME_CUDA_SHARDGATHER_H

#include "runtime/src/cuda/DeviceCollective.h"

namespace mgq::rt {

class Network;

/// Fills a buffer with the slices of all members of a shard, in their order.
class DeviceGather : public DeviceCollective {
public:
  /// Throws Error if the tables are damaged.
  DeviceGather(CudaDevice &device, Network &network, const RankView &view,
               const Bucket &bucket);

  /// The buffer is filled once all that is enqueued to compute so far, which
  /// may read it, is done. Gathers are enqueued in the order in which they
  /// begin: that of the program, the same on all ranks.
  void begin() override;

private:
  friend class DeviceGathers;

  Network &network;
  const std::byte *slice;
  std::byte *to;
  int64_t sliceBytes, others;
};

/// The gathers of a rank.
class DeviceGathers {
public:
  DeviceGathers(CudaDevice &device, Network &network)
      : device(device), network(network) {}

  /// The network must be connected when it begins. Throws Error if the tables
  /// are damaged.
  std::unique_ptr<Collective> add(const RankView &view, const Bucket &bucket);

  /// All ranks at once, when the network is connected and the buffers have
  /// nothing of value: one gather of each size. NCCL chooses by size how it
  /// gathers, and connects what that needs when it is first asked to; in a step
  /// a rank would wait for another to be there.
  void rehearse(const std::function<void(CUevent)> &await);

private:
  CudaDevice &device;
  Network &network;
  std::vector<DeviceGather *> gathers;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_SHARDGATHER_H
