//===- CallRuntime.cpp - Launches and products become calls ---------------===//
//
// In: functions with gpu.launch_func and kern.matmul on memrefs. Out: calls of
// mgq_cuda_launch(number, blocks, parameters) and mgq_cuda_matmul(product, a,
// b, c, added, bias) with the addresses of the buffers
// (runtime/include/rt_cuda.h).
//
// A function has one array of parameters on the stack, which the launches fill
// one after the other.
//
//===----------------------------------------------------------------------===//

#include "passes/Kernels/Cuda/CallAttention.h"
#include "passes/Kernels/Cuda/Passes.h"
#include "passes/Kernels/Cuda/Products.h"
#include "passes/Kernels/HandKernels.h"
#include "runtime/include/rt_cuda.h"

#include "mlir/Interfaces/FunctionInterfaces.h"

namespace mgq::kernels {
#define GEN_PASS_DEF_CUDACALLRUNTIMEPASS
#include "passes/Kernels/Cuda/Passes.h.inc"
} // namespace mgq::kernels

using namespace mlir;
using namespace mgq;
using namespace mgq::kernels;

static constexpr StringLiteral kLaunch = "mgq_cuda_launch";
static constexpr StringLiteral kMatmul = "mgq_cuda_matmul";

namespace {
/// Rewrites the functions of a module.
class RuntimeCalls {
public:
  explicit RuntimeCalls(ModuleOp module)
      : module(module),
        pointer(LLVM::LLVMPointerType::get(module.getContext())) {}
  void numberKernels();
  void rewrite(FunctionOpInterface function);
  LogicalResult call(kern::MatmulOp op);

private:
  void call(gpu::LaunchFuncOp op, Value values, Value addresses);
  LLVM::LLVMFuncOp declare(StringRef name, ArrayRef<Type> types);
  Value product(OpBuilder &b, kern::MatmulOp op);

  ModuleOp module;
  Type pointer;
  llvm::StringMap<LLVM::GlobalOp> products; ///< by their fields
};
} // namespace

LLVM::LLVMFuncOp RuntimeCalls::declare(StringRef name, ArrayRef<Type> types) {
  if (auto found = module.lookupSymbol<LLVM::LLVMFuncOp>(name))
    return found;
  OpBuilder builder(module.getBodyRegion());
  auto type = LLVM::LLVMFunctionType::get(
      LLVM::LLVMVoidType::get(module.getContext()), types);
  return LLVM::LLVMFuncOp::create(builder, module.getLoc(), name, type);
}

void RuntimeCalls::numberKernels() {
  int32_t number = 0;
  Builder builder(module.getContext());
  for (auto kernel : getCudaModule(module).getOps<gpu::GPUFuncOp>())
    kernel->setAttr(kNumberAttr, builder.getI32IntegerAttr(number++));
}

static Value i64(OpBuilder &b, Location loc, int64_t value) {
  return LLVM::ConstantOp::create(b, loc, b.getI64IntegerAttr(value));
}

/// Number `index` of an array of 8-byte elements.
static Value slot(OpBuilder &b, Location loc, Value array, int32_t index) {
  return LLVM::GEPOp::create(b, loc, array.getType(), b.getI64Type(), array,
                             ArrayRef<LLVM::GEPArg>{index});
}

void RuntimeCalls::call(gpu::LaunchFuncOp op, Value values, Value addresses) {
  OpBuilder b(op);
  Location loc = op.getLoc();
  auto kernel = module.lookupSymbol(op.getKernel());
  unsigned count = op.getNumKernelOperands();
  if (kernel->hasAttr(kReportsAttr))
    --count; // the runtime passes the last one
  for (unsigned i = 0; i < count; ++i) {
    Value operand = op.getKernelOperand(i);
    if (isa<MemRefType>(operand.getType()))
      operand = makePointer(b, loc, operand);
    LLVM::StoreOp::create(b, loc, operand, slot(b, loc, values, i));
  }
  Value number = LLVM::ConstantOp::create(
      b, loc, kernel->getAttrOfType<IntegerAttr>(kNumberAttr));
  Value blocks =
      arith::IndexCastOp::create(b, loc, b.getI64Type(), op.getGridSizeX());
  auto launch = declare(kLaunch, {b.getI32Type(), b.getI64Type(), pointer});
  LLVM::CallOp::create(b, loc, launch, ValueRange{number, blocks, addresses});
  op.erase();
}

/// mgq_type of an element.
static int32_t typeNumber(Value buffer) {
  Type type = cast<MemRefType>(buffer.getType()).getElementType();
  return type.isF64()    ? MGQ_F64
         : type.isF32()  ? MGQ_F32
         : type.isBF16() ? MGQ_BF16
                         : MGQ_F16;
}

/// Elements between rows, and between matrices of the batch, as stored.
static std::pair<int64_t, int64_t> pitchOf(Value buffer) {
  auto type = cast<MemRefType>(buffer.getType());
  SmallVector<int64_t> strides;
  int64_t offset;
  if (failed(type.getStridesAndOffset(strides, offset)))
    llvm_unreachable("a library product has a static layout");
  ArrayRef<int64_t> shape = type.getShape();
  size_t rank = shape.size();
  // The pitch of one row is not defined by its stride.
  int64_t row = shape[rank - 2] == 1 ? shape[rank - 1] : strides[rank - 2];
  return {row, rank == 3 && shape[0] != 1 ? strides[0] : 0};
}

