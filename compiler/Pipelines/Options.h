//===- Options.h - What a user may ask of the compiler --------------------===//
#ifndef MGQ_COMPILER_PIPELINES_OPTIONS_H
#define MGQ_COMPILER_PIPELINES_OPTIONS_H

#include "llvm/ADT/StringMap.h"
#include <cstdint>
#include <string>
#include <vector>

namespace mgq {

namespace pipe {
struct PlannedModel;
} // namespace pipe

/// Options of mgq-compile, as in its --help. Defaults stand here only.
struct Options {
  std::string model;
  std::string output;

  std::vector<std::string> trainable; // globs; empty: the model's metadata
  std::vector<std::string> freeze;
  llvm::StringMap<int64_t> dims;

  int64_t stages = 0;   // 0: chosen by the planner
  int64_t replicas = 0; // 0: chosen by the planner
  int64_t ranks = 1;
  std::string schedule = "auto";
  int64_t chunks = 0; // a rank; 0: chosen by the planner
  std::string partition = "frozen_aware";
  std::vector<std::string> cuts; // layer names
  std::string cluster;           // file; empty: this machine
  std::string profile;           // file; empty: none
  std::string precision = "f32";
  std::vector<std::string> precisionOf; // GLOB=f32|bf16
  int64_t fp32Steps = 0, bf16Ramp = 0;
  std::string frozen = "auto";
  std::string compression = "none"; // of gradients, between replicas
  bool overlap = true;    // gradients of replicas are summed beside backward
  int64_t bucketSize = 0; // bytes of gradients; 0: chosen
  /// With `overlap`: the next step's frozen prefix runs beside the sums too,
  /// where there is memory for what it leaves.
  bool runAhead = true;

  std::string target = "cpu";
  std::string cpu = "native";
  std::vector<std::string> gpuArchs = {"sm_80", "sm_86", "sm_89", "sm_90"};
  std::string cudaToolkit; // folder; empty: searched for
  std::string emitTwins;   // folder for bitcode of kernels; empty: none
  int64_t microBatches = 1;
  /// --micro-batches=MIN:MAX; 0: one number is given.
  int64_t leastMicroBatches = 0, mostMicroBatches = 0;
  int64_t globalBatch = 0; // samples a step; 0: not given
  std::string recompute = "auto";

  int64_t dropWait = -1;    // --test-drop-wait
  bool plan = false;        // print the plan and stop
  std::string planFile;     // where to write it as JSON; empty: nowhere
  std::string planTimeline; // and the schedule as SVG

  std::string stopAfter; // phase name; empty: all
  std::string dumpIr;    // folder
  bool saveTemps = false;
  bool verbose = false;

  /// Whether this compiler makes code for what is asked; a plan can be had
  /// without.
  bool hasKernels() const { return target == "cpu" || !plan; }

  /// Bytes of each device that the planner leaves free, beside its estimates.
  int64_t reserveBytes = 0;

  /// Schedule of the partition, in place of `schedule`; empty: that one.
  std::string plannedSchedule;

  /// If not null, gets the planner's answer in phase `partition`.
  pipe::PlannedModel *planned = nullptr;
};

} // namespace mgq

#endif // MGQ_COMPILER_PIPELINES_OPTIONS_H
