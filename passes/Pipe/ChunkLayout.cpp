//===- ChunkLayout.cpp - Where a chunk keeps its values -------------------===//

#include "passes/Pipe/ChunkLayout.h"

using namespace mlir;
using namespace mgq::pipe;
namespace nn = mgq::nn;

SequenceKind ChunkLayout::sequenceAt(int64_t step) const {
  SequenceKind kind = SequenceKind::Forward;
  for (const Sequence &sequence : sequences)
    if (step >= sequence.first)
      kind = sequence.kind;
  return kind;
}

void ChunkLayout::add(Value value, int64_t begin) {
  if (!index.try_emplace(value, placed.size()).second)
    return;
  placed.push_back({value, {byteSize(value.getType()), begin, begin, -1}});
}

void ChunkLayout::use(Value value, int64_t step) {
  auto it = index.find(value);
  if (it != index.end())
    placed[it->second].lifetime.end =
        std::max(placed[it->second].lifetime.end, step);
}

ChunkLayout::ChunkLayout(const StepGraph &graph, int64_t chunk,
                         ArrayRef<Crossing> crossings,
                         const llvm::DenseSet<Value> &elsewhere) {
  llvm::DenseSet<Value> crosses;
  int64_t step = 0;
  SmallVector<Value> sent;
  for (SequenceKind kind :
       {SequenceKind::Forward, SequenceKind::Backward, SequenceKind::Weight}) {
    bool isForward = kind == SequenceKind::Forward;
    bool isWeight = kind == SequenceKind::Weight;
    sequences.push_back({kind, step});
    // What arrives. A gradient that weight calls alone read arrives before
    // backward, which is then empty.
    if (!isWeight)
      for (const Crossing &crossing : crossings)
        if (crossing.to == chunk &&
            crossing.kind ==
                (isForward ? EdgeKind::Activation : EdgeKind::Gradient)) {
          // Forward touches nothing of a gradient's room: it may come early.
          add(crossing.value, /*begin=*/isForward ? step : 0);
          crosses.insert(crossing.value);
        }
    int64_t arrival = step++;
    for (func::CallOp call : graph.calls(kind, chunk)) {
      for (Value operand : call.getOperands()) {
        if (operand.getDefiningOp<nn::ParamRefOp>() ||
            elsewhere.contains(operand))
          continue;
        if (isInput(operand) && !index.contains(operand)) {
          add(operand, arrival);
          loaded[static_cast<int>(kind)].push_back(operand);
        }
        use(operand, step);
      }
      for (Value result : call.getResults())
        if (!elsewhere.contains(result))
          add(result, step);
      ++step;
    }
    // What leaves.
    if (!isWeight)
      for (const Crossing &crossing : crossings)
        if (crossing.from == chunk &&
            crossing.kind ==
                (isForward ? EdgeKind::Activation : EdgeKind::Gradient)) {
          crosses.insert(crossing.value);
          use(crossing.value, step);
          sent.push_back(crossing.value);
        }
    ++step;
  }
  // What leaves has room of its own: it may still be on its way when the next
  // micro-batch enters the slot.
  for (Value value : sent) {
    use(value, step);
    placed[index.lookup(value)].lifetime.begin = 0;
  }
  for (PlacedValue &value : placed) {
    value.kind = sequenceAt(value.lifetime.begin);
    value.inSlot = crosses.contains(value.value) ||
                   value.kind != sequenceAt(value.lifetime.end);
  }
}

void ChunkLayout::place(bool oneSlot) {
  SmallVector<Lifetime> inSlot;
  std::array<SmallVector<Lifetime>, kSequenceKinds> inShared;
  for (PlacedValue &value : placed) {
    value.inSlot |= oneSlot;
    (value.inSlot ? inSlot : inShared[static_cast<int>(value.kind)])
        .push_back(value.lifetime);
  }
  slots = layOut(inSlot);
  shared = 0;
  std::array<size_t, kSequenceKinds> next = {};
  for (SmallVector<Lifetime> &lifetimes : inShared)
    shared = std::max(shared, layOut(lifetimes));
  size_t nextSlot = 0;
  for (PlacedValue &value : placed) {
    auto kind = static_cast<int>(value.kind);
    value.lifetime.offset = value.inSlot ? inSlot[nextSlot++].offset
                                         : inShared[kind][next[kind]++].offset;
  }
}
