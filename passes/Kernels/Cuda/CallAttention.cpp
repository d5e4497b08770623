//===- CallAttention.cpp - Attention becomes a call of the runtime --------===//
//
// In: kern.device_attention on memrefs. Out: calls of mgq_cuda_attention(table,
// tensors) with a constant table and an array of addresses on the stack
// (runtime/include/rt_cuda.h). Equal tables are one.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/CallAttention.h"
#include "passes/Kernels/Cuda/Passes.h"
#include "passes/Kernels/HandKernels.h"
#include "runtime/include/rt_cuda.h"

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

static constexpr StringLiteral kAttention = "mgq_cuda_attention";
static constexpr int64_t kMostKernels =
    std::extent_v<decltype(mgq_cuda_attention_table::kernels)>;

static MemRefType typeOf(Value buffer) {
  return cast<MemRefType>(buffer.getType());
}

/// mgq_type of what q, k, v and the result are.
static int32_t typeNumber(kern::DeviceAttentionOp op) {
  Type type = typeOf(op.getQ()).getElementType();
  return type.isBF16() ? MGQ_BF16 : type.isF16() ? MGQ_F16 : MGQ_F32;
}

static SmallVector<int64_t> stridesOf(MemRefType type) {
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(type.getStridesAndOffset(strides, offset)))
    llvm_unreachable("attention's buffers have a static layout");
  return strides;
}

/// The int64_t fields of mgq_cudnn_problem.
static SmallVector<int64_t> sizesOf(kern::DeviceAttentionOp op) {
  auto q = typeOf(op.getQ()).getShape(), v = typeOf(op.getV()).getShape();
  SmallVector<int64_t> fields = {q[0], q[1], v[1], q[2], v[2], q[3], v[3]};
  for (Value tensor : {op.getQ(), op.getK(), op.getV(), op.getResult()})
    llvm::append_range(fields, stridesOf(typeOf(tensor)));
  // A bias of fewer dimensions has one element in those before.
  SmallVector<int64_t> extents(4, 1), strides(4, 0);
  if (Value mask = op.getMask()) {
    llvm::copy(llvm::reverse(typeOf(mask).getShape()), extents.rbegin());
    llvm::copy(llvm::reverse(stridesOf(typeOf(mask))), strides.rbegin());
    for (int i = 4 - typeOf(mask).getRank(); i-- > 0;)
      strides[i] = extents[i + 1] * strides[i + 1];
  }
  llvm::append_range(fields, extents);
  llvm::append_range(fields, strides);
  return fields;
}

static int32_t causalKind(kern::DeviceAttentionOp op) {
  return !op.getCausal()         ? MGQ_CUDNN_SEES_ALL
         : op.getCausalFromEnd() ? MGQ_CUDNN_SEES_FROM_END
                                 : MGQ_CUDNN_SEES_UP_TO_ITSELF;
}

LLVM::GlobalOp AttentionCalls::tableOf(kern::DeviceAttentionOp op) {
  OpBuilder top(module.getBodyRegion());
  const int32_t words[] = {typeNumber(op), causalKind(op),
                           !op.getBackward().empty(), bool(op.getMask())};
  SmallVector<int64_t> sizes = sizesOf(op);
  static_assert(sizeof(mgq_cudnn_problem) ==
                sizeof words + sizeof(double) + 31 * sizeof(int64_t));
  SmallVector<int32_t> kernels = {op.getLibrary(),
                                  int32_t(op.getKernels().size())};
  for (Attribute name : op.getKernels())
    kernels.push_back(module.lookupSymbol(cast<SymbolRefAttr>(name))
                          ->getAttrOfType<IntegerAttr>(kNumberAttr)
                          .getInt());
  kernels.resize(2 + kMostKernels + 1);
  SmallVector<int64_t> blocks(op.getBlocks());
  blocks.resize(kMostKernels);
  Attribute value = top.getArrayAttr(
      {top.getI32TensorAttr(words), op.getScaleAttr(),
       top.getI64TensorAttr(sizes), top.getI32TensorAttr(kernels),
       top.getI64TensorAttr(blocks)});
  std::string key;
  llvm::raw_string_ostream(key) << value;
  LLVM::GlobalOp &global = tables[key];
  if (global)
    return global;
  auto array = [&](Type element, size_t count) -> Type {
    return LLVM::LLVMArrayType::get(element, count);
  };
  Type i32 = top.getI32Type(), i64 = top.getI64Type();
  auto type = LLVM::LLVMStructType::getLiteral(
      top.getContext(),
      {array(i32, std::size(words)), top.getF64Type(), array(i64, sizes.size()),
       array(i32, kernels.size()), array(i64, blocks.size())});
  global = LLVM::GlobalOp::create(
      top, op.getLoc(), type, /*isConstant=*/true, LLVM::Linkage::Private,
      "attention." + std::to_string(tables.size() - 1), value,
      /*alignment=*/8);
  return global;
}

LLVM::LLVMFuncOp AttentionCalls::declare() {
  if (auto found = module.lookupSymbol<LLVM::LLVMFuncOp>(kAttention))
    return found;
  OpBuilder builder(module.getBodyRegion());
  Type pointer = LLVM::LLVMPointerType::get(module.getContext());
  auto type = LLVM::LLVMFunctionType::get(
      LLVM::LLVMVoidType::get(module.getContext()), {pointer, pointer});
  return LLVM::LLVMFuncOp::create(builder, module.getLoc(), kAttention, type);
}

void AttentionCalls::call(kern::DeviceAttentionOp op) {
  OpBuilder b(op);
  Location loc = op.getLoc();
  Type pointer = LLVM::LLVMPointerType::get(b.getContext());
  SmallVector<Value> tensors = {op.getQ(), op.getK(), op.getV(), op.getMask(),
                                op.getResult()};
  llvm::append_range(tensors, op.getBackward());
  if (!op.getBackward().empty() && !op.getLibrary())
    tensors.insert(tensors.begin() + MGQ_ATTENTION_SPARE, Value());
  Value count =
      LLVM::ConstantOp::create(b, loc, b.getI64IntegerAttr(tensors.size()));
  Value array = LLVM::AllocaOp::create(b, loc, pointer, pointer, count);
  for (auto [i, tensor] : llvm::enumerate(tensors)) {
    Value address = tensor ? makePointer(b, loc, tensor)
                           : Value(LLVM::ZeroOp::create(b, loc, pointer));
    Value slot = LLVM::GEPOp::create(b, loc, pointer, pointer, array,
                                     ArrayRef<LLVM::GEPArg>{int32_t(i)});
    LLVM::StoreOp::create(b, loc, address, slot);
  }
  Value table = LLVM::AddressOfOp::create(b, loc, tableOf(op));
  LLVM::CallOp::create(b, loc, declare(), ValueRange{table, array});
  op.erase();
}
