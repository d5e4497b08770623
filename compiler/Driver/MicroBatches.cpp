//===- MicroBatches.cpp - How a step may be cut into micro-batches --------===//

#include "compiler/Driver/MicroBatches.h"

#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/Twine.h"
#include <cmath>

using namespace mgq;
using llvm::Twine;

/// A pipeline starts with this many micro-batches a stage.
static constexpr double kStartPerStage = 1.5;

/// A range that nobody has use for takes hours to compile.
static constexpr size_t kMostCounts = 64;

static llvm::Error error(const Twine &text) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), text);
}

static std::string replicasText(int64_t replicas) {
  return replicas == 1 ? "" : " x " + std::to_string(replicas) + " replicas";
}

/// The largest divisor of `samples` below `count` and the smallest above it, as
/// text.
static std::string nearestDivisors(int64_t samples, int64_t least,
                                   int64_t most) {
  std::string text;
  for (int64_t below = std::min(least - 1, samples); below >= 1; --below)
    if (samples % below == 0) {
      text = std::to_string(below);
      break;
    }
  for (int64_t above = most + 1; above <= samples; ++above)
    if (samples % above == 0)
      return text + (text.empty() ? "" : ", ") + std::to_string(above);
  return text;
}

/// The fixed micro-batch size must agree with --global-batch.
static llvm::Expected<MicroBatches> checkFixed(const Options &options,
                                               int64_t size) {
  int64_t batch = size * options.microBatches * options.replicas;
  if (batch != options.globalBatch)
    return error("--global-batch=" + Twine(options.globalBatch) +
                 ": the inputs' leading dimension is " + Twine(size) + ", so " +
                 Twine(options.microBatches) + " micro-batches" +
                 replicasText(options.replicas) + " have " + Twine(batch) +
                 " samples");
  MicroBatches result;
  result.counts = {options.microBatches};
  result.start = options.microBatches;
  return result;
}

/// The count nearest to kStartPerStage x stages; of two the larger.
static int64_t startOf(llvm::ArrayRef<int64_t> counts, int64_t stages) {
  double wanted = kStartPerStage * double(stages);
  int64_t best = counts.front();
  for (int64_t count : counts)
    if (std::abs(double(count) - wanted) <= std::abs(double(best) - wanted))
      best = count;
  return best;
}

llvm::Expected<MicroBatches>
mgq::findMicroBatches(const Options &options, const onnx::SampleAxis &axis) {
  bool isRange = options.leastMicroBatches != 0;
  int64_t least = isRange ? options.leastMicroBatches : options.microBatches;
  int64_t most = isRange ? options.mostMicroBatches : options.microBatches;
  if (!options.replicas)
    return error("not supported yet: --global-batch where the planner chooses "
                 "the number of replicas; give --stages and --replicas");
  if (axis.name.empty()) {
    if (!isRange)
      return checkFixed(options, axis.size);
    return error("--micro-batches=" + Twine(least) + ":" + Twine(most) +
                 " needs inputs with a symbolic leading dimension, to which "
                 "no --dim gives a size; it is " +
                 Twine(axis.size) +
                 " here (mgq-export: --micro-batch dynamic)");
  }
  if (options.globalBatch % options.replicas)
    return error("--global-batch=" + Twine(options.globalBatch) +
                 " cannot be shared by " + Twine(options.replicas) +
                 " replicas");
  MicroBatches result;
  result.dimension = axis.name;
  result.samples = options.globalBatch / options.replicas;
  for (int64_t count = least; count <= std::min(most, result.samples); ++count)
    if (result.samples % count == 0)
      result.counts.push_back(count);
  if (result.counts.empty()) {
    std::string text =
        isRange ? "no number of micro-batches from " + std::to_string(least) +
                      " to " + std::to_string(most) + " divides "
                : std::to_string(least) + " micro-batches do not divide ";
    return error("--global-batch=" + Twine(options.globalBatch) + ": " + text +
                 "the " + Twine(result.samples) + " samples of a replica; " +
                 "nearest: " + nearestDivisors(result.samples, least, most));
  }
  if (result.counts.size() > kMostCounts)
    return error("--micro-batches=" + Twine(least) + ":" + Twine(most) +
                 " has " + Twine(result.counts.size()) +
                 " numbers that divide the batch, each of which is compiled; "
                 "at most " +
                 Twine(kMostCounts) + " are supported");
  result.start = startOf(result.counts, options.stages);
  return result;
}
