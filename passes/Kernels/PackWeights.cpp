//===- PackWeights.cpp - Which weights kernels read in panels -------------===//
//
// A frozen weight that a layer function uses only as B of products can be
// packed into panels once, at load. Two steps, as the layer function does not
// know where its arguments come from:
//
// kern-mark-packable (on the whole program) notes on a layer function which
// arguments are frozen parameters in every call:
//
//   func.func @mlp(%x, %w) attributes {nn.layer, nn.packable = array<i64: 1>}
//
// kern-lower-matmul decides by the uses, reads such an argument as packed, and
// adds a layer function that packs it, named in `nn.packed`:
//
//   func.func @mlp(%x, %w, %y) attributes {nn.layer, nn.packed = [unit,
//   @pack.bt.64x128, unit]} func.func @pack.bt.64x128(%w: memref<128x64xf32>,
//   %panels: memref<8192xf32>) attributes {nn.layer}
//
// Whoever calls @mlp passes panels for %w. A weight stored as bf16 or f16 has
// panels of that type (@pack.bt.64x128.bf16). Other bits do not come out: an
// element of a product is the same chain of FMAs.
//
// A weight that is read as bf16 but stored wider (`nn.stored`) is rounded as it
// is packed (@pack.bt.64x128.bf16.from.f32); where it is not packed,
// `nn.packed` names a function that only rounds it (@round.3x64.bf16.from.f32).
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/HandKernels.h"
#include "passes/Kernels/Passes.h"

#include "dialects/NN/NNPhases.h"
#include "mlir/Dialect/Linalg/IR/Linalg.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_MARKPACKABLEPASS
#include "passes/Kernels/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq::kernels;
namespace kern = mgq::kern;
namespace nn = mgq::nn;

static constexpr StringLiteral kPackableAttr = "nn.packable";
static constexpr StringLiteral kPackedAttr = "nn.packed";
static constexpr StringLiteral kStoredAttr = "nn.stored";

//===----------------------------------------------------------------------===//
// kern-mark-packable
//===----------------------------------------------------------------------===//

static nn::ParamOp frozenParam(Value value, SymbolTable &symbols) {
  auto ref = value.getDefiningOp<nn::ParamRefOp>();
  auto param = ref ? symbols.lookup<nn::ParamOp>(ref.getParam()) : nullptr;
  return param && !param.isTrainable() ? param : nullptr;
}

static bool isFrozenMatrix(Value value, SymbolTable &symbols) {
  nn::ParamOp param = frozenParam(value, symbols);
  return param && param.getTensorType().getRank() == 2 &&
         storedOf(param.getTensorType().getElementType());
}

/// Notes on a layer function which types its call's rounded parameters have in
/// their files. All calls agree: rounded or not, they read one stored type.
static void markStored(func::CallOp call, func::FuncOp layer,
                       SymbolTable &symbols) {
  Builder builder(layer.getContext());
  SmallVector<Attribute> stored(call.getNumOperands(), builder.getUnitAttr());
  bool any = false;
  for (auto [i, operand] : llvm::enumerate(call.getOperands()))
    if (nn::ParamOp param = frozenParam(operand, symbols))
      if (Type type = param.getTensorType(); type != operand.getType()) {
        stored[i] = TypeAttr::get(getElementTypeOrSelf(type));
        any = true;
      }
  if (any)
    layer->setAttr(kStoredAttr, builder.getArrayAttr(stored));
}

