//===- CudaDevice.h - A rank on a GPU ---------------------------*- C++ -*-===//
//
// Layer functions enqueue on the compute stream, and so does all that Device
// says is enqueued. The host waits for it only in synchronize(), readNow() and
// where the staging ring is full; it polls then and tells others that it is
// alive, so that one rank's failure ends all.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_CUDA_CUDADEVICE_H
#define MGQ_RUNTIME_CUDA_CUDADEVICE_H

#include "runtime/src/common/Accelerator.h"
#include "runtime/src/cuda/AllReduce.h"
#include "runtime/src/cuda/Attention.h"
#include "runtime/src/cuda/Blas.h"
#include "runtime/src/cuda/Checks.h"
#include "runtime/src/cuda/Context.h"
#include "runtime/src/cuda/Graphs.h"
#include "runtime/src/cuda/Network.h"
#include "runtime/src/cuda/ShardGather.h"
#include "runtime/src/cuda/Staging.h"
#include <deque>
#include <optional>
#include <utility>

namespace mgq::rt {

class CudaDevice : public Accelerator {
public:
  /// Throws Error: no driver, library, GPU or code for it.
  explicit CudaDevice(const mgq_device_request &request);
  ~CudaDevice() override;

  /// The calling thread's, which layer functions enqueue on; null: none.
  static CudaDevice *current();

  void copy(void *to, const void *from, int64_t bytes) override;
  void zero(void *to, int64_t bytes) override;
  std::byte *beginWrite(void *to, int64_t bytes) override;
  void endWrite() override;
  void read(void *to, const void *from, int64_t bytes) override;
  void readNow(void *to, const void *from, int64_t bytes) override;
  void synchronize() override;
  void enterCall(const char *name) override { running = name; }
  void leaveCall(const char *name) override;

  std::string name() const override { return context.name(); }
  std::string identity() const override { return context.uuid(); }
  std::string model() const override { return context.model(); }
  std::string memoryShortage(int64_t bytes) override;
  std::byte *allocate(int64_t bytes) override;
  void scale(float *values, double factor, int64_t count) override;
  void squaredNorms(const std::vector<Values> &arrays, double *sums) override;
  std::unique_ptr<DeviceMessages>
  makeMessages(const RankView &view, const mgq_op *ops, int32_t count) override;
  std::unique_ptr<Collective>
  makeAllReduce(const RankView &view, const Bucket &bucket,
                CompressedGradients *compressed) override;
  std::unique_ptr<Collective> makeShardGather(const RankView &view,
                                              const Bucket &bucket) override;
  void rehearse(bool on) override;
  void record(bool on) override;
  void enqueueRecorded(const WorkKey &key, const char *name,
                       const std::function<void()> &work) override;
  void connect() override;
  void timeMessages() override { messagesTimed = true; }
  int32_t mark() override;
  double secondsAt(int32_t mark) override;
  void clearMarks() override;
  void end() override;

  // For layer functions: faults are thrown by the next leaveCall().
  void launch(int32_t kernel, int64_t blocks, void *const *params);
  void multiply(const mgq_cuda_product &product,
                const ProductOperands &operands);
  void attend(const mgq_cuda_attention_table &table, void *const *tensors);

  // For messages.
  CUstream stream() const { return compute; }
  /// Where layer functions and copies are enqueued from here on; returns where
  /// they were.
  CUstream enqueueOn(CUstream stream) { return std::exchange(target, stream); }
  /// Flags of the events between which a message travels.
  unsigned timeFlags() const {
    return messagesTimed ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING;
  }
  bool timesMessages() const { return messagesTimed; }
  /// After synchronize(), when such events have happened; -1: not yet.
  mgq_span spanOf(CUevent began, CUevent done) const;
  /// Polls until the event has happened. Throws a fault of the device.
  void await(CUevent event);

protected:
  void *allocateHost(int64_t bytes) override;
  void freeHost(void *memory) override;

private:
  /// Rank 0 tells the user something.
  void notify(const std::string &text) const;
  std::string explain(const std::string &text) const;
  [[noreturn]] void failDevice(const char *call, CUresult status) const;
  void ensureNorms(const std::vector<Values> &arrays);
  CUresult drain();

  Group &group;
  Context context;
  Module module;
  Blas blas;
  Attention attention;
  Stream compute;
  CUstream target; ///< See enqueueOn().
  Network network;
  DeviceSums sums;
  DeviceGathers gathers;
  Event done; ///< Of synchronize() and readNow().
  Staging staging;
  Checks checks;
  Graphs graphs;
  CUdeviceptr writing = 0;            ///< Where beginWrite() writes to.
  std::optional<PinnedMemory> bounce; ///< Of readNow().
  std::unique_ptr<DeviceMemory> arena, norms;
  int64_t normArrays = 0, normBlocks = 0; ///< Room in `norms`.
  std::vector<void *> parameters;         ///< Of the kernel that is launched.
  bool rehearsing = false, recording = false;
  bool hasToldOfGraphs = false; ///< That some work cannot be recorded.
  WorkKey normsKey;             ///< Of squaredNorms().
  const char *running = "";     ///< Layer function.
  std::string fault;            ///< In it; empty: none.
  std::deque<Event> marks;      // Addresses stay.
  int32_t markCount = 0;
  bool messagesTimed = false;
  double firstMark = 0; ///< When the first of them was reached.
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_CUDA_CUDADEVICE_H
