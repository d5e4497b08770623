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
  std::string frozen = "auto";

  std::string target = "cpu";
  std::string cpu = "native";
  std::vector<std::string> gpuArchs = {"sm_80", "sm_86", "sm_89", "sm_90"};
  std::string cudaToolkit; // folder; empty: searched for
  std::string emitTwins;   // folder for bitcode of kernels; empty: none
  int64_t microBatches = 1;
  std::string recompute = "auto";

  bool plan = false;        // print the plan and stop
  std::string planFile;     // where to write it as JSON; empty: nowhere
  std::string planTimeline; // and the schedule as SVG

  std::string stopAfter; // phase name; empty: all
  std::string dumpIr;    // folder
  bool saveTemps = false;
  bool verbose = false;

  /// Whether this compiler makes code for what is asked; a plan can be had
  /// without.
  bool hasKernels() const { return precision == "f32"; }

  /// Bytes of each device that the planner leaves free, beside its estimates.
  int64_t reserveBytes = 0;

  /// If not null, gets the planner's answer in phase `partition`.
  pipe::PlannedModel *planned = nullptr;
};

} // namespace mgq

#endif // MGQ_COMPILER_PIPELINES_OPTIONS_H
