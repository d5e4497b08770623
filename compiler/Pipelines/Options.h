//===- Options.h - What a user may ask of the compiler --------------------===//
#ifndef MGQ_COMPILER_PIPELINES_OPTIONS_H
#define MGQ_COMPILER_PIPELINES_OPTIONS_H

#include "llvm/ADT/StringMap.h"
#include <cstdint>
#include <string>
#include <vector>

namespace mgq {

/// Options of mgq-compile, as in its --help. Defaults stand here only.
struct Options {
  std::string model;
  std::string output;

  std::vector<std::string> trainable; // globs; empty: the model's metadata
  std::vector<std::string> freeze;
  llvm::StringMap<int64_t> dims;

  std::string target = "cpu";
  std::string cpu = "native";
  int64_t microBatches = 1;
  std::string recompute = "auto";

  std::string stopAfter; // phase name; empty: all
  std::string dumpIr;    // folder
  bool saveTemps = false;
  bool verbose = false;
};

} // namespace mgq

#endif // MGQ_COMPILER_PIPELINES_OPTIONS_H
