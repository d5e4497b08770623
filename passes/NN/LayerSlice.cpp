//===- LayerSlice.cpp - Parts of a graph as layer functions ---------------===//

#include "passes/NN/LayerSlice.h"

#include "dialects/NN/NN.h"

using namespace mlir;
using namespace mgq::nn;

func::FuncOp mgq::nn::createLayer(Location loc, StringRef name,
                                  TypeRange inputs, TypeRange results) {
  OpBuilder builder(loc.getContext());
  auto function =
      func::FuncOp::create(loc, name, builder.getFunctionType(inputs, results));
  function.setPrivate();
  function->setAttr(kLayerAttr, builder.getUnitAttr());
  function.addEntryBlock();
  return function;
}

llvm::DenseSet<Operation *> mgq::nn::sliceOf(ValueRange roots,
                                             const IRMapping &map) {
  llvm::DenseSet<Operation *> slice;
  SmallVector<Value> stack(roots);
  while (!stack.empty()) {
    Value value = stack.pop_back_val();
    Operation *op = value.getDefiningOp();
    if (map.contains(value) || !op || !slice.insert(op).second)
      continue;
    llvm::append_range(stack, op->getOperands());
  }
  return slice;
}

void mgq::nn::cloneSlice(Block &graph, func::FuncOp function, IRMapping &map,
                         ValueRange roots) {
  OpBuilder builder = OpBuilder::atBlockEnd(&function.getBody().front());
  llvm::DenseSet<Operation *> slice = sliceOf(roots, map);
  for (Operation &op : graph.without_terminator())
    if (slice.contains(&op)) {
      // A result that crosses the cut stays what it is.
      IRMapping local = map;
      Operation *clone = builder.clone(op, local);
      for (auto [from, to] :
           llvm::zip_equal(op.getResults(), clone->getResults()))
        if (!map.contains(from))
          map.map(from, to);
    }
  SmallVector<Value> returned;
  for (Value root : roots)
    returned.push_back(map.lookup(root));
  func::ReturnOp::create(builder, function.getLoc(), returned);
}
