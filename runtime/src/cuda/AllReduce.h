//===- AllReduce.h - Sums over replicas on GPUs --------------------*- C++
//-*-===//
#ifndef MGQ_RUNTIME_CUDA_ALLREDUCE_H
#define MGQ_RUNTIME_CUDA_ALLREDUCE_H

#include "runtime/src/common/Collective.h"
#include "runtime/src/cuda/Driver.h"

namespace mgq::rt {

class CudaDevice;
class Network;

/// A step's sums over replicas. They are enqueued in the order of the program
/// on all ranks, whenever they begin: one whose predecessors have not begun
/// waits for them.
class DeviceSums {
public:
  DeviceSums(CudaDevice &device, Network &network)
      : device(device), network(network) {}

  /// The sum of a bucket, the next in the program; the network must be
  /// connected when the first begins. Throws Error if there is no room.
  std::unique_ptr<Collective> add(const RankView &view, const Bucket &bucket);

private:
  class Sum;
  void advance();

  CudaDevice &device;
  Network &network;
  std::vector<Sum *> sums;
  size_t next = 0; ///< The first that is not enqueued in this step.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_ALLREDUCE_H
