//===- ThisMachine.cpp - The machine that compiles, as a cluster ----------===//
//
// Nominal numbers from /proc. They are rough; what matters is that they are the
// same each time, and that ranks are alike. A measured profile wins over them.
//
//===----------------------------------------------------------------------===//

#include "passes/Planner/Cluster.h"

#include "llvm/ADT/STLExtras.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/MemoryBuffer.h"

#include <algorithm>
#include <cmath>

using namespace mgq::planner;
using llvm::StringRef;

/// Where the clock cannot be read.
static constexpr double kClock = 2.5e9;
/// Memory traffic of one core, bytes per second.
static constexpr double kCoreBandwidth = 8e9;
/// Messages between ranks of a machine are copies.
static constexpr Link kCopy{5e-6, 8e9};

static std::string readAll(const char *path) {
  // Files of /proc have no size.
  auto file = llvm::MemoryBuffer::getFileAsStream(path);
  return file ? (*file)->getBuffer().str() : std::string();
}

/// Value of the first line "key : value".
static StringRef valueOf(StringRef text, StringRef key) {
  while (!text.empty()) {
    auto [line, rest] = text.split('\n');
    auto [name, value] = line.split(':');
    if (name.trim() == key)
      return value.trim();
    text = rest;
  }
  return {};
}

/// Cycles per second: of the model's name ("@ 2.60GHz") where it has it, since
/// the other entry follows the governor; that one to 100 MHz.
static double clockOf(StringRef info) {
  StringRef name = valueOf(info, "model name");
  size_t at = name.find('@');
  double value = 0;
  if (at != StringRef::npos) {
    StringRef clock = name.substr(at + 1).trim();
    if (clock.consume_back("GHz") && !clock.trim().getAsDouble(value))
      return value * 1e9;
  }
  if (!valueOf(info, "cpu MHz").getAsDouble(value) && value > 100)
    return std::round(value / 100) * 1e8;
  return kClock;
}

Cluster Cluster::thisMachine(int ranks) {
  ranks = std::max(1, ranks);
  std::string info = readAll("/proc/cpuinfo");
  int cores = 0;
  for (StringRef rest = info; !rest.empty(); rest = rest.split('\n').second)
    cores += rest.split('\n').first.split(':').first.trim() == "processor";
  cores = std::max(1, cores);
  llvm::SmallVector<StringRef> flags;
  valueOf(info, "flags").split(flags, ' ');
  auto has = [&](StringRef flag) { return llvm::is_contained(flags, flag); };
  // Two multiply-adds of a vector in a cycle.
  double perCycle = has("avx512f") ? 64 : has("avx2") && has("fma") ? 32 : 8;
  double perCore = perCycle * clockOf(info);
  double share = double(cores) / ranks;

  int64_t kilobytes = 0;
  std::string memory = readAll("/proc/meminfo");
  StringRef total = valueOf(memory, "MemTotal");
  total.consume_back("kB");
  if (total.trim().getAsInteger(10, kilobytes))
    kilobytes = 0;

  Cluster cluster;
  for (int rank = 0; rank < ranks; ++rank) {
    Device device;
    device.name = "cpu" + std::to_string(rank);
    device.f32Flops = perCore * share;
    device.bf16Flops = device.f32Flops * (has("avx512_bf16") ? 2 : 1);
    device.bytesPerSecond = kCoreBandwidth * share;
    device.memoryBytes = kilobytes * 1024 / ranks;
    cluster.devices.push_back(std::move(device));
  }
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to)
      cluster.links.push_back(from == to ? Link() : kCopy);
  return cluster;
}
