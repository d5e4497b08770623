//===- SegmentGraph.cpp - Roles of ops, structure of segments
//---------------===//

#include "passes/NN/Segments.h"

#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace mgq::nn;

/// A parameter that is a vector of at most this many elements and frozen does
/// not keep a table (rotary frequencies) from being recomputed.
static constexpr int64_t kTableParamElements = 4096;
/// The same of products of small things (frequencies times positions).
static constexpr int64_t kTableFlops = 1 << 24;

/// Whether an op only moves or maps elements of parameters.
static bool isCheap(Operation *op) {
  return isa<ReshapeOp, TransposeOp, BroadcastOp, SliceOp, ConcatOp, CastOp,
             UnaryOp, BinaryOp, SelectOp>(op);
}

/// Whether `op` is worth recomputing though a small parameter is behind it.
static bool isTableOp(Operation *op) {
  if (auto matmul = dyn_cast<MatmulOp>(op))
    return cast<CostOpInterface>(op).getFlops() <= kTableFlops;
  return isCheap(op) || isa<GatherOp, CompareOp, CumsumOp>(op);
}

/// Whether an op of a parameter alone is too much to do in each layer.
static bool startsTable(Operation *op) {
  if (auto unary = dyn_cast<UnaryOp>(op))
    return unary.getKind() == UnaryKind::Sin ||
           unary.getKind() == UnaryKind::Cos;
  return isa<MatmulOp>(op);
}

namespace {
/// What stands behind a value.
struct Origin {
  bool params = false, inputs = false, chain = false;
  /// All parameters are small, frozen vectors.
  bool small = true;

  void join(const Origin &other) {
    params |= other.params;
    inputs |= other.inputs;
    chain |= other.chain;
    small &= other.small;
  }
};
} // namespace

/// The role of an op whose operands come from `origin`.
static Role decideRole(Operation *op, const Origin &origin) {
  if (isa<ConstantOp>(op))
    return Role::Constant;
  if (origin.chain)
    return Role::Chain;
  if (!origin.params)
    return Role::Input;
  bool returned = llvm::any_of(op->getUsers(), [](Operation *user) {
    return isa<func::ReturnOp>(user);
  });
  bool makesTable =
      origin.small && isTableOp(op) && (origin.inputs || startsTable(op));
  if (makesTable)
    return Role::Input;
  return !origin.inputs && isCheap(op) && !returned ? Role::View : Role::Chain;
}

Graph::Graph(func::FuncOp function) {
  SymbolTable symbols(function->getParentOfType<ModuleOp>());
  DenseMap<Value, Origin> origins;
  for (Value argument : function.getArguments())
    origins[argument].inputs = true;
  for (Operation &op : function.getBody().front().without_terminator()) {
    Origin origin;
    for (Value operand : op.getOperands())
      origin.join(origins.lookup(operand));
    Role role;
    if (auto ref = dyn_cast<ParamRefOp>(op)) {
      role = Role::Param;
      auto param = symbols.lookup<ParamOp>(ref.getParam());
      RankedTensorType type = param.getTensorType();
      bool isVector =
          llvm::count_if(type.getShape(), [](int64_t d) { return d > 1; }) <= 1;
      origin.params = true;
      origin.small = isVector && !param.isTrainable() &&
                     type.getNumElements() <= kTableParamElements;
    } else {
      role = decideRole(&op, origin);
    }
    roles[&op] = role;
    origin.chain = role == Role::Chain;
    if (role == Role::Input)
      origin = {false, true, false, true};
    for (Value result : op.getResults())
      origins[result] = origin;
    if (role == Role::Chain)
      chain.push_back(&op);
    else if (role == Role::Input)
      inputOps.push_back(&op);
  }
}

/// Operands of `ops` that come from outside, parameters last.
static void collectOperands(ArrayRef<Operation *> ops,
                            SmallVectorImpl<Value> &operands) {
  DenseSet<Value> seen;
  for (Operation *op : ops)
    seen.insert(op->result_begin(), op->result_end());
  SmallVector<Value> params;
  for (Operation *op : ops)
    for (Value operand : op->getOperands())
      if (seen.insert(operand).second)
        (operand.getDefiningOp<ParamRefOp>() ? params : operands)
            .push_back(operand);
  operands.append(params);
}

Structure mgq::nn::describe(ArrayRef<Operation *> ops, ArrayRef<Value> results,
                            SmallVectorImpl<Value> &operands) {
  collectOperands(ops, operands);
  DenseMap<Value, uintptr_t> number;
  Structure structure;
  auto add = [&](const void *pointer) { structure.push_back(pointer); };
  auto addNumber = [&](uintptr_t n) {
    structure.push_back(reinterpret_cast<const void *>(n));
  };
  auto define = [&](Value value) {
    number.try_emplace(value, number.size());
    add(value.getType().getAsOpaquePointer());
  };
  llvm::for_each(operands, define);
  addNumber(operands.size());
  for (Value operand : operands)
    addNumber(operand.getDefiningOp<ParamRefOp>() ? 1 : 0);
  for (Operation *op : ops) {
    add(op->getName().getAsOpaquePointer());
    add(op->getAttrDictionary().getAsOpaquePointer());
    addNumber(op->getNumOperands());
    for (Value operand : op->getOperands())
      addNumber(number.lookup(operand));
    addNumber(op->getNumResults());
    llvm::for_each(op->getResults(), define);
  }
  for (Value result : results)
    addNumber(number.lookup(result));
  return structure;
}
