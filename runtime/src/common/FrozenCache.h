//===- FrozenCache.h - Outputs of the frozen prefix, kept -------*- C++ -*-===//
//
// What comes before the first layer that trains gives the same for the same
// record in every epoch. With --cache-frozen the values that the rest of the
// model reads of it are kept, in memory or in files, and the calls that make
// them are skipped when a record comes again.
//
// Of an accelerator, values travel through page-locked memory: a computed one
// is stored when the device has been waited for.
//
// All ranks of a replica decide alike for each micro-batch, when a step begins:
// a record counts as known if each of them has its own values of it.
//
//===----------------------------------------------------------------------===//
#ifndef MGQ_RUNTIME_COMMON_FROZENCACHE_H
#define MGQ_RUNTIME_COMMON_FROZENCACHE_H

#include "runtime/src/common/Device.h"
#include "runtime/src/common/FrozenStore.h"
#include "runtime/src/common/Group.h"
#include "runtime/src/common/Options.h"
#include "runtime/src/local/Executor.h"

namespace mgq::rt {

/// Skips and fills in calls of forward sequences. Allocates nothing after
/// construction, but in files' names.
class FrozenCache : public CallFilter {
public:
  /// Throws Error if the program has nothing to keep, or the folder cannot be
  /// written. All ranks together.
  FrozenCache(const RankView &view, const Options &options,
              const Weights &weights, const DataReader &data, Group &group,
              Device &device);

  /// Whether some rank runs forward ops of the next step in a step.
  bool looksAhead() const { return ahead; }

  /// All ranks, at the start of a step: decides for the records of step `step`,
  /// by micro-batch. Steps that were not decided on are computed.
  void decide(int64_t step, const std::vector<int64_t> &records, Group &group);

  /// Before a forward op of `step` on a local chunk. Returns null: nothing of
  /// it is kept.
  CallFilter *filter(int32_t chunk, int32_t microBatch, int64_t record,
                     int64_t step);

  /// Waits for values that are on their way from the device, and stores them.
  void flush();

  bool handles(int32_t call) const override { return running->frozen[call]; }
  bool skips(int32_t call, void *const *args) override;
  void ran(int32_t call, void *const *args) override;

  /// Micro-batches whose prefix was skipped, and those that were decided on.
  int64_t hits() const { return hitCount; }
  int64_t decided() const { return decidedCount; }

private:
  /// A local chunk with calls of the prefix.
  struct Part {
    const mgq_chunk *chunk = nullptr;
    std::vector<bool> frozen; ///< By call.
    int64_t bytes = 0;        ///< Of all kept values.
    int32_t lastCall = -1;    ///< That leaves one.
    uint64_t base = 0;        ///< Hash of code, weights, and what is kept.
    std::unique_ptr<FrozenStore> store;
    /// Values of all micro-batches, of even and of odd steps, by slotOf().
    std::unique_ptr<HostMemory> values;
    std::vector<bool> runsHere; ///< By micro-batch.
    std::byte *valuesAt(size_t slot) const {
      return static_cast<std::byte *>(values->data()) + slot * bytes;
    }
  };
  /// Values that are computed, but not stored yet.
  struct Computed {
    Part *part;
    int64_t record;
    const std::byte *values;
  };

  void addPart(int32_t local, const Options &options, uint64_t base);
  uint64_t contentOf(int64_t record);
  size_t slotOf(int64_t step, int32_t microBatch) const {
    return (step & 1) * view.program.micro_batches + microBatch;
  }

  const RankView &view;
  const DataReader &data;
  Device &device;
  bool ahead = false, inFiles;
  std::vector<Part> parts;        ///< By local chunk; without a store: nothing.
  std::vector<uint64_t> contents; ///< By record; 0: not known yet.
  int64_t decidedStep[2] = {-1, -1};
  std::vector<uint8_t> known; ///< By slotOf(): decided, and skipped.
  std::vector<uint8_t> mine, all;
  int64_t hitCount = 0, decidedCount = 0;
  std::vector<Computed> computed;

  // Of the running op.
  Part *running = nullptr;
  bool isHit = false;
  int64_t runningRecord = 0;
  std::byte *runningValues = nullptr;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_FROZENCACHE_H