namespace {
struct MarkPackablePass
    : mgq::kernels::impl::MarkPackablePassBase<MarkPackablePass> {
  void runOnOperation() override {
    SymbolTable symbols(getOperation());
    llvm::MapVector<Operation *, SmallVector<bool>> frozen;
    getOperation().walk([&](func::CallOp call) {
      auto layer = symbols.lookup<func::FuncOp>(call.getCallee());
      if (!layer || !layer->hasAttr(nn::kLayerAttr))
        return;
      auto &flags = frozen[layer];
      flags.resize(call.getNumOperands(), true);
      for (auto [flag, operand] : llvm::zip(flags, call.getOperands()))
        flag = flag && isFrozenMatrix(operand, symbols);
      markStored(call, layer, symbols);
    });
    Builder builder(&getContext());
    for (auto &[layer, flags] : frozen) {
      SmallVector<int64_t> arguments;
      for (auto [index, flag] : llvm::enumerate(flags))
        if (flag)
          arguments.push_back(index);
      if (!arguments.empty())
        layer->setAttr(kPackableAttr, builder.getDenseI64ArrayAttr(arguments));
      // What takes its place later reads the same weights.
      auto late = layer->getAttrOfType<FlatSymbolRefAttr>(nn::kLateAttr);
      if (!late)
        continue;
      for (StringRef name : {StringRef(kPackableAttr), StringRef(kStoredAttr)})
        if (Attribute facts = layer->getAttr(name))
          symbols.lookup(late.getAttr())->setAttr(name, facts);
    }
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// Deciding and packing
//===----------------------------------------------------------------------===//

/// Whether all uses of `weight` are as B of products, one way round.
static bool isOnlyB(BlockArgument weight, bool &transposed) {
  auto type = cast<MemRefType>(weight.getType());
  if (type.getRank() != 2 || !type.getLayout().isIdentity() ||
      !storedOf(type.getElementType()) || weight.use_empty())
    return false;
  auto first = dyn_cast<kern::MatmulOp>(*weight.user_begin());
  if (!first)
    return false;
  transposed = first.getTransposeB();
  return llvm::all_of(weight.getUses(), [&](OpOperand &use) {
    auto product = dyn_cast<kern::MatmulOp>(use.getOwner());
    return product && product.getTransposeB() == transposed &&
           &use == &product.getRhsMutable() && isPackable(product);
  });
}

/// Panels hold whole columns of panels: a narrow B would grow, and a tiny one
/// is packed in no time.
static bool isWorthPacking(int64_t n, int64_t k, int64_t panel) {
  return n >= panel && n * k >= 4096;
}

/// The end of a name of a function that makes `to` of stored `from`.
static std::string conversionSuffix(Stored from, Stored to) {
  std::string suffix = suffixOf(to, ".");
  return from == to ? suffix
                    : suffix + ".from." + (from == Stored::f16 ? "f16" : "f32");
}

/// Adds a layer function (weight, result) to the module.
static func::FuncOp addPreparation(StringRef name, MemRefType from,
                                   MemRefType to, KernelCalls &calls) {
  ModuleOp module = calls.getModule();
  OpBuilder b = OpBuilder::atBlockEnd(module.getBody());
  auto function = func::FuncOp::create(b, module.getLoc(), name,
                                       b.getFunctionType({from, to}, {}));
  function->setAttr(nn::kLayerAttr, b.getUnitAttr());
  calls.getGemms().getBuilder().insert(function);
  b.setInsertionPointToStart(function.addEntryBlock());
  func::ReturnOp::create(b, function.getLoc());
  return function;
}

namespace mgq::kernels {

/// Returns the layer function that packs weights like `type`, which are stored
/// as `from`.
static FlatSymbolRefAttr getPackFunction(MemRefType type, Stored from,
                                         bool transposed, KernelCalls &calls) {
  int64_t n = type.getDimSize(transposed ? 0 : 1);
  int64_t k = type.getDimSize(transposed ? 1 : 0);
  Stored to = *storedOf(type.getElementType());
  std::string name = (transposed ? "pack.bt." : "pack.b.") + std::to_string(k) +
                     "x" + std::to_string(n) + conversionSuffix(from, to);
  auto result = FlatSymbolRefAttr::get(type.getContext(), name);
  if (calls.getModule().lookupSymbol(name))
    return result;
  KernelBuilder &kb = calls.getGemms().getBuilder();
  auto panels = MemRefType::get({calls.getGemms().getPackedSize(n, k, to)},
                                type.getElementType());
  auto weight = MemRefType::get(type.getShape(), floatType(kb, from));
  func::FuncOp function = addPreparation(name, weight, panels, calls);
  OpBuilder b(function.getBody().front().getTerminator());
  calls.call(b, function.getLoc(), "kern_pack",
             calls.getGemms().getPackB(transposed, from, to),
             {function.getArgument(0), function.getArgument(1)},
             {n, k, type.getDimSize(1)});
  return result;
}

/// Returns the layer function that rounds weights stored as `from`.
static FlatSymbolRefAttr getRoundFunction(MemRefType type, Stored from,
                                          KernelCalls &calls) {
  std::string name = "round.";
  for (int64_t size : type.getShape())
    name += std::to_string(size) + "x";
  name.back() = '.';
  name.pop_back();
  name += conversionSuffix(from, *storedOf(type.getElementType()));
  auto result = FlatSymbolRefAttr::get(type.getContext(), name);
  if (calls.getModule().lookupSymbol(name))
    return result;
  Type element = floatType(calls.getGemms().getBuilder(), from);
  auto dense = MemRefType::get(type.getShape(), type.getElementType());
  auto wide = MemRefType::get(type.getShape(), element);
  func::FuncOp function = addPreparation(name, wide, dense, calls);
  OpBuilder b(function.getBody().front().getTerminator());
  AffineMap identity = b.getMultiDimIdentityMap(type.getRank());
  SmallVector<utils::IteratorType> iterators(type.getRank(),
                                             utils::IteratorType::parallel);
  linalg::GenericOp::create(
      b, function.getLoc(), ValueRange(function.getArgument(0)),
      ValueRange(function.getArgument(1)), ArrayRef{identity, identity},
      iterators, [&](OpBuilder &nested, Location loc, ValueRange in) {
        Value value = in[0];
        if (from == Stored::f16)
          value = arith::ExtFOp::create(nested, loc, b.getF32Type(), value);
        value =
            arith::TruncFOp::create(nested, loc, type.getElementType(), value);
        linalg::YieldOp::create(nested, loc, value);
      });
  return result;
}

/// The type of argument `index` in the file, where that is another.
static std::optional<Stored> storedAs(func::FuncOp layer, unsigned index) {
  auto stored = layer->getAttrOfType<ArrayAttr>(kStoredAttr);
  // Results come after what it tells of.
  auto type = stored && index < stored.size()
                  ? dyn_cast<TypeAttr>(stored[index])
                  : TypeAttr();
  return type ? storedOf(type.getValue()) : std::nullopt;
}

/// Whether an argument is better read in panels; how B is stored then.
static bool shouldPack(BlockArgument weight, const CpuFamily &family,
                       bool &transposed) {
  if (!isOnlyB(weight, transposed))
    return false;
  auto type = cast<MemRefType>(weight.getType());
  return isWorthPacking(type.getDimSize(transposed ? 0 : 1),
                        type.getDimSize(transposed ? 1 : 0), family.panel());
}

void choosePackedWeights(KernelCalls &calls,
                         llvm::DenseSet<Value> &packedWeights) {
  ModuleOp module = calls.getModule();
  Builder builder(module.getContext());
  for (auto layer : llvm::to_vector(module.getOps<func::FuncOp>())) {
    auto packable = layer->getAttrOfType<DenseI64ArrayAttr>(kPackableAttr);
    if (!packable && !layer->hasAttr(kStoredAttr))
      continue;
    SmallVector<Attribute> packed(layer.getNumArguments(),
                                  builder.getUnitAttr());
    bool any = false;
    for (BlockArgument weight : layer.getArguments()) {
      unsigned index = weight.getArgNumber();
      std::optional<Stored> stored = storedAs(layer, index);
      auto type = dyn_cast<MemRefType>(weight.getType());
      bool transposed = false;
      if (packable && llvm::is_contained(packable.asArrayRef(), index) &&
          shouldPack(weight, calls.getFamily(), transposed)) {
        Stored from = stored.value_or(*storedOf(type.getElementType()));
        packed[index] = getPackFunction(type, from, transposed, calls);
        packedWeights.insert(weight);
      } else if (stored) {
        packed[index] = getRoundFunction(type, *stored, calls);
      } else {
        continue;
      }
      any = true;
    }
    layer->removeAttr(kPackableAttr);
    layer->removeAttr(kStoredAttr);
    if (any)
      layer->setAttr(kPackedAttr, builder.getArrayAttr(packed));
  }
}

} // namespace mgq::kernels
