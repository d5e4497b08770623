//===- Accelerator.h - A device that works beside the host ------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_ACCELERATOR_H
#define MGQ_RUNTIME_COMMON_ACCELERATOR_H

#include "runtime/src/common/Collective.h"
#include "runtime/src/common/Device.h"
#include "runtime/src/common/Setup.h"
#include <functional>

namespace mgq::rt {

class CompressedGradients;

/// The messages of a list of ops, between arenas of accelerators: they travel
/// beside what is computed, each kind in the order in which it was begun.
class DeviceMessages {
public:
  virtual ~DeviceMessages() = default;
  /// Enqueues the message of op `index`, at `place`, behind all that the rank
  /// has enqueued to compute so far and the messages that the op waits for.
  /// What is enqueued to compute later does not wait for it.
  virtual void begin(int32_t index, std::byte *place) = 0;
  /// What is enqueued to compute from here on comes after that message.
  virtual void wait(int32_t index) = 0;
  /// After synchronize(), of an accelerator that times messages: from when this
  /// side of the message was reached until it was done. Negative: it was not
  /// begun since the last time, is not done, or goes to the rank itself.
  virtual mgq_span span(int32_t index) = 0;
};

/// Says what some work is: with equal keys the same things are enqueued, on the
/// same addresses.
using WorkKey = std::vector<uint64_t>;

/// Besides what all devices do.
class Accelerator : public Device {
public:
  Accelerator *accelerator() override { return this; }

  /// Whose ranks must not share it: "GPU 0 (NAME)", and what tells two apart.
  virtual std::string name() const = 0;
  virtual std::string identity() const = 0;
  /// What others of its kind have in common.
  virtual std::string model() const = 0;

  /// Says how much is needed and how much is free if an arena of `bytes` does
  /// not fit; else empty.
  virtual std::string memoryShortage(int64_t bytes) = 0;
  /// Zero-filled memory, until the device ends.
  virtual std::byte *allocate(int64_t bytes) = 0;

  /// Enqueued: values[i] = f32(f64(values[i]) * factor).
  virtual void scale(float *values, double factor, int64_t count) = 0;
  /// Some of the arena.
  struct Values {
    const float *at;
    int64_t count;
  };
  /// Enqueued: the sum of squares of each array, in f64, to `sums` in
  /// HostCells. The same values give the same bits.
  virtual void squaredNorms(const std::vector<Values> &arrays,
                            double *sums) = 0;

  /// The messages of ops of a rank; throws Error if they cannot be matched.
  virtual std::unique_ptr<DeviceMessages>
  makeMessages(const RankView &view, const mgq_op *ops, int32_t count) = 0;
  /// Sums a bucket over replicas, in their order. begin() enqueues all of it.
  /// `compressed`: what the rank keeps for sums that are, may be null.
  virtual std::unique_ptr<Collective>
  makeAllReduce(const RankView &view, const Bucket &bucket,
                CompressedGradients *compressed) = 0;
  /// Fills a bucket with the slices of all members of a shard. begin() enqueues
  /// all of it.
  virtual std::unique_ptr<Collective> makeShardGather(const RankView &view,
                                                      const Bucket &bucket) = 0;

  /// While on, layer functions only make libraries load what they will need, in
  /// memory that has nothing of value yet. That may wait for all that is
  /// enqueued, which with messages would wait for other ranks, maybe for ever.
  virtual void rehearse(bool on) = 0;

  /// While on, enqueueRecorded() enqueues nothing and only records. For a
  /// moment in which no message is enqueued. Turning it on forgets what was
  /// recorded.
  virtual void record(bool on) = 0;
  /// Enqueues what `work` does: at once, if that was recorded with this key,
  /// else by calling it. The same bits either way. `name`: the last layer
  /// function in it, for faults.
  virtual void enqueueRecorded(const WorkKey &key, const char *name,
                               const std::function<void()> &work) = 0;

  /// All ranks at once, before the first message, sum or gather begins: opens
  /// what they go over.
  virtual void connect() = 0;

  /// Before anything that was made with it goes: waits for what is enqueued,
  /// but not for long. After a fault, or when that has not helped, nothing is
  /// given back any more.
  virtual void end() = 0;

  /// What makeMessages() and its kin make from here on can say when it
  /// travelled. That costs something.
  virtual void timeMessages() = 0;

  /// Enqueued: a point in what is enqueued to compute. Each costs something, so
  /// only where times are asked for.
  virtual int32_t mark() = 0;
  /// After synchronize(), what secondsNow() was when a mark was reached; in the
  /// order of marks.
  virtual double secondsAt(int32_t mark) = 0;
  /// Forgets all marks.
  virtual void clearMarks() = 0;
};

/// Throws Error if program or options ask for what accelerators do not do yet,
/// UsageError if options are for accelerators and the program is not.
void checkAccelerated(const mgq_program &program, const Options &options);

/// All ranks: opens this rank's accelerator and makes it the calling thread's.
/// Throws Error on all ranks if one has none, or two would share one.
std::unique_ptr<Accelerator> openAccelerator(const mgq_program &program,
                                             Group &group, const Host &host);

} // namespace mgq::rt

/// What mgq_program.open_device fills in.
struct mgq_device_request {
  const mgq_program *program;
  mgq::rt::Group *group; ///< Outlives the device, which pulses it in waits.
  int32_t place;         ///< The rank's number among those on its machine.
  int32_t ranksHere;     ///< How many those are.
  std::unique_ptr<mgq::rt::Accelerator> device; ///< Null after a fault.
  std::string fault;                            ///< What it was.
};

#endif // MGQ_RUNTIME_COMMON_ACCELERATOR_H
