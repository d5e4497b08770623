//===- DeviceTable.h - Devices by name --------------------------*- C++ -*-===//
#ifndef MGQ_PASSES_PLANNER_DEVICETABLE_H
#define MGQ_PASSES_PLANNER_DEVICETABLE_H

#include "passes/Planner/Cluster.h"

#include <optional>
#include <string>

namespace mgq::planner {

/// A device that is known by name ("RTX 4090", "a100-80gb"; case, blanks,
/// hyphens and the maker's name do not matter). Rates are the maker's dense
/// peaks; without bf16 units bf16 runs at the rate of f32.
std::optional<Device> knownDevice(llvm::StringRef type);

/// "A10, A100-40GB, ...".
std::string knownDeviceNames();

/// A number with a unit of `kind`; without unit in the base unit. Nothing if
/// it is no such number.
enum class UnitKind { Plain, Bytes, BytesPerSecond, Flops, Seconds };
std::optional<double> parseQuantity(llvm::StringRef text, UnitKind kind);

/// Examples of what is understood: "24 GiB".
llvm::StringRef unitExample(UnitKind kind);

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_DEVICETABLE_H
