//===- Report.h - Plans for readers and programs ----------------*- C++ -*-===//
#ifndef MGQ_PASSES_PLANNER_REPORT_H
#define MGQ_PASSES_PLANNER_REPORT_H

#include "passes/Planner/Plan.h"

#include "llvm/Support/JSON.h"
#include "llvm/Support/raw_ostream.h"

namespace mgq::planner {

/// The plan as text: layers with what they train and where their work lies,
/// ranks with memory and time, alternatives, notes.
void printPlan(llvm::raw_ostream &os, const Plan &plan, const ModelCosts &model,
               const Cluster &cluster);

/// The plan as JSON. Keys are interface (docs/Planner.md); seconds, bytes,
/// FLOP of one micro-batch.
llvm::json::Value planJson(const Plan &plan, const ModelCosts &model,
                           const Cluster &cluster);

/// The schedule as an SVG picture: a row per rank, a box per task.
void writeTimeline(llvm::raw_ostream &os, const Plan &plan,
                   const ModelCosts &model);

} // namespace mgq::planner

#endif // MGQ_PASSES_PLANNER_REPORT_H
