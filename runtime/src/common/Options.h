//===- Options.h - The executable's command line ----------------*- C++ -*-===//
#ifndef MGQ_RUNTIME_COMMON_OPTIONS_H
#define MGQ_RUNTIME_COMMON_OPTIONS_H

#include "runtime/src/common/LossScale.h"
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mgq::rt {

enum class ScheduleKind { Constant, Linear, Cosine };
enum class ClipKind { Off, Value, Tanh, History };
enum class ReductionKind { Default, Tokens, MicroBatch };

/// Options as given; see --help for meanings. Empty text and 0 mean not given
/// where nothing else is said.
struct Options {
  std::vector<std::string> data;
  std::string weights;
  std::optional<int64_t> steps;
  std::optional<double> epochs;
  bool shuffle = true;
  uint64_t seed = 42;

  double learningRate = 1e-4;
  double weightDecay = 0.05;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double epsilon = 1e-8;
  std::vector<std::string> noDecay;
  std::vector<std::pair<std::string, double>> learningRateOf;
  ScheduleKind schedule = ScheduleKind::Constant;
  int64_t warmupSteps = 0;
  double warmupRatio = 0;
  double minLearningRate = 0;

  ClipKind clip = ClipKind::Off;
  double clipValue = 0; ///< The largest norm, or history's factor.
  ReductionKind reduction = ReductionKind::Default;
  LossScaleKind lossScale = LossScaleKind::Off;
  double lossScaleValue = 0; ///< Of a static scale.
  bool skipNonfinite = false;
  std::optional<int64_t> adaptEvery; ///< Steps of a window; 0: never.
  std::string replay;
  int64_t compressionWarmup = 100; ///< Steps.
  std::string cacheFrozen;         ///< "memory" or a folder; empty: no cache.
  int64_t cacheLimit = int64_t{16} << 30; ///< Bytes.

  std::vector<std::string> evalData;
  int64_t evalSteps = 0; ///< 0: at the end only.

  std::string outputDir;
  int64_t saveSteps = 0; ///< 0: at the end only.
  int64_t saveTotalLimit = 0;
  std::string resume;
  std::string initialParameters;
  std::string logFile;
  int64_t loggingSteps = 1;
  std::string dumpGradients, trace, profile, summary;
  std::optional<bool> cudaGraphs; ///< Not given: where they can be.
  int threads = 0;                ///< 0: as many as this process may use.
  double timeoutSeconds = 300;
  bool dryRun = false;
};

/// Result of the command line: options, or an exit status after --help and
/// wrong usage (text has been printed).
struct ParsedOptions {
  Options options;
  std::optional<int> exitStatus;
};

/// Parses and checks the command line; `version` is printed by --version.
ParsedOptions parseOptions(int argc, const char *const *argv,
                           const char *version);

} // namespace mgq::rt

#endif // MGQ_RUNTIME_COMMON_OPTIONS_H
