//===- DeviceCollective.h - A collective on a stream of a GPU ---*- C++ -*-===//
#ifndef MGQ_RUNTIME_CUDA_DEVICECOLLECTIVE_H
#define MGQ_RUNTIME_CUDA_DEVICECOLLECTIVE_H

#include "runtime/src/common/Collective.h"
#include "runtime/src/cuda/Driver.h"
#include <functional>
#include <optional>

namespace mgq::rt {

class CudaDevice;
struct Link;

/// What sums and gathers share: a stream that waits for what is enqueued to
/// compute, and that what computes waits for.
class DeviceCollective : public Collective {
public:
  explicit DeviceCollective(CudaDevice &device);

  bool advance() override { return true; }
  const std::vector<int64_t> &requests() const override { return none; }
  int64_t sentBytes() const override { return sent; }
  /// What is enqueued to compute from here on comes after it.
  void join() override;
  mgq_span span() override;

protected:
  /// It comes after what has been enqueued to compute so far.
  void setReady();
  /// Enqueues `work` on the link's stream, behind setReady().
  void enqueueOn(Link &link, const std::function<void()> &work);

  CudaDevice &device;
  int64_t sent = 0;
  Event ready, done;
  bool isFresh = false; ///< Its times have not been taken.

private:
  std::optional<Event> began; ///< Where times are asked for.
  std::vector<int64_t> none;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_DEVICECOLLECTIVE_H