/// MGQ_CUDA_ADD, ... of a product.
static int32_t epilogueOf(kern::MatmulOp op) {
  return (op.getAddend() ? MGQ_CUDA_ADD : 0) |
         (op.getBias() ? MGQ_CUDA_BIAS : 0) |
         (op.getGelu() ? MGQ_CUDA_GELU : 0);
}

/// The constant mgq_cuda_product of `op`.
Value RuntimeCalls::product(OpBuilder &b, kern::MatmulOp op) {
  kern::MatmulOp::Sizes sizes = op.getSizes();
  auto [lda, strideA] = pitchOf(op.getLhs());
  auto [ldb, strideB] = pitchOf(op.getRhs());
  auto [ldc, strideC] = pitchOf(op.getInit());
  auto [ldAdded, strideAdded] =
      op.getAddend() ? pitchOf(op.getAddend()) : std::pair<int64_t, int64_t>();
  const int32_t words[] = {typeNumber(op.getLhs()),  typeNumber(op.getRhs()),
                           typeNumber(op.getInit()), op.getTransposeA(),
                           op.getTransposeB(),       epilogueOf(op)};
  const int64_t fields[] = {sizes.batch, sizes.m, sizes.n, sizes.k,
                            lda,         ldb,     ldc,     ldAdded,
                            strideA,     strideB, strideC, strideAdded};
  FloatAttr alpha = op.getAlphaAttr();
  std::string key;
  llvm::raw_string_ostream stream(key);
  for (int64_t word : words)
    stream << word << ' ';
  for (int64_t field : fields)
    stream << field << ' ';
  stream << alpha;
  LLVM::GlobalOp &global = products[key];
  if (!global) {
    auto wordsType = LLVM::LLVMArrayType::get(b.getI32Type(), std::size(words));
    auto fieldsType =
        LLVM::LLVMArrayType::get(b.getI64Type(), std::size(fields));
    auto type = LLVM::LLVMStructType::getLiteral(
        b.getContext(), {wordsType, fieldsType, b.getF64Type()});
    OpBuilder top(module.getBodyRegion());
    Attribute value = top.getArrayAttr(
        {top.getI32TensorAttr(words), top.getI64TensorAttr(fields), alpha});
    global = LLVM::GlobalOp::create(
        top, op.getLoc(), type, /*isConstant=*/true, LLVM::Linkage::Private,
        "product." + std::to_string(products.size() - 1), value,
        /*alignment=*/8);
  }
  return LLVM::AddressOfOp::create(b, op.getLoc(), global);
}

LogicalResult RuntimeCalls::call(kern::MatmulOp op) {
  if (!isLibraryProduct(op))
    return op.emitOpError("was left by kern-lower-loops: no kernel for these "
                          "operands");
  OpBuilder b(op);
  Location loc = op.getLoc();
  SmallVector<Value> operands{product(b, op)};
  for (Value buffer :
       {op.getLhs(), op.getRhs(), op.getInit(), op.getAddend(), op.getBias()})
    operands.push_back(buffer ? makePointer(b, loc, buffer)
                              : LLVM::ZeroOp::create(b, loc, pointer));
  auto matmul = declare(kMatmul, SmallVector<Type>(operands.size(), pointer));
  LLVM::CallOp::create(b, loc, matmul, operands);
  op.erase();
  return success();
}

void RuntimeCalls::rewrite(FunctionOpInterface function) {
  SmallVector<gpu::LaunchFuncOp> launches;
  unsigned most = 0;
  function.walk([&](gpu::LaunchFuncOp op) {
    launches.push_back(op);
    most = std::max<unsigned>(most, op.getNumKernelOperands());
  });
  if (launches.empty())
    return;
  OpBuilder b = OpBuilder::atBlockBegin(&function.getFunctionBody().front());
  Location loc = function.getLoc();
  auto array = [&]() -> Value {
    return LLVM::AllocaOp::create(b, loc, pointer, b.getI64Type(),
                                  i64(b, loc, std::max(most, 1u)));
  };
  Value values = array(), addresses = array();
  for (unsigned i = 0; i < most; ++i)
    LLVM::StoreOp::create(b, loc, slot(b, loc, values, i),
                          slot(b, loc, addresses, i));
  for (gpu::LaunchFuncOp op : launches)
    call(op, values, addresses);
}

namespace {
struct CudaCallRuntimePass
    : kernels::impl::CudaCallRuntimePassBase<CudaCallRuntimePass> {
  void runOnOperation() override {
    RuntimeCalls calls(getOperation());
    calls.numberKernels();
    for (auto function :
         llvm::to_vector(getOperation().getOps<FunctionOpInterface>()))
      if (!function.isExternal())
        calls.rewrite(function);
    SmallVector<kern::MatmulOp> products;
    getOperation().walk([&](kern::MatmulOp op) { products.push_back(op); });
    for (kern::MatmulOp op : products)
      if (failed(calls.call(op)))
        return signalPassFailure();
    AttentionCalls attention(getOperation());
    SmallVector<kern::DeviceAttentionOp> attentions;
    getOperation().walk(
        [&](kern::DeviceAttentionOp op) { attentions.push_back(op); });
    for (kern::DeviceAttentionOp op : attentions)
      attention.call(op);
  }
};
} // namespace
