//===- PlanText.h - Numbers and faults in the user's words ------*- C++ -*-===//
#ifndef MGQ_PASSES_PLANNER_PLANTEXT_H
#define MGQ_PASSES_PLANNER_PLANTEXT_H

#include "passes/Planner/Layout.h"

#include <string>

namespace mgq::planner {

std::string percent(double share);      ///< "12.3 %"
std::string byteText(int64_t bytes);    ///< "1.5 GiB"
std::string secondText(double seconds); ///< "12.3 ms"
/// What a plan may take: "23.0 GiB (24.0 GiB less 1.00 GiB for libraries)".
std::string memoryText(const Device &device);
std::string countText(double count); ///< "13.5 M"

/// Why a layout does not fit: which stage needs how much, of what, and what
/// would make it fit.
std::string lackText(const CostModel &costs, const Layout &layout,
                     const LayoutMemory &memory, const Judgement &judgement);

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_PLANTEXT_H
