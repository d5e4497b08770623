//===- Cluster.h - Devices and links ----------------------------*- C++ -*-===//
#ifndef MGQ_PASSES_PLANNER_CLUSTER_H
#define MGQ_PASSES_PLANNER_CLUSTER_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include "llvm/Support/Error.h"
#include <cstdint>
#include <string>
#include <vector>

namespace mgq::planner {

struct Device {
  std::string name;     ///< Shown to users: "node0/gpu1 (RTX 4090)".
  double f32Flops = 0;  ///< FLOP/s that kernels reach (a multiply-add is 2).
  double bf16Flops = 0; ///< FLOP/s.
  double bytesPerSecond = 0; ///< Of its memory.
  int64_t memoryBytes = 0;   ///< That a plan may take; 0: unknown, no limit.
  int64_t reservedBytes = 0; ///< Beside it: what the driver and libraries take.
  int node = 0;
};

struct Link {
  double latency = 0;        ///< Seconds.
  double bytesPerSecond = 0; ///< 0: infinite.

  /// Time of one message.
  double seconds(int64_t bytes) const {
    return latency + (bytesPerSecond > 0 ? double(bytes) / bytesPerSecond : 0);
  }
};

struct Cluster {
  std::vector<Device> devices;
  /// By pair of devices, row by row; the diagonal is free.
  std::vector<Link> links;

  const Link &link(int from, int to) const {
    return links[from * devices.size() + to];
  }

  /// Leaves `bytes` of each device's memory, but at most a quarter of it, to
  /// the driver and libraries.
  void reserve(int64_t bytes);

  /// `ranks` equal parts of the cores of this machine.
  static Cluster thisMachine(int ranks);
  /// `ranks` GPUs of which nothing is known: speeds of an RTX 4090, messages by
  /// PCIe, no limit of memory.
  static Cluster unknownGpus(int ranks);
  /// Reads a cluster file (docs/Planner.md). Error with file, line and column.
  static llvm::Expected<Cluster> read(llvm::StringRef path);
  static llvm::Expected<Cluster> parse(llvm::StringRef yaml,
                                       llvm::StringRef path);
};

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_CLUSTER_H
