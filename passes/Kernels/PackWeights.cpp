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
//===----------------------------------------------------------------------===//

#include "passes/Kernels/HandKernels.h"
#include "passes/Kernels/Passes.h"

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

//===----------------------------------------------------------------------===//
// kern-mark-packable
//===----------------------------------------------------------------------===//

static bool isFrozenMatrix(Value value, SymbolTable &symbols) {
  auto ref = value.getDefiningOp<nn::ParamRefOp>();
  if (!ref)
    return false;
  auto param = symbols.lookup<nn::ParamOp>(ref.getParam());
  return param && !param.isTrainable() &&
         param.getTensorType().getRank() == 2 &&
         storedOf(param.getTensorType().getElementType());
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
    });
    Builder builder(&getContext());
    for (auto &[layer, flags] : frozen) {
      SmallVector<int64_t> arguments;
      for (auto [index, flag] : llvm::enumerate(flags))
        if (flag)
          arguments.push_back(index);
      if (!arguments.empty())
        layer->setAttr(kPackableAttr, builder.getDenseI64ArrayAttr(arguments));
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

namespace mgq::kernels {

/// Returns the layer function that packs weights like `type`.
static FlatSymbolRefAttr getPackFunction(MemRefType type, bool transposed,
                                         KernelCalls &calls) {
  int64_t n = type.getDimSize(transposed ? 0 : 1);
  int64_t k = type.getDimSize(transposed ? 1 : 0);
  Stored stored = *storedOf(type.getElementType());
  std::string name = (transposed ? "pack.bt." : "pack.b.") + std::to_string(k) +
                     "x" + std::to_string(n) + suffixOf(stored, ".");
  auto result = FlatSymbolRefAttr::get(type.getContext(), name);
  ModuleOp module = calls.getModule();
  if (module.lookupSymbol(name))
    return result;
  OpBuilder b = OpBuilder::atBlockEnd(module.getBody());
  auto panels = MemRefType::get({calls.getGemms().getPackedSize(n, k)},
                                type.getElementType());
  auto function = func::FuncOp::create(b, module.getLoc(), name,
                                       b.getFunctionType({type, panels}, {}));
  function->setAttr(nn::kLayerAttr, b.getUnitAttr());
  calls.getGemms().getBuilder().insert(function);
  b.setInsertionPointToStart(function.addEntryBlock());
  calls.call(b, function.getLoc(), "kern_pack",
             calls.getGemms().getPackB(transposed, stored),
             {function.getArgument(0), function.getArgument(1)},
             {n, k, type.getDimSize(1)});
  func::ReturnOp::create(b, function.getLoc());
  return result;
}

void choosePackedWeights(KernelCalls &calls,
                         llvm::DenseSet<Value> &packedWeights) {
  ModuleOp module = calls.getModule();
  for (auto layer : llvm::to_vector(module.getOps<func::FuncOp>())) {
    auto packable = layer->getAttrOfType<DenseI64ArrayAttr>(kPackableAttr);
    if (!packable)
      continue;
    layer->removeAttr(kPackableAttr);
    Builder builder(module.getContext());
    SmallVector<Attribute> packed(layer.getNumArguments(),
                                  builder.getUnitAttr());
    bool any = false;
    for (int64_t index : packable.asArrayRef()) {
      BlockArgument weight = layer.getArgument(index);
      auto type = cast<MemRefType>(weight.getType());
      bool transposed = false;
      if (!isOnlyB(weight, transposed) ||
          !isWorthPacking(type.getDimSize(transposed ? 0 : 1),
                          type.getDimSize(transposed ? 1 : 0),
                          calls.getFamily().panel()))
        continue;
      packed[index] = getPackFunction(type, transposed, calls);
      packedWeights.insert(weight);
      any = true;
    }
    if (any)
      layer->setAttr(kPackedAttr, builder.getArrayAttr(packed));
  }
}

} // namespace mgq::kernels
