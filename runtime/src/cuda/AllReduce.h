//===- AllReduce.h - Sums over replicas on GPUs -----------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_ALLREDUCE_H
#define MGQ_RUNTIME_CUDA_ALLREDUCE_H

#include "runtime/include/rt_cuda.h"
#include "runtime/src/common/CompressedGradients.h"
#include "runtime/src/cuda/DeviceCollective.h"

namespace mgq::rt {

class DeviceSums;
class Network;

/// A sum of a bucket over replicas.
class DeviceSum : public DeviceCollective {
public:
  DeviceSum(DeviceSums &all, CudaDevice &device)
      : DeviceCollective(device), all(all) {}

  /// What it sums is there when all that is enqueued to compute so far is done.
  void begin() override;

  /// Enqueues all of it on the link's stream.
  virtual void exchange(Link &link) = 0;

protected:
  DeviceSums &all;

private:
  friend class DeviceSums;
  void enqueue(Link &link);

  bool isReady = false;
};

/// A step's sums over replicas. They are enqueued in the order of the program
/// on all ranks, whenever they begin: one whose predecessors have not begun
/// waits for them.
class DeviceSums {
public:
  DeviceSums(CudaDevice &device, Network &network)
      : device(device), network(network) {}

  /// The sum of a bucket, the next in the program; the network must be
  /// connected when the first begins. `compressed`: of the rank, may be null.
  /// Throws Error if there is no room.
  std::unique_ptr<Collective> add(const RankView &view, const Bucket &bucket,
                                  const CompressedGradients *compressed);

private:
  friend class DeviceSum;
  void advance();

  CudaDevice &device;
  Network &network;
  std::vector<DeviceSum *> sums;
  size_t next = 0; ///< The first that is not enqueued in this step.
};

/// Sends f32. Throws Error if there is no room.
std::unique_ptr<DeviceSum> makeDenseSum(DeviceSums &all, CudaDevice &device,
                                        const RankView &view,
                                        const Bucket &bucket);

/// The program's code of compressed gradients. Throws Error if it has none.
const mgq_cuda_compression &compressionCode();

/// Sends encoded blocks in steps that compress, else f32. Throws Error if there
/// is no room, or the program has no code for it.
std::unique_ptr<DeviceSum>
makeCompressedSum(DeviceSums &all, CudaDevice &device, const RankView &view,
                  const CompressedGradients &state,
                  const CompressedGradients::Reduction &reduction,
                  const Bucket &bucket);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_ALLREDUCE_H
