//===- Evaluate.h - Forward passes over a data set --------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_EVALUATE_H
#define MGQ_RUNTIME_COMMON_EVALUATE_H

#include "runtime/src/common/OpList.h"

namespace mgq::rt {

/// Means over the micro-batches of a data set.
struct Evaluation {
  double loss = 0;
  std::vector<double> scalars; ///< Of Evaluator's scalar outputs, in order.
};

/// Runs the evaluate ops micro-batch after micro-batch (of consecutive
/// records), replicas in turns. Stages follow each other through their messages
/// only, so they work on different ones. Values meet once a block of
/// micro-batches and are summed in their order, whatever the number of ranks.
class Evaluator {
public:
  Evaluator(const RankView &view, bool byTokens, Executor &executor,
            Group &group, Trace &trace);

  /// All ranks at once; the result is the same on all.
  Evaluation run(const DataReader &data);

  /// For an accelerator that records: what run() enqueues.
  void record();

  /// Called between kernels: what is under way goes on.
  void progress() { reducer.progress(); }

  /// Indices of the scalar outputs besides the loss.
  const std::vector<int32_t> &scalarOutputs() const { return scalars; }

private:
  /// Bytes of a scalar output, of any type.
  struct Scalar {
    std::byte bytes[8];
  };
  void runMicroBatch(const DataReader &data, int64_t number, double *values);
  void addMicroBatch(const double *ofReplica, int64_t round, Evaluation &sum);

  const RankView &view;
  const mgq_program &program;
  Executor &executor;
  Group &group;
  Reducer reducer;
  OpList ops;
  bool byTokens;
  const Runnable *count;
  const float *countPlace;
  int32_t lossRank;                        ///< In each replica.
  std::vector<int32_t> scalars;            ///< Outputs.
  std::vector<int32_t> scalarRanks;        ///< Which has each, in a replica.
  std::vector<const std::byte *> scalarAt; ///< Where, or null.
  /// What the device has left of a micro-batch: loss and count; scalars.
  HostCells<float> cells;
  HostCells<Scalar> scalarCells;
  std::vector<int64_t> records; ///< Of the micro-batch that runs.
  int64_t width; ///< Values of a micro-batch: loss, count, scalars.
  std::vector<double> block, allBlocks, unused;
  double weight = 0;
};

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_EVALUATE_H
