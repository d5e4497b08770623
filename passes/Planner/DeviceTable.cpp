//===- DeviceTable.cpp - Devices by name ----------------------------------===//

#include "passes/Planner/DeviceTable.h"

#include "llvm/ADT/StringExtras.h"

#include <cmath>

using namespace mgq::planner;
using llvm::StringRef;

namespace {
struct KnownDevice {
  const char *name;
  double f32, bf16; ///< TFLOP/s.
  double bandwidth; ///< GB/s.
  double memory;    ///< GiB.
};
} // namespace

// Dense peaks of the makers' data sheets (no sparsity; f32 accumulation).
static const KnownDevice kDevices[] = {
    {"A10", 31.2, 125, 600, 24},
    {"A30", 10.3, 165, 933, 24},
    {"A40", 37.4, 149.7, 696, 48},
    {"A100-40GB", 19.5, 312, 1555, 40},
    {"A100-80GB", 19.5, 312, 2039, 80},
    {"B200", 75, 2250, 8000, 180},
    {"H20", 44, 148, 4000, 96},
    {"H100", 66.9, 989, 3350, 80},
    {"H100-PCIe", 51.2, 756, 2000, 80},
    {"H100-NVL", 60, 835, 3900, 94},
    {"H200", 66.9, 989, 4800, 131},
    {"L4", 30.3, 121, 300, 24},
    {"L40", 90.5, 181, 864, 48},
    {"L40S", 91.6, 362, 864, 48},
    {"RTX 2080 Ti", 13.4, 13.4, 616, 11},
    {"RTX 3080", 29.8, 59.5, 760, 10},
    {"RTX 3090", 35.6, 71, 936, 24},
    {"RTX 4080", 48.7, 97.5, 717, 16},
    {"RTX 4090", 82.6, 165.2, 1008, 24},
    {"RTX 5090", 104.8, 209.5, 1792, 32},
    {"RTX 6000 Ada", 91.1, 364, 960, 48},
    {"RTX A6000", 38.7, 154.8, 768, 48},
    {"T4", 8.1, 8.1, 320, 16},
    {"V100-16GB", 15.7, 15.7, 900, 16},
    {"V100-32GB", 15.7, 15.7, 900, 32},
};

/// Lower case, without what spellings differ in.
static std::string normalised(StringRef name) {
  std::string result;
  for (char c : name.lower())
    if (llvm::isAlnum(c))
      result += c;
  for (StringRef word : {"nvidia", "geforce", "tesla"}) {
    size_t at = result.find(word.str());
    if (at != std::string::npos)
      result.erase(at, word.size());
  }
  if (StringRef(result).ends_with("gb"))
    result.resize(result.size() - 2);
  for (StringRef word : {"sxm4", "sxm5", "sxm"}) {
    size_t at = result.find(word.str());
    if (at != std::string::npos)
      result.erase(at, word.size());
  }
  return result;
}

std::optional<Device> mgq::planner::knownDevice(StringRef type) {
  std::string wanted = normalised(type);
  // The sizes most people have.
  if (wanted == "a100")
    wanted = "a10080";
  if (wanted == "v100")
    wanted = "v10032";
  if (wanted == "h10080")
    wanted = "h100";
  for (const KnownDevice &known : kDevices) {
    if (normalised(known.name) != wanted)
      continue;
    Device device;
    device.name = known.name;
    device.f32Flops = known.f32 * 1e12;
    device.bf16Flops = known.bf16 * 1e12;
    device.bytesPerSecond = known.bandwidth * 1e9;
    device.memoryBytes = int64_t(known.memory * (1 << 30));
    return device;
  }
  return std::nullopt;
}

std::string mgq::planner::knownDeviceNames() {
  std::string names;
  for (const KnownDevice &known : kDevices)
    names += (names.empty() ? "" : ", ") + std::string(known.name);
  return names;
}

StringRef mgq::planner::unitExample(UnitKind kind) {
  switch (kind) {
  case UnitKind::Plain:
    return "0.6";
  case UnitKind::Bytes:
    return "24 GiB";
  case UnitKind::BytesPerSecond:
    return "25 GB/s or 200 Gbit/s";
  case UnitKind::Flops:
    return "165 TFLOP/s";
  case UnitKind::Seconds:
    return "10 us";
  }
  llvm_unreachable("unknown unit");
}

/// Factor of "", "k", "Ki", ...; nothing if unknown.
static std::optional<double> prefixFactor(StringRef prefix) {
  bool binary = prefix.consume_back("i");
  StringRef letters = "kmgtp";
  if (prefix.empty())
    return binary ? std::nullopt : std::optional<double>(1);
  size_t at = letters.find(llvm::toLower(prefix.front()));
  if (prefix.size() != 1 || at == StringRef::npos)
    return std::nullopt;
  return std::pow(binary ? 1024.0 : 1000.0, double(at + 1));
}

std::optional<double> mgq::planner::parseQuantity(StringRef text,
                                                  UnitKind kind) {
  text = text.trim();
  size_t digits = text.find_first_not_of("0123456789.+-eE");
  double value = 0;
  StringRef number = text.substr(0, digits).trim();
  if (number.getAsDouble(value) || !(value >= 0) || !std::isfinite(value))
    return std::nullopt;
  StringRef unit = digits == StringRef::npos ? "" : text.substr(digits).trim();
  if (unit.empty())
    return value;
  if (kind == UnitKind::Plain)
    return std::nullopt;
  if (kind == UnitKind::Seconds) {
    for (auto [name, factor] : {std::pair<StringRef, double>{"s", 1},
                                {"ms", 1e-3},
                                {"us", 1e-6},
                                {"\xC2\xB5s", 1e-6},
                                {"ns", 1e-9}})
      if (unit == name)
        return value * factor;
    return std::nullopt;
  }
  bool perSecond = unit.consume_back("/s");
  double scale = 1;
  switch (kind) {
  case UnitKind::Bytes:
    if (perSecond || !unit.consume_back("B"))
      return std::nullopt;
    break;
  case UnitKind::BytesPerSecond:
    if (!perSecond)
      return std::nullopt;
    if (unit.consume_back("bit") || unit.consume_back("b"))
      scale = 1.0 / 8;
    else if (!unit.consume_back("B"))
      return std::nullopt;
    break;
  case UnitKind::Flops:
    if (!(perSecond ? unit.consume_back_insensitive("flop")
                    : unit.consume_back_insensitive("flops")))
      return std::nullopt;
    break;
  case UnitKind::Plain:
  case UnitKind::Seconds:
    break;
  }
  std::optional<double> factor = prefixFactor(unit);
  if (!factor)
    return std::nullopt;
  return value * scale * *factor;
}
