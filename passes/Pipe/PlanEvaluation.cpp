//===- PlanEvaluation.cpp - Memory of evaluations and counts --------------===//

#include "passes/Pipe/RankPlanner.h"

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

/// One record goes through all chunks of the rank in turn. What is sent stays
/// until the end of the record.
RankPlanner::Evaluated RankPlanner::layOutEvaluation() {
  Evaluated out;
  llvm::DenseMap<Value, size_t> index;
  int64_t step = 0;
  auto add = [&](Value value, int64_t begin) {
    if (evaluated.contains(value) ||
        !index.try_emplace(value, out.values.size()).second)
      return false;
    out.values.push_back(value);
    out.lifetimes.push_back({byteSize(value.getType()), begin, begin, -1});
    return true;
  };
  SmallVector<Value> sent;
  for (const Chunk &chunk : chunks) {
    if (graph.stageOf(chunk.index, 0) != stage)
      continue;
    // A value that several chunks of the rank get comes once for each, always
    // to one place.
    for (const Crossing &crossing : crossings)
      if (crossing.kind == EdgeKind::Evaluation && crossing.to == chunk.index)
        add(crossing.value, step);
    int64_t arrival = step++;
    for (func::CallOp call : graph.calls(SequenceKind::Evaluate, chunk.index)) {
      for (Value operand : call.getOperands()) {
        if (operand.getDefiningOp<nn::ParamRefOp>())
          continue;
        if (isa<BlockArgument>(operand)) {
          add(operand, arrival);
          if (!llvm::is_contained(out.loads[chunk.index], operand))
            out.loads[chunk.index].push_back(operand);
        }
        if (auto it = index.find(operand); it != index.end())
          out.lifetimes[it->second].end =
              std::max(out.lifetimes[it->second].end, step);
      }
      for (Value result : call.getResults())
        add(result, step);
      ++step;
    }
    for (const Crossing &crossing : crossings)
      if (crossing.kind == EdgeKind::Evaluation && crossing.from == chunk.index)
        sent.push_back(crossing.value);
    ++step;
  }
  for (Value value : sent)
    if (auto it = index.find(value); it != index.end())
      out.lifetimes[it->second].end = step;
  sharedBytes = std::max(sharedBytes, layOut(out.lifetimes));
  for (auto [value, lifetime] : llvm::zip_equal(out.values, out.lifetimes))
    evaluated[value] =
        memory.arena(sharedBegin + lifetime.offset, lifetime.bytes);
  return out;
}

/// Places the values of @count; returns the inputs that it loads.
SmallVector<Value> RankPlanner::layOutCount() {
  SmallVector<Value> values, loads;
  SmallVector<Lifetime> lifetimes;
  llvm::DenseMap<Value, size_t> index;
  int64_t step = 0;
  for (func::CallOp call : graph.count.calls()) {
    ++step;
    for (Value operand : call.getOperands()) {
      if (operand.getDefiningOp<nn::ParamRefOp>())
        continue;
      if (isa<BlockArgument>(operand) &&
          index.try_emplace(operand, values.size()).second) {
        loads.push_back(operand);
        values.push_back(operand);
        lifetimes.push_back({byteSize(operand.getType()), 0, 0, -1});
      }
      if (auto it = index.find(operand); it != index.end())
        lifetimes[it->second].end = step;
    }
    for (Value result : call.getResults())
      if (!counted.contains(result) &&
          index.try_emplace(result, values.size()).second) {
        values.push_back(result);
        lifetimes.push_back({byteSize(result.getType()), step, step, -1});
      }
  }
  sharedBytes = std::max(sharedBytes, layOut(lifetimes));
  for (auto [value, lifetime] : llvm::zip_equal(values, lifetimes))
    counted[value] =
        memory.arena(sharedBegin + lifetime.offset, lifetime.bytes);
  return loads;
}
